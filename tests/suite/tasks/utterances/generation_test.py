"""Texts of a trained model: drawn by a seed, as transformers' own model would have them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from transformers import TFGPT2LMHeadModel

from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.tasks.utterances.generation import find_name, generate
from fedpersonal.suite.tasks.utterances.methods import EMBEDDING
from fedpersonal.suite.tasks.utterances.models import build_language_model, write_frozen_base

PERSONAL = "language_model/personal_embedding/embeddings"
CONTEXT = "language_model/context_embedding/embeddings"
PROMPT = "the harbour"


@pytest.fixture(name="values", scope="module")
def _values():
    """What 3 users have kept, and the embeddings of 2 contexts."""
    random = np.random.default_rng(7)
    contexts, users = (random.normal(size=size).astype(np.float32) for size in ([2, 8], [3, 1, 8]))
    return {CONTEXT: contexts, PERSONAL: users}


@pytest.fixture(name="write", scope="module")
def _write(tiny_base, values, tmp_path_factory):
    model = build_language_model(
        "prefix",
        tiny_base,
        write_frozen_base(tiny_base, tmp_path_factory.mktemp("frozen")),
        local_layers=(EMBEDDING,),
        num_contexts=2,
        history_length=1,
    )

    def write(*, user=0, **options):
        own = {**values, PERSONAL: values[PERSONAL][user]}
        return generate(model, tiny_base, own, **{"context": 0, "prompt": PROMPT, **options})

    return write


def expected_text(base, values, user, context, *, max_tokens, seed):
    """Draws a text by Gumbel's trick from transformers' own model: temperature 2, top 20."""
    model = TFGPT2LMHeadModel.from_pretrained(base.source)
    prefix = (values[PERSONAL][user] * values[CONTEXT][context])[None]
    tokens = base.tokenizer(PROMPT)["input_ids"]
    random = generator(Purpose.WRITTEN_TEXTS, seed)
    while len(tokens) < max_tokens:
        words = model.transformer.wte(np.array([tokens]))
        logits = model(None, inputs_embeds=tf.concat([prefix, words], axis=1)).logits[0, -1]
        scores = logits.numpy() / 2 + random.gumbel(size=[1, len(logits)])[0]
        best = np.argsort(logits)[-20:]
        tokens.append(int(best[np.argmax(scores[best])]))
        if tokens[-1] == base.config.eos_token_id:
            return base.tokenizer.decode(tokens[:-1])
    return base.tokenizer.decode(tokens)


@pytest.mark.exhaustive
def test_prompts_are_gone_on_with_by_a_seed(write, tiny_base):
    one = write(seed=1, num_texts=4, max_tokens=12)
    assert one == write(seed=1, num_texts=4, max_tokens=12)
    assert one != write(seed=2, num_texts=4, max_tokens=12)
    assert len(one) == 4 and len(set(one)) > 1
    for text in one:
        assert text.startswith(PROMPT) and "<|endoftext|>" not in text
    # Without a prompt, and until the model has no more positions.
    (text,) = write(prompt="", num_texts=1, max_tokens=1000, temperature=0.01)
    assert text


def test_texts_are_drawn_from_transformers_own_probabilities(write, tiny_base, values):
    """Which users and contexts have of their own."""
    found = []
    for user, context in ((0, 0), (2, 0), (2, 1)):
        options = {"max_tokens": 20, "seed": 4}
        expected = expected_text(tiny_base, values, user, context, **options)
        options.update(num_texts=1, temperature=2.0, top_k=20)
        assert write(user=user, context=context, **options) == [expected]
        found.append(expected)
    assert found[0] != found[1] != found[2]
    # A low temperature leaves nothing to chance, and neither does a single choice.
    options = {"max_tokens": 12, "num_texts": 2}
    (one, same), other = write(temperature=1e-4, **options), write(top_k=1, seed=9, **options)
    assert one == same == other[0] == other[1]


def test_too_long_prompts_are_refused(write, tiny_base):
    count = len(tiny_base.tokenizer(PROMPT)["input_ids"])
    with pytest.raises(UserError, match=f"--prompt has {count} tokens; at most {count - 1} leave"):
        write(max_tokens=count)
    with pytest.raises(UserError, match="at most 23 leave room"):
        write(prompt="a b " * 30, max_tokens=1000)


def test_names_are_found_whatever_their_case():
    names = ["Arya Stark", "Joey", "Sheldon", "joey"]
    assert find_name("user", "arya stark", names) == 0
    assert [find_name("user", name, names) for name in ("Joey", "joey", "JOEY")] == [1, 3, 1]
    with pytest.raises(UserError, match="--user='Sheldn' is unknown; did you mean 'Sheldon'.$"):
        find_name("user", "Sheldn", names)
    with pytest.raises(UserError, match="--context='zzz' is unknown; did you mean 'a' or 'b'."):
        find_name("context", "zzz", ["a", "b"])
