"""Table 2 and figures 2 and 3 in small: what is run, what is kept, what is written."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from experiments.papers.fedrecon.next_word_presets import PRESETS, NextWordPreset
from fedpersonal.tasks.next_word.choice import TextChoice
from fedpersonal.tasks.next_word.experiment import NextWordOptions
from fedpersonal.tasks.ratings.experiment import RatingOptions

from experiments.papers.fedrecon import figure2, figure3, next_word_runs, rating_runs, table2
from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.errors import UserError
from fedpersonal.simulation.run_folder import RunFolder

EMBEDDING, UNITS, PROJECTION, WORDS = 4, 6, 3, 100
TINY = NextWordPreset(
    "tiny",
    NextWordOptions(
        total_rounds=4,
        clients_per_round=3,
        client_learning_rate=0.5,
        server_learning_rate=0.05,
        local_epochs=1,
        reconstruction_epochs=1,
        reconstruction_learning_rate=1.0,
        finetuning_epochs=1,
        embedding_dim=EMBEDDING,
        lstm_units=UNITS,
        projection_dim=PROJECTION,
        rounds_per_eval=2,
        rounds_per_checkpoint=1,
    ),
    {
        "full_finetuning": {"finetuning_learning_rate": 0.3},
        "oov_finetuning": {"reconstruction_learning_rate": 0.7},
    },
)
CHOICE = TextChoice("generated", max_validation_clients=4)
ASKED = {"seeds": [0], "vocab_sizes": [WORDS, 5_000], "scale_rounds": 0.5, "isolated": False}


class Log:
    """Which rounds were trained and which methods evaluated, of `run` calls."""

    def __init__(self, patch):
        self.rounds, self.evaluated, self.fail_at = [], [], None
        train, evaluate = next_word_runs.train, next_word_runs._evaluate

        def log_training(experiment, folder):
            result = train(experiment, folder, progress=False)
            options = experiment.options
            self.rounds.append((options.algorithm, options.num_oov_buckets, result.rounds_run))
            return result

        def log_evaluation(experiment, weights, options):
            self.evaluated.append((options.algorithm, options.num_oov_buckets))
            if self.fail_at == len(self.evaluated):
                raise KeyboardInterrupt
            return evaluate(experiment, weights, options)

        patch.setattr(next_word_runs, "train", log_training)
        patch.setattr(next_word_runs, "_evaluate", log_evaluation)


@pytest.fixture(name="sweep", scope="module")
def _sweep(tmp_path_factory):
    """The folder and the table of a sweep stopped before one of its evaluations, and its logs."""
    folder = tmp_path_factory.mktemp("table2")
    with pytest.MonkeyPatch.context() as patch:
        first = Log(patch)
        first.fail_at = 4
        with pytest.raises(KeyboardInterrupt):
            table2.run(CHOICE, TINY, str(folder), **ASKED)
    with pytest.MonkeyPatch.context() as patch:
        second = Log(patch)
        markdown = table2.run(CHOICE, TINY, str(folder), **ASKED)
    return folder, markdown, first, second


def no_work(*args):
    raise AssertionError(f"a run was done again: {args[0].title}")


def test_an_interrupted_sweep_goes_on(sweep):
    _, _, first, second = sweep
    assert first.rounds == [("fed_yogi", 1, 2), ("fed_recon", 1, 2), ("fed_recon", 500, 2)]
    assert first.evaluated[2:] == [("fed_recon", 500), ("fed_recon_finetuning", 500)]
    assert second.rounds == [("fed_recon", 500, 0), ("oov_finetuning", 500, 2)]
    assert second.evaluated == [
        ("fed_recon_finetuning", 500),
        ("oov_finetuning", 500),
        ("full_finetuning", 500),
    ]


def test_a_finished_sweep_is_only_read(sweep, monkeypatch):
    folder, markdown, _, _ = sweep
    monkeypatch.setattr(next_word_runs, "_complete_run", no_work)
    assert table2.run(CHOICE, TINY, str(folder), **ASKED) == markdown
    # Another rate of fine-tuning asks for that evaluation alone; of training, for another folder.
    rates = {**TINY.changes, "full_finetuning": {"finetuning_learning_rate": 0.2}}
    changed = dataclasses.replace(TINY, changes=rates)
    with pytest.raises(AssertionError, match="OOV finetuning"):
        table2.run(CHOICE, changed, str(folder), **ASKED)
    options = dataclasses.replace(TINY.options, client_learning_rate=0.4)
    with pytest.raises(UserError, match="client_learning_rate was 0.5 and is now 0.4"):
        table2.run(CHOICE, dataclasses.replace(TINY, options=options), str(folder), **ASKED)


def test_communication_is_that_counted_by_hand(sweep):
    table = json.loads((sweep[0] / "table2.json").read_text())
    measured = {
        (row["algorithm"], row["num_oov_buckets"]): row["by_vocab_size"][str(WORDS)]
        for row in table["rows"]
    }
    assert len(measured) == 6
    for (algorithm, buckets), cell in measured.items():
        known = WORDS + 3
        ids = known + buckets
        lstm = 4 * UNITS * (EMBEDDING + UNITS + 1)
        size = known * EMBEDDING + lstm + (UNITS + 1) * PROJECTION + (PROJECTION + 1) * ids
        is_local = algorithm.startswith("fed_recon")
        size += 0 if is_local else buckets * EMBEDDING
        assert cell["communication"] == {
            "broadcast_parameters": size,
            "aggregated_parameters": size,
            "num_bytes": 8 * size,
            "formula": "2|g|" if is_local else "2|l| + 2|g|",
        }


def test_the_table_has_paper_beside_measured(sweep):
    folder, markdown, _, _ = sweep
    assert (folder / "table2.md").read_text() == markdown + "\n"
    title, *_ = markdown.splitlines()
    assert title == "# Table 2 on generated (a stand-in: the paper's figures are Stack Overflow's)"
    assert "Left out: vocabularies of 5,000 words" in markdown
    table = json.loads((folder / "table2.json").read_text())
    row = next(r for r in table["rows"] if r["algorithm"] == "full_finetuning")
    cell = row["by_vocab_size"][str(WORDS)]
    assert f"| Full finetuning (500 OOV)     | –            | {cell['accuracy']:.1f} " in markdown
    assert "±" not in markdown and cell["accuracy_sd"] is None  # It is of one seed.

    path = folder / "vocab_100" / "oov_finetuning_500_oov" / "seed_0"
    kept = json.loads((path / "test_full_finetuning.json").read_text())
    assert kept["options"]["finetuning_learning_rate"] == 0.3
    other = json.loads((path / "test_oov_finetuning.json").read_text())
    assert other["options"]["reconstruction_learning_rate"] == 0.7
    assert cell["accuracy"] == pytest.approx(100 * kept["test"]["accuracy_without_oov_or_eos"])
    before = kept["test"]["before"]["accuracy_without_oov_or_eos"]
    assert cell["accuracy_before"] == pytest.approx(100 * before)
    assert 0 <= cell["share_hurt"] <= 100


def test_the_papers_numbers_stand_beside_those_of_its_vocabularies(sweep):
    """As if the sizes of the runs had been the paper's."""
    runs = {
        (size, name, seed): run
        for (_, name, seed), run in plan_of(sweep[0]).runs.items()
        for size in table2.VOCAB_SIZES
    }
    plan = dataclasses.replace(plan_of(sweep[0]), vocab_sizes=table2.VOCAB_SIZES, runs=runs)
    rows = [
        {"by_vocab_size": {size: table2._measure(plan, row, size) for size in plan.vocab_sizes}}
        for row in table2.ROWS
    ]
    for row in rows:
        row["by_vocab_size"][1_000] |= {"accuracy": 12.34, "accuracy_sd": 0.56}
    _, table, *_ = table2._tables(table2.ROWS, {"rows": rows}, plan)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert lines[0][1:3] == ["1k, paper", "1k, measured"]
    assert lines[4][:4] == ["FedRecon (500 OOV)", "29.6", "12.3 ± 0.6", "28.1"]
    assert [line[5] for line in lines[2:]] == ["26.7", "26.4", "27.7", "27.9", "28.8", "28.6"]


def plan_of(folder, **changes):
    asked = {k: v for k, v in ASKED.items() if k != "isolated"}
    return table2.make_plan(table2.ROWS, CHOICE, TINY, str(folder), **{**asked, **changes})


def test_methods_that_train_differently_share_no_run(tmp_path):
    changes = {"full_finetuning": {"client_learning_rate": 0.1}}
    with pytest.raises(ValueError, match="train differently, by client_learning_rate"):
        table2.make_plan(
            table2.ROWS,
            CHOICE,
            dataclasses.replace(TINY, changes=changes),
            str(tmp_path),
            vocab_sizes=[WORDS],
            seeds=[0],
        )
    for preset in PRESETS.values():
        plan = table2.make_plan(
            table2.ROWS, CHOICE, preset, str(tmp_path), vocab_sizes=[WORDS], seeds=[0, 1]
        )
        assert len(plan.runs) == 8


def test_some_rows_are_taken_from_the_runs_of_all(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(next_word_runs, "_complete_run", no_work)
    rows = table2.choose_rows(["Full finetuning (500 OOV)", "FedYogi (1 OOV)"])
    assert [row.algorithm for row in rows] == ["fed_yogi", "full_finetuning"]
    table2.run(CHOICE, TINY, str(tmp_path), rows=rows, runs_dir=str(sweep[0]), **ASKED)
    everything, some = (
        {row["name"]: row for row in json.loads((folder / "table2.json").read_text())["rows"]}
        for folder in (sweep[0], tmp_path)
    )
    assert some == {row.name: everything[row.name] for row in rows}
    assert table2.choose_rows([]) == table2.ROWS
    with pytest.raises(UserError, match="'FedYogi' is no row of table 2; these are: FedYogi"):
        table2.choose_rows(["FedYogi"])


def test_too_few_words_for_anything_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="1,1.. distinct words, too few for a vocabulary of 5,000"):
        plan_of(tmp_path, vocab_sizes=[10_000, 5_000])


def test_figure2_draws_table_2s_runs(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(next_word_runs, "_complete_run", no_work)
    asked = {k: v for k, v in ASKED.items() if k != "vocab_sizes"}
    markdown = figure2.run(
        CHOICE, TINY, str(tmp_path), vocab_size=WORDS, runs_dir=str(sweep[0]), **asked
    )
    assert "a stand-in" in markdown.splitlines()[0]
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
    points = pd.read_csv(tmp_path / "figure2.csv")
    assert points["method"].unique().tolist() == [row.name for row in figure2.CURVES]
    table = json.loads((sweep[0] / "table2.json").read_text())
    for row in figure2.CURVES:
        cell = next(r for r in table["rows"] if r["name"] == row.name)["by_vocab_size"][str(WORDS)]
        own = points[points["method"] == row.name]
        # Evaluated after rounds 1 and 2, with 3 clients each, which receive and send.
        numbers = 2 * cell["communication"]["broadcast_parameters"]
        assert own["parameters"].tolist() == [3 * numbers, 6 * numbers]
        metrics = pd.read_csv(
            sweep[0] / "vocab_100" / row.run_name / "seed_0" / "metrics.csv", index_col="round"
        )
        expected = 100 * metrics["eval/accuracy_without_oov_or_eos"]
        assert own["accuracy"].tolist() == pytest.approx(expected.tolist())


def steps_of(options):
    return (
        options.reconstruction_epochs and options.max_reconstruction_steps,
        options.max_local_steps,
    )


def test_figure3_compares_steps_with_the_base(tmp_path, monkeypatch):
    """With runs that stand in for training and leave an accuracy told by their steps."""
    done, base = [], RatingOptions(max_reconstruction_steps=50, max_local_steps=50)

    def accuracy(options):
        reconstruction, update = steps_of(options)
        return 0.001 * (1 + min(reconstruction, 50)) * min(update, 50)

    def words(run, choice, config):
        done.append(run.title)
        RunFolder.open(run.path, config, ignore=run.may_differ)
        (run.path / "training.json").write_text("{}")
        for options in run.missing():
            run.write_test(options, {"accuracy_without_oov_or_eos": accuracy(options)})

    def ratings(run, load, config):
        if len(done) == 5:
            done.append("stopped")
            raise UserError("stopped")
        done.append(run.title)
        RunFolder.open(run.path, config, ignore=()).write_summary(
            {"test": {"accuracy": accuracy(run.options)}}
        )

    monkeypatch.setattr(next_word_runs, "_complete_run", words)
    monkeypatch.setattr(rating_runs, "_run", ratings)

    def run():
        return figure3.run(
            CHOICE,
            TINY,
            lambda: generate_ratings(num_users=20, num_items=20, max_ratings=20, seed=0),
            base,
            str(tmp_path),
            **ASKED,
        )

    with pytest.raises(UserError, match="ratings, seed 0, reconstruction steps 10: stopped"):
        run()
    markdown = run()
    # A base and five and four numbers of steps, of either task; one of them tried twice.
    assert len(done) == 2 * (1 + 5 + 4) + 1
    assert len(set(done)) == len(done)
    assert run() == markdown and len(done) == 21
    assert "a stand-in" in markdown.splitlines()[0] and "Left out:" in markdown
    assert "Ratings: synthetic (a stand-in: " in markdown

    assert (tmp_path / "figure3.png").read_bytes().startswith(b"\x89PNG")
    points = pd.read_csv(tmp_path / "figure3.csv")
    assert points["task"].unique().tolist() == ["100 words", "synthetic"]
    for task in ("100 words", "synthetic"):
        own = points[points["task"] == task].set_index(["panel", "steps"])["relative_accuracy"]
        assert own["reconstruction_steps"].tolist() == pytest.approx(
            [(1 + steps) / 51 for steps in (0, 1, 2, 5, 10)]
        )
        assert own["update_steps"].tolist() == pytest.approx([k / 50 for k in (1, 2, 5, 10)])


def test_steps_are_as_many_as_asked_for_even_of_little_data():
    reconstruction, update = figure3.PANELS
    none = reconstruction.options(0)
    assert none == {"reconstruction_epochs": 0, "max_reconstruction_steps": 1}
    for steps in (1, 2, 5, 10):
        for panel in (reconstruction, update):
            # A client with a single batch takes as many passes.
            assert set(panel.options(steps).values()) == {steps}


def test_the_spread_is_over_seeds():
    assert table2.mean_and_deviation([0.5]) == (0.5, None)
    mean, deviation = table2.mean_and_deviation([1.0, 2.0, 6.0])
    assert (mean, deviation) == (3.0, pytest.approx(np.std([1, 2, 6], ddof=1)))
