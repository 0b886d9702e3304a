"""Other parts beside FedPerC, by real runs around one tiny base model."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from experiments.papers.fedperc import base_model, client_losses, parts
from experiments.papers.reproduction import choose_rows
from fedpersonal.algorithms.method import Layers
from fedpersonal.evaluation.paired_bootstrap import paired_bootstrap
from fedpersonal.files import read_json
from fedpersonal.tasks.utterances import task as utterance_task
from fedpersonal.tasks.utterances.methods import FEDERATED

ROWS = ("Shared bias", "Personal bias")


@pytest.fixture(name="done", scope="module")
def _done(tmp_path_factory, reproduction_in):
    """The folder of few rows and its page; what the base alone comes to by its test."""
    folder, found = tmp_path_factory.mktemp("parts"), []
    measure = client_losses.measure_losses

    def measure_both(run, experiment, trained, *, base_alone=False):
        if base_alone:
            found.append(base_model.test_base_model(run, experiment, trained))
        return measure(run, experiment, trained, base_alone=base_alone)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utterance_task, "SAMPLES", (None,))
        patch.setattr(parts, "measure_losses", measure_both)
        patch.setitem(parts._SHARED, "Personal bias", "Shared bias")
        report = parts.run(reproduction_in(folder, rows=ROWS))
        yield folder, report.write(folder), found[0]


def summary_of(folder, name):
    return read_json(folder / name / "seed_0" / "summary.json", checked=True)


def test_perplexities_are_those_of_the_runs_and_of_the_base(done):
    folder, page, base = done
    cells = json.loads((folder / "fedperc_parts.json").read_text())["tables"]["perplexity"]
    assert list(cells) == ["FedPerC", *ROWS, "Base model"]
    for row, name in zip(cells, ("fedperc", "shared_bias", "personal_bias")):
        expected = summary_of(folder, name)["by_samples"]["all"]["perplexity"]
        assert cells[row]["perplexity"]["mean"] == pytest.approx(expected, rel=1e-5)
        assert f"{expected:,.2f} " in page
    alone = base["by_samples"]["0"]["perplexity"]
    assert cells["Base model"]["perplexity"]["mean"] == pytest.approx(alone, rel=1e-5)


def test_new_lines_are_those_that_are_not_among_the_texts_for_training(done, reproduction_in):
    folder, page, _ = done
    task = parts.TASK
    options = task.options(**reproduction_in(folder).values(task, "tv_shows_{}"))
    source = task.read(options)
    data = task.split(source, options)
    query = data.test.query

    def lines(dataset):
        texts = data.base.tokenizer.batch_decode([row[row >= 0] for row in dataset.labels])
        return [text.replace("<|endoftext|>", "").lower().rstrip(".!?") for text in texts]

    known = set(lines(data.train))
    is_new = np.array([line not in known for line in lines(query)])
    assert 0 < is_new.sum() < len(is_new)
    found = summary_of(folder, "losses_shared_bias")
    counted = (query.labels[:, 3:] >= 0).sum(1)
    for name, kept in (("all", np.ones_like(is_new)), ("new", is_new)):
        tokens = np.bincount(query.example_clients, counted * kept, query.num_clients)
        assert found[name]["tokens"] == tokens.tolist()
    assert found["repeated"] == pytest.approx(1 - is_new.mean())
    assert f"{100 * found['repeated']:.1f} % of all test utterances are repeated" in page


def test_case_and_marks_do_not_make_a_line_new(tiny_base, make_dataset):
    said = ["Oh, my God!", "oh my god", "It's 5 - no?", "Oh my Gods."]
    encoded = [tiny_base.tokenizer(text)["input_ids"] for text in said]
    longest = max(map(len, encoded))
    labels = [ids + [-1] * (longest - len(ids)) for ids in encoded]
    dataset = make_dataset([({"context": np.zeros(4)}, np.array(labels, np.int32))])
    assert client_losses.words_of(dataset, tiny_base.tokenizer) == [
        ("oh", "my", "god"),
        ("oh", "my", "god"),
        ("it's", "5", "no"),
        ("oh", "my", "gods"),
    ]


def test_bytes_are_those_of_the_parts(done, tiny_base):
    cells = json.loads((done[0] / "fedperc_parts.json").read_text())["tables"]["perplexity"]
    bias = 4 * tiny_base.config.vocab_size
    assert [cells[row]["kept"]["mean"] for row in ROWS] == [0, bias]
    for way in ("received", "sent"):
        shared, own = (cells[row][way]["mean"] for row in ROWS)
        assert shared - own == bias and own < 100
    assert "kept" not in cells["Base model"]


def test_differences_are_of_the_same_users(done):
    folder, page, _ = done
    ours, others = (
        summary_of(folder, f"losses_{name}")["all"] for name in ("personal_bias", "fedperc")
    )
    tokens = np.array(ours["tokens"])
    first, second = (np.stack([one["loss"], tokens], axis=-1) for one in (ours, others))
    found = paired_bootstrap(first, second)
    ratio = math.exp((sum(ours["loss"]) - sum(others["loss"])) / tokens.sum())
    assert math.exp(found.difference) == pytest.approx(ratio)
    low, high = (100 * math.expm1(end) for end in (found.low, found.high))
    assert f"{100 * (ratio - 1):+.1f} ({low:+.1f} to {high:+.1f})" in page


def test_own_parts_are_compared_with_what_is_shared_alone(done):
    cells = json.loads((done[0] / "fedperc_parts.json").read_text())["tables"]["paired"]
    assert [row for row, own in cells.items() if "than the shared part" in own] == ["Personal bias"]
    names = ("losses_personal_bias", "losses_shared_bias")
    own, shared = (summary_of(done[0], name)["all"] for name in names)
    ratio = math.exp((sum(own["loss"]) - sum(shared["loss"])) / sum(own["tokens"]))
    told = cells["Personal bias"]["than the shared part"]["mean"]
    assert told.startswith(f"{100 * (ratio - 1):+.1f} (")
    known = {row.name for row in parts.ROWS}
    assert known.issuperset({*parts._SHARED, *parts._SHARED.values()})


def test_every_part_has_a_row():
    rows = {row.values["algorithm"] for row in parts.ROWS}
    assert {method.name for method in FEDERATED if method.parts} <= rows
    assert len({parts._folder(row.name) for row in parts.ROWS}) == len(parts.ROWS)


def test_own_parts_may_learn_at_a_rate_of_their_own():
    options = parts.TASK.options(
        algorithm="meta_learning_bias", client_learning_rate=0.25, local_rate_factor=4.0
    )
    phase = parts.TASK.method(options).build(options, Layers()).last_phase
    optimizers = (phase.optimizer, phase.optimizers["local"])
    states = [optimizer.initialize(tf.TensorSpec([1])) for optimizer in optimizers]
    assert [float(state["learning_rate"]) for state in states] == [0.25, 1.0]


def test_each_row_can_be_asked_for_by_name():
    names = ",".join(row.name for row in parts.ROWS).split(",")

    assert choose_rows(parts.ROWS, names, table="fedperc_parts") == list(parts.ROWS)
