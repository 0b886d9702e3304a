"""A pretrained GPT-2: made of texts, written and read in the format of HuggingFace."""
