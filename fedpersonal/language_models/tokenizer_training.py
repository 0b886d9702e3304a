"""Byte-level byte-pair encoding in the format of GPT-2, trained on texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedpersonal.data.checks import check_count
from fedpersonal.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer, models
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

END_OF_TEXT = "<|endoftext|>"
# All bytes and the end of a text.
MIN_VOCAB_SIZE = 257


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> GPT2TokenizerFast:
    """Trains a tokenizer that can encode any text and give it back unchanged.

    Equal texts, in whatever order, give equal tokenizers; without any there is a `UserError`.

    Args:
        texts: The texts.
        vocab_size: How many tokens there are to be, >= 257: the 256 bytes, pairs, and as the last
            one `<|endoftext|>`, which begins and ends texts. It becomes fewer if the texts do not
            have so many pairs.
    """
    from tokenizers import models, pre_tokenizers, trainers
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    vocab_size = check_count("vocab_size", vocab_size, minimum=MIN_VOCAB_SIZE)
    texts = [text for text in texts if text]
    if not texts:
        raise UserError("there is no text to train a tokenizer on")
    learned = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    # The trainer would put it first, and the tokenizer beside the vocabulary instead of into it.
    vocabulary = {**model["vocab"], END_OF_TEXT: len(model["vocab"])}
    merges = [tuple(merge.split(" ")) for merge in model["merges"]]
    return GPT2TokenizerFast(
        tokenizer_object=_byte_level(models.BPE(vocabulary, merges)),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def _byte_level(model: models.Model) -> Tokenizer:
    """Returns a tokenizer that cuts texts as GPT-2 does."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
