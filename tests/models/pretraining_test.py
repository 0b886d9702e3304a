"""A tiny GPT-2 trained from scratch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.models import pretraining as training_state
from fedpersonal.models.gpt2 import load_base_model
from fedpersonal.models.gpt2_training import GPT2Trainer, new_model
from fedpersonal.models.pretraining import ModelSizes, pretrain, pretrain_into

SIZES = ModelSizes(vocab_size=270, num_layers=1, num_heads=2, dim=16, positions=12)
OPTIONS = {"start": SIZES, "steps": 30, "batch_size": 8, "learning_rate": 0.02, "seed": 3}
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
    assert all(": loss " in line and ", held-out perplexity " in line for line in lines)


def test_the_curve_is_of_the_reports(result):
    report = result[2]
    steps, perplexities = zip(*report.curve)
    assert steps == (0, *range(2, 31, 2))
    assert perplexities[0] == report.initial_perplexity
    assert perplexities[-1] == report.final_perplexity


@pytest.fixture(name="stop_at")
def _stop_at(monkeypatch):
    """Makes training stop, as by Ctrl-C, before its nth step, saved after each."""
    train = GPT2Trainer.train
    monkeypatch.setattr(training_state, "_SECONDS_BETWEEN_SAVES", 0.0)

    def stop_at(step):
        made = []

        def count(self, tokens):
            made.append(tokens)
            if len(made) == step:
                raise KeyboardInterrupt
            return train(self, tokens)

        monkeypatch.setattr(GPT2Trainer, "train", count)
        return made

    return stop_at


def test_an_interrupted_training_goes_on_to_the_same_bits(result, stop_at, tmp_path, capsys):
    state = tmp_path / "state"
    for stop in (8, 12):
        stop_at(stop)
        with pytest.raises(KeyboardInterrupt):
            trained(state_file=state)
    made = stop_at(None)
    model, _, report = trained(state_file=state, progress=True)
    assert len(made) == 30 - 7 - 11
    assert "going on after step 18/30\n" in capsys.readouterr().err
    for one, other in zip(result[0].get_weights(), model.get_weights()):
        np.testing.assert_array_equal(one, other)
    assert report.curve == result[2].curve and report.seconds > 0


def test_a_state_of_another_training_or_damaged_is_refused(stop_at, tmp_path):
    state = tmp_path / "state"
    stop_at(3)
    with pytest.raises(KeyboardInterrupt):
        trained(state_file=state)
    for other, said in (
        ({"steps": 31, "seed": 4}, "with other steps, seed;"),
        ({"texts": TEXTS[:-1]}, "with other texts;"),
        ({"start": ModelSizes(vocab_size=270, num_layers=2, num_heads=2, dim=16)}, "other start;"),
    ):
        with pytest.raises(UserError, match=f"state is of another training, .*{said} remove it"):
            trained(state_file=state, **other)
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    with pytest.raises(UserError, match="state is damaged .*; remove it to train from the start"):
        trained(state_file=state)


def test_a_folder_appears_when_its_training_is_over(result, stop_at, tmp_path):
    options = {**OPTIONS, "settings": {"a": 1}, "progress": False}
    stop_at(5)
    with pytest.raises(KeyboardInterrupt):
        pretrain_into(tmp_path / "base", TEXTS, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["base.training"]
    stop_at(None)
    pretrain_into(tmp_path / "base", TEXTS, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
    # A base model is trained further from its own weights and tokens.
    base = load_base_model(tmp_path / "base")
    expected = {w.name: w.numpy() for w in result[0].weights}
    model, tokenizer, report = trained(TEXTS[:40], start=base, learning_rate=1e-9, steps=1)
    assert tokenizer.get_vocab() == base.tokenizer.get_vocab()
    for weight in model.weights:
        name = next(n for n in expected if n.split("/", 1)[1] == weight.name.split("/", 1)[1])
        np.testing.assert_allclose(weight.numpy(), expected[name], atol=1e-6)
    assert report.initial_perplexity == pytest.approx(report.final_perplexity, rel=1e-3)


def test_seeds_give_initial_weights(result):
    _, tokenizer, _ = result
    one, same, other = (new_model(SIZES, tokenizer, seed) for seed in (1, 1, 2))
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
        GPT2Trainer, "train", lambda _, tokens: batches.append(tokens) or np.float32(1)
    )
    monkeypatch.setattr(GPT2Trainer, "perplexity", lambda _, batches: len(list(batches)))
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
