"""Byte-pair encoding trained on texts."""

from __future__ import annotations

import json

import pytest

from fedpersonal.errors import UserError
from fedpersonal.models.gpt2_training import train_tokenizer

TEXTS = ["the cat sat on the mat .", "the dog sat on the log !", "a cat and a dog"] * 5
ODD = "  How you doin' , Jo\u00e9y ?\n\n\U0001f600 \x00 the  cat ."


def test_any_text_comes_back_unchanged():
    tokenizer = train_tokenizer(TEXTS, vocab_size=300)
    for text in [*TEXTS, ODD]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("the cat")["input_ids"]) < len("the cat")


def test_the_end_of_a_text_is_the_last_token_of_the_vocabulary():
    tokenizer = train_tokenizer(TEXTS, vocab_size=270)
    assert len(tokenizer) == tokenizer.vocab_size == 270
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.unk_token_id == 269
    assert tokenizer("a<|endoftext|>")["input_ids"][-1] == 269
    assert tokenizer.decode([269], skip_special_tokens=True) == ""


def test_equal_texts_give_equal_tokenizers():
    one, other = (
        train_tokenizer(texts, vocab_size=290).backend_tokenizer.to_str()
        for texts in (TEXTS, TEXTS[::-1])
    )
    assert one == other


def test_few_texts_have_few_tokens():
    assert len(train_tokenizer(["ab ab"], vocab_size=5000)) == 256 + 3 + 1 - 1


def test_files_of_gpt2_are_enough(tmp_path):
    from transformers import GPT2TokenizerFast

    tokenizer = train_tokenizer(TEXTS, vocab_size=275)
    tokenizer.save_pretrained(tmp_path)
    assert len(json.loads((tmp_path / "vocab.json").read_text())) == 275
    (tmp_path / "tokenizer.json").unlink()
    again = GPT2TokenizerFast.from_pretrained(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again(ODD)["input_ids"] == tokenizer(ODD)["input_ids"]


@pytest.mark.parametrize(
    ("texts", "vocab_size", "said"),
    [
        (TEXTS, 256, "vocab_size must be a whole number >= 257, got 256"),
        (TEXTS, 300.0, "vocab_size must be a whole number >= 257, got 300.0"),
        (["", ""], 300, "there is no text to train a tokenizer on"),
    ],
)
def test_mistakes(texts, vocab_size, said):
    with pytest.raises(UserError, match=said):
        train_tokenizer(texts, vocab_size=vocab_size)
