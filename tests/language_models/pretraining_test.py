"""A tiny GPT-2 trained from scratch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.language_models import pretraining
from fedpersonal.language_models.pretraining import ModelSizes, pretrain

SIZES = ModelSizes(vocab_size=270, num_layers=1, num_heads=2, dim=16, positions=12)
OPTIONS = {"sizes": SIZES, "steps": 30, "batch_size": 8, "learning_rate": 0.02, "seed": 3}
IDS = np.array([[269, 4, 9, 2]])
TEXTS = [f"the {a} {b} the {c}" for a in ("cat", "dog") for b in ("saw", "ate") for c in "xyz"] * 10


def trained(texts=TEXTS, progress=False, **options):
    return pretrain(texts, progress=progress, **{**OPTIONS, **options})


@pytest.fixture(scope="module", name="result")
def _result():
    return trained()


def test_training_lowers_perplexity(result):
    model, tokenizer, report = result
    assert report.num_texts == 118 and report.num_validation_texts == 2
    assert report.steps == 30 and report.seconds > 0
    assert report.num_parameters == sum(int(tf.size(weight)) for weight in model.weights)
    # Before training, all tokens are about equally likely.
    assert report.initial_perplexity == pytest.approx(len(tokenizer), rel=0.1)
    assert report.final_perplexity < 0.3 * report.initial_perplexity


def test_sizes_are_those_asked_for(result):
    model, tokenizer, _ = result
    config = model.config
    assert (config.n_layer, config.n_head, config.n_embd, config.n_positions) == (1, 2, 16, 12)
    assert config.vocab_size == len(tokenizer) == 270
    assert config.bos_token_id == config.eos_token_id == tokenizer.eos_token_id == 269
    assert config.embd_pdrop == config.attn_pdrop == config.resid_pdrop == 0


def test_equal_seeds_give_equal_models_and_leave_numpys_randomness_alone(result, capsys):
    random.seed(7)
    np.random.seed(7)
    tf.random.set_seed(7)
    before = np.random.get_state()[1].tolist()
    again, tokenizer, report = trained(progress=True)
    assert np.random.get_state()[1].tolist() == before
    for one, other in zip(result[0].get_weights(), again.get_weights()):
        np.testing.assert_array_equal(one, other)
    assert tokenizer.get_vocab() == result[1].get_vocab()
    assert report.final_perplexity == result[2].final_perplexity
    output, errors = capsys.readouterr()
    assert output == ""
    first, *lines = errors.splitlines()
    assert first == "training a tokenizer and encoding 120 texts"
    assert [line.split(",")[0] for line in lines] == [f"step {i}/30" for i in range(2, 31, 2)]
    assert all(": loss " in line for line in lines)


def test_seeds_give_initial_weights(result):
    _, tokenizer, _ = result
    seeds = [np.random.SeedSequence(seed) for seed in (1, 1, 2)]
    one, same, other = (pretraining._new_model(SIZES, tokenizer, seed) for seed in seeds)
    np.testing.assert_array_equal(one(IDS).logits, same(IDS).logits)
    assert not np.allclose(one(IDS).logits, other(IDS).logits)


def test_perplexity_is_that_of_consecutive_windows(result):
    """Of texts that are neighbours, each with its end, in windows that predict all but a first."""
    model, tokenizer, report = result
    order_seed, _ = np.random.SeedSequence(OPTIONS["seed"]).spawn(2)
    first = np.random.default_rng(order_seed).integers(len(TEXTS) - 1)
    stream = []
    for text in TEXTS[first : first + 2]:
        stream += [*tokenizer(text)["input_ids"], 269]
    windows = [stream[i : i + 12] for i in range(0, len(stream), 12)]
    assert len(windows) > 1
    losses = []
    for ids in windows:
        if len(ids) > 1:
            logits = model(np.array([ids[:-1]])).logits[0]
            losses += list(tf.keras.losses.sparse_categorical_crossentropy(ids[1:], logits, True))
    assert report.final_perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)


def test_a_batch_takes_windows_wherever_they_begin(result, monkeypatch):
    """All that is trained on is in the stream of the texts not held out, at any place of it."""
    _, tokenizer, report = result
    batches = []
    monkeypatch.setattr(
        pretraining._Trainer, "train", lambda _, tokens: batches.append(tokens) or np.float32(1)
    )
    monkeypatch.setattr(pretraining._Trainer, "perplexity", lambda _, batches: len(list(batches)))
    trained(steps=200)
    order_seed, _ = np.random.SeedSequence(OPTIONS["seed"]).spawn(2)
    first = np.random.default_rng(order_seed).integers(len(TEXTS) - 1)
    stream = []
    for text in TEXTS[:first] + TEXTS[first + 2 :]:
        stream += [*tokenizer(text)["input_ids"], 269]
    assert report.num_tokens == len(stream)
    places = {tuple(stream[i : i + 12]) for i in range(len(stream) - 11)}
    seen = {tuple(row) for batch in batches for row in batch.tolist()}
    assert {batch.shape for batch in batches} == {(8, 12)}
    # Texts are so alike that many windows are equal; nearly all that differ are drawn.
    assert seen <= places and len(seen) > 0.9 * len(places)
    assert {row[0] for row in seen} == set(stream)


def test_few_tokens_are_one_window():
    few = trained(["a b", "c"], steps=1)[2]
    assert few.num_texts == 1 and few.num_tokens < 12
    assert np.isfinite(few.final_perplexity)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number >= 1, got 2.5"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number > 0, got nan"),
        ({"texts": ["a", " "]}, "at least 2 texts that are not blank are needed, got 1"),
    ],
)
def test_mistakes(options, said):
    with pytest.raises(UserError, match=said):
        trained(**options)


def test_a_loss_that_is_not_finite_names_the_learning_rate():
    with pytest.raises(UserError, match=r"the loss is \w+ at step \d+: learning_rate=1e\+30 is"):
        trained(learning_rate=1e30)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"vocab_size": 256}, "vocab_size must be a whole number >= 257, got 256"),
        ({"num_layers": 0}, "num_layers must be a whole number >= 1, got 0"),
        ({"num_heads": 0}, "num_heads must be a whole number >= 1, got 0"),
        ({"dim": 0}, "dim must be a whole number >= 1, got 0"),
        ({"positions": 1}, "positions must be a whole number >= 2, got 1"),
        ({"dim": 18}, "dim=18 is not a multiple of num_heads=4"),
    ],
)
def test_mistakes_in_sizes(sizes, said):
    with pytest.raises(UserError, match=said):
        ModelSizes(**sizes)
