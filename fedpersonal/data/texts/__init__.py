"""What users wrote or said: labelled texts, and sentences of words."""
