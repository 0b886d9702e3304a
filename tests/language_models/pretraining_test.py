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
    lines = errors.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"step {i}/30" for i in range(2, 31, 2)]
    assert all(": loss " in line for line in lines)


def test_seeds_give_initial_weights(result):
    _, tokenizer, _ = result
    seeds = [np.random.SeedSequence(seed) for seed in (1, 1, 2)]
    one, same, other = (pretraining._new_model(SIZES, tokenizer, seed) for seed in seeds)
    np.testing.assert_array_equal(one(IDS).logits, same(IDS).logits)
    assert not np.allclose(one(IDS).logits, other(IDS).logits)


def test_perplexity_is_that_of_single_texts_without_padding(result):
    model, tokenizer, report = result
    order_seed, _ = np.random.SeedSequence(OPTIONS["seed"]).spawn(2)
    held_out = np.random.default_rng(order_seed).permutation(len(TEXTS))[:2]
    losses = []
    for text in held_out:
        ids = [269, *tokenizer(TEXTS[text])["input_ids"], 269][:12]
        logits = model(np.array([ids[:-1]])).logits[0]
        losses += list(tf.keras.losses.sparse_categorical_crossentropy(ids[1:], logits, True))
    assert report.final_perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)


def test_every_text_is_in_one_batch_of_a_pass():
    lengths = np.random.default_rng(0).integers(2, 17, 103)
    offsets = np.cumsum([0, *lengths])
    tokens = np.repeat(np.arange(1, 104), lengths).astype(np.int32)
    utterances = pretraining._Utterances(tokens, offsets, (2, 4, 6, 8, 12, 16))
    for generator in (None, np.random.default_rng(1)):
        seen = []
        batches = list(utterances.batches(10, generator))
        for rows, sizes in batches:
            assert rows.shape[1] in utterances.buckets and sizes.max() <= rows.shape[1]
            for row, size in zip(rows, sizes):
                assert (row[:size] == row[0]).all() and not row[size:].any()
                assert size == lengths[row[0] - 1]
                seen.append(row[0])
        assert sorted(seen) == list(range(1, 104))
        assert sorted(len(rows) for rows, _ in batches) == [3] + [10] * 10
        padding = 1 - lengths.sum() / sum(rows.size for rows, _ in batches)
        assert padding < 0.25


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
