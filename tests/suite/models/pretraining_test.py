"""A tiny GPT-2 trained from scratch, by the function and by the command."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.suite.models import pretraining
from fedpersonal.suite.models.gpt2 import load_base_model, weight_name
from fedpersonal.suite.models.pretraining import ModelSizes, pretrain, pretrain_into

SIZES = ModelSizes(vocab_size=270, num_layers=1, num_heads=2, dim=16, positions=12)
OPTIONS = {"start": SIZES, "steps": 30, "batch_size": 8, "learning_rate": 0.02, "seed": 3}
TEXTS = [f"the {a} {b} the {c}" for a in ("cat", "dog") for b in ("saw", "ate") for c in "xyz"] * 10


def trained(texts=TEXTS, progress=False, **options):
    return pretrain(texts, progress=progress, **{**OPTIONS, **options})


@pytest.fixture(scope="module", name="result")
def _result():
    return trained()


def streams(tokenizer):
    """Returns the tokens of the two texts held out, and of the others, each with its end."""
    seed, _ = np.random.SeedSequence(OPTIONS["seed"]).spawn(2)
    first = np.random.default_rng(seed).integers(len(TEXTS) - 1)
    parts = (TEXTS[first : first + 2], TEXTS[:first] + TEXTS[first + 2 :])
    return [[i for text in part for i in (*tokenizer(text)["input_ids"], 269)] for part in parts]


def test_training_lowers_perplexity(result):
    model, tokenizer, report = result
    config = model.config
    assert (config.n_layer, config.n_head, config.n_embd, config.n_positions) == (1, 2, 16, 12)
    assert config.vocab_size == len(tokenizer) == 270
    assert config.bos_token_id == config.eos_token_id == tokenizer.eos_token_id == 269
    assert config.embd_pdrop == config.attn_pdrop == config.resid_pdrop == 0
    assert report.num_texts == 118 and report.num_validation_texts == 2
    assert report.num_tokens == len(streams(tokenizer)[1]) and report.seconds > 0
    assert report.num_parameters == sum(int(tf.size(weight)) for weight in model.weights)
    steps, perplexities = zip(*report.curve)
    assert steps == (0, *range(2, 31, 2))
    # Before training, all tokens are about equally likely.
    assert perplexities[0] == pytest.approx(len(tokenizer), rel=0.1)
    assert perplexities[-1] < 0.3 * perplexities[0]


def test_perplexity_is_that_of_consecutive_windows(result):
    """Of texts that are neighbours, each with its end, in windows that predict all but a first."""
    model, tokenizer, report = result
    stream, _ = streams(tokenizer)
    windows = [stream[i : i + 12] for i in range(0, len(stream), 12)]
    assert len(windows) > 1
    losses = []
    for ids in windows:
        if len(ids) > 1:
            logits = model(np.array([ids[:-1]])).logits[0]
            losses += list(tf.keras.losses.sparse_categorical_crossentropy(ids[1:], logits, True))
    assert report.curve[-1][1] == pytest.approx(np.exp(np.mean(losses)), rel=1e-4)


@pytest.fixture(name="record")
def _record(monkeypatch):
    """Keeps the windows of each step, and stops, as by Ctrl-C, before the nth one."""
    compile_steps = pretraining._compile_steps

    def record(stop=None, *, without_work=False):
        batches = []

        def compile_and_record(*arguments):
            step_on, sum_losses, variables = compile_steps(*arguments)

            def step(batch):
                batches.append(batch)
                if len(batches) == stop:
                    raise KeyboardInterrupt
                return np.float32(1) if without_work else step_on(batch)

            return step, sum_losses, variables

        monkeypatch.setattr(pretraining, "_compile_steps", compile_and_record)
        monkeypatch.setattr(pretraining, "_SECONDS_BETWEEN_SAVES", 0.0)
        return batches

    return record


def test_a_batch_takes_windows_wherever_they_begin(result, record):
    """All that is trained on is in the stream of the texts not held out, at any place of it."""
    batches, (_, stream) = record(without_work=True), streams(result[1])
    trained(steps=200)
    places = {tuple(stream[i : i + 12]) for i in range(len(stream) - 11)}
    rows = {tuple(row) for batch in batches for row in batch.tolist()}
    assert {batch.shape for batch in batches} == {(8, 12)}
    # Texts are so alike that many windows are equal; nearly all that differ are drawn.
    assert rows <= places and len(rows) > 0.9 * len(places)
    assert {row[0] for row in rows} == set(stream)


@pytest.mark.exhaustive
def test_an_interrupted_training_goes_on_to_the_same_bits(result, record, tmp_path, capsys):
    random.seed(7)
    np.random.seed(7)
    tf.random.set_seed(7)
    before = np.random.get_state()[1].tolist()
    folder, options = tmp_path / "base", {**OPTIONS, "settings": {"a": 1}, "progress": True}
    for stop in (8, 12):
        record(stop)
        with pytest.raises(KeyboardInterrupt):
            pretrain_into(folder, TEXTS, **options)
    (state,) = tmp_path.iterdir()
    capsys.readouterr()
    content = state.read_bytes()
    state.write_bytes(content[:-9] + bytes(9))
    with pytest.raises(UserError, match="base.*training is damaged .*; remove it to train from"):
        pretrain_into(folder, TEXTS, **options)
    state.write_bytes(content)
    batches = record()
    report = pretrain_into(folder, TEXTS, **options)
    assert len(batches) == 30 - 7 - 11 and list(tmp_path.iterdir()) == [folder]
    assert report.curve == result[2].curve and report.seconds > 0
    assert np.random.get_state()[1].tolist() == before
    output, errors = capsys.readouterr()
    _, first, second, *lines = errors.splitlines()
    assert output == "" and first == "training a tokenizer and encoding 120 texts"
    assert second == "resuming after step 18/30"
    assert [line.split(",")[0] for line in lines] == [f"step {i}/30" for i in range(20, 31, 2)]
    assert all(": loss " in line and ", held-out perplexity " in line for line in lines)
    # A base model is trained further from its own weights and tokens.
    base = load_base_model(folder)
    for weight in result[0].weights:
        np.testing.assert_array_equal(weight, base.weights[weight_name(weight)])
    model, tokenizer, report = trained(TEXTS[:40], start=base, learning_rate=1e-9, steps=1)
    assert tokenizer.get_vocab() == result[1].get_vocab()
    for weight, own in zip(model.weights, result[0].weights):
        np.testing.assert_allclose(weight.numpy(), own.numpy(), atol=1e-6)
    assert report.curve[0][1] == pytest.approx(report.curve[1][1], rel=1e-3)


def test_other_trainings_have_other_files(tmp_path, monkeypatch):
    files = []

    def note(texts, *, state_file, **options):
        files.append(state_file)
        raise UserError("enough")

    monkeypatch.setattr(pretraining, "pretrain", note)
    others = [{"steps": 31}, {"start": ModelSizes()}, {"texts": TEXTS[:-1]}, {"seed": 4}]
    for changes in ({}, {"progress": True}, *others):
        options = {"texts": TEXTS, "settings": {}, "progress": False, **OPTIONS, **changes}
        with pytest.raises(UserError, match="enough"):
            pretrain_into(tmp_path / "base", **options)
    assert files[0] == files[1] and len({*files}) == 5


@pytest.mark.exhaustive
def test_few_tokens_are_one_window():
    few = trained(["a b", "c"], steps=1)[2]
    assert few.num_texts == 1 and few.num_tokens < 12
    assert np.isfinite(few.curve[-1][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number > 0, got nan"),
        ({"learning_rate": 1e30}, r"the loss is \w+ at step \d+: learning_rate=1e\+30 is too high"),
        ({"texts": ["a", " "]}, "at least 2 texts that are not blank are needed, got 1"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(UserError, match=message):
        trained(**options)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"vocab_size": 256}, "vocab_size must be a whole number >= 257, got 256"),
        ({"num_heads": 0}, "num_heads must be a whole number >= 1, got 0"),
        ({"positions": 1}, "positions must be a whole number >= 2, got 1"),
        ({"dim": 18}, "dim=18 is not a multiple of num_heads=4"),
    ],
)
def test_mistakes_in_sizes(sizes, message):
    with pytest.raises(UserError, match=message):
        ModelSizes(**sizes)


_SMALL = {
    "text_file": "lines.csv",
    "output_dir": "models/base",
    **{"vocab_size": 270, "num_layers": 1, "num_heads": 2, "dim": 16, "positions": 12},
    **{"steps": 3, "batch_size": 8},
}
_MORE = ["--text_file=more.jsonl", "--leave_out_users=u1"]
# What the second and the third command find is what the first has made.
COMMANDS = [
    ({}, _MORE, None),
    ({}, _MORE, None),
    ({"steps": 4}, _MORE, "models/base holds a run with other settings: steps was 3 and is now 4."),
    ({"text_file": None}, [], "--text_file: name at least one table of texts."),
    ({"text_column": "body"}, [], "there is no column 'body'; the columns are user, text; say by"),
    ({"leave_out_users": "u7"}, [], "--leave_out_users: 'u7' has no texts."),
    ({"output_dir": "full"}, [], "full has files, but no base model of this program"),
    ({"output_dir": "lines.csv"}, [], "lines.csv"),
    ({"learning_rate": "0"}, [], "learning_rate must be a finite number > 0, got 0.0"),
    ({"dim": 15}, [], "dim=15 is not a multiple of num_heads=2"),
]


@pytest.mark.exhaustive
def test_the_command_makes_a_model_once_and_says_mistakes_in_a_line(tmp_path, run_commands):
    lines = ["user,text"] + [f"u{i % 3},the cat no {i}" for i in range(30)] + ["u0, "]
    (tmp_path / "lines.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "more.jsonl").write_text('{"text": "a dog", "user": "u3"}\n' * 4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    commands = []
    for changes, more, _ in COMMANDS:
        values = {**_SMALL, **({} if more else {"output_dir": "models/other"}), **changes}
        flags = [f"--{name}={value}" for name, value in values.items() if value is not None]
        commands.append(["pretrain", *flags, *more])
    modules = ["fedpersonal.suite.models.pretraining"]
    first, second, *others = run_commands(commands, modules=modules, cwd=tmp_path)
    output, errors, status = first
    assert not status, errors
    assert [line.split(",")[0] for line in errors.splitlines()] == [
        "training a tokenizer and encoding 24 texts",
        *(f"step {step}/3" for step in (1, 2, 3)),
    ]
    tables, perplexity, last = output.splitlines()[:2], *output.splitlines()[2:]
    assert tables == [
        "lines.csv: 20 texts; 1 rows with an empty 'text'; 10 rows of users left out",
        "more.jsonl: 4 texts",
    ]
    assert perplexity.startswith("1 held-out texts: perplexity per token 2")
    assert perplexity.endswith(" after training") and " before and " in perplexity
    assert last.startswith("3 steps in ") and last.endswith("; the base model is in models/base")
    assert not second[2] and second[:2] == ["The base model is in models/base already.\n", ""]
    for (changes, _, message), (_, errors, status) in zip(COMMANDS[2:], others):
        assert status == 2, (changes, errors)
        assert errors.startswith("error: ") and errors.count("\n") == 1, (changes, errors)
        assert message in errors, (changes, errors)
    base = tmp_path / "models" / "base"
    notes = json.loads((base / "pretraining.json").read_text())
    assert notes["settings"]["text_file"] == ["lines.csv", "more.jsonl"]
    assert notes["settings"]["leave_out_users"] == ["u1"] and notes["settings"]["dim"] == 16
    assert notes["report"]["num_texts"] == 23 and notes["report"]["steps"] == 3
    assert json.loads((base / "config.json").read_text())["n_positions"] == 12
    assert os.listdir(base.parent) == ["base"] and len(os.listdir(tmp_path)) == 4
