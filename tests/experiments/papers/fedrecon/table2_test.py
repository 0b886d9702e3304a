"""Table 2 and figures 2 and 3 of FedRecon in small, by real runs: what is run, kept and written."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pandas as pd
import pytest

from experiments.papers import runs as run_module
from experiments.papers.fedrecon import figure2, figure3, table1, table2, word_tables
from experiments.papers.reproduction import Reproduction, Row
from fedpersonal.errors import UserError
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks import experiment_run

EMBEDDING, UNITS, PROJECTION, WORDS = 4, 6, 3, 100
GIVEN = {
    "clients_per_round": 3,
    "embedding_dim": EMBEDDING,
    "lstm_units": UNITS,
    "projection_dim": PROJECTION,
    "max_validation_clients": 4,
    "rounds_per_checkpoint": 1,
}
# Of the quick preset's 500 rounds, evaluated every 50.
TWO_ROUNDS = 0.004


def reproduction_in(folder, **changes):
    asked = {"scale_rounds": TWO_ROUNDS, "vocab_sizes": [WORDS, 5_000], "isolated": False}
    given = {**GIVEN, **changes.pop("given", {})}
    return Reproduction(folder, given=given, **{**asked, **changes})


@pytest.fixture(name="done", scope="module")
def _done(tmp_path_factory):
    """A folder that was stopped before its fourth run, its page, and what was trained."""
    folder, trained = tmp_path_factory.mktemp("table2"), []
    train = experiment_run.run_experiment

    def log(built, *args, **options):
        if len(trained) == 3:
            trained.append("stopped")
            raise KeyboardInterrupt
        trained.append((built.options.algorithm, built.options.num_oov_buckets))
        return train(built, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_run, "run_experiment", log)
        with pytest.raises(KeyboardInterrupt):
            table2.run(reproduction_in(folder))
        assert not (folder / "table2.md").exists()
        page = table2.run(reproduction_in(folder)).write(folder)
    return folder, page, trained


@pytest.fixture(name="no_work")
def _no_work(monkeypatch):
    def work(run, about):
        raise AssertionError(f"a run was done again: {run.title}")

    monkeypatch.setattr(run_module, "_work", work)


def table2_source():
    return table2.TASK.read(table2.TASK.options(**GIVEN))


def summary_of(folder, algorithm, buckets=500):
    path = folder / f"vocab_{WORDS}" / f"{algorithm}_{buckets}_oov" / "seed_0" / "summary.json"
    return json.loads(path.read_text())


def cells_of(folder, name, table):
    return json.loads((folder / f"{name}.json").read_text())["tables"][table]


def test_an_interrupted_reproduction_goes_on_and_trainings_are_shared(done):
    folder, _, trained = done
    first = [("fed_yogi", 1), ("fed_recon", 1), ("fed_recon", 500)]
    assert trained == [*first, "stopped", ("embedding_finetuning", 500)]
    for algorithm, by in (
        ("fed_avg_finetuning", "embedding_finetuning"),
        ("fed_recon_finetuning", "fed_recon"),
        ("fed_yogi", "embedding_finetuning"),
    ):
        own, other = summary_of(folder, algorithm), summary_of(folder, by)
        assert (own["algorithm"], own["trained_by"]) == (algorithm, by)
        assert own["train_wall_seconds"] == other["train_wall_seconds"]
        # The same weights, personalised otherwise.
        assert own["test"]["loss"] != other["test"]["loss"]
    assert own["test"]["loss"] == other["test"]["before"]["loss"]
    shared, alone = (
        summary_of(folder, f"{a}_finetuning")["test"] for a in ("fed_avg", "embedding")
    )
    assert shared["before"] == alone["before"]


def test_a_shared_training_gives_what_an_own_one_does(done, tmp_path):
    """Fine-tuning after a training of its own, to the bit."""
    (row,) = table2.choose_rows(table2.ROWS, ["Full finetuning (500 OOV)"], table="table 2")
    asked = reproduction_in(tmp_path).with_preset(quick=True)
    runs = asked.runs(table2.TASK, row, "alone", vocab_size=WORDS)
    run_module.complete(runs, {}, isolated=False)
    shared = done[0] / f"vocab_{WORDS}" / "fed_avg_finetuning_500_oov" / "seed_0"
    pd.testing.assert_frame_equal(RunFolder.read(shared).per_client, runs[0].record.per_client)
    own, other = runs[0].summary, summary_of(done[0], "fed_avg_finetuning")
    for name in ("test", "is_personalised"):
        assert own[name] == other[name]


def test_a_finished_reproduction_is_only_read(done, no_work):
    folder, page, _ = done
    assert table2.run(reproduction_in(folder)).write(folder) == page
    assert (folder / "table2.md").read_text() == page + "\n"
    # What only a shared run reads asks for that run alone; of training, for another folder.
    with pytest.raises(UserError, match="fed_avg_finetuning_500_oov.* finetuning_learning_rate"):
        table2.run(reproduction_in(folder, given={"finetuning_learning_rate": 0.2}))
    with pytest.raises(UserError, match="client_learning_rate was 1.0 and is now 0.4"):
        table2.run(reproduction_in(folder, given={"client_learning_rate": 0.4}))


def test_communication_is_that_counted_by_hand(done):
    table = cells_of(done[0], "table2", "communication")
    assert len(table) == 7
    for row in (*table2.PAPER_ROWS, table2.ROWS[6]):
        algorithm, buckets = row.values.values()
        known = WORDS + 3
        ids = known + buckets
        lstm = 4 * UNITS * (EMBEDDING + UNITS + 1)
        size = known * EMBEDDING + lstm + (UNITS + 1) * PROJECTION + (PROJECTION + 1) * ids
        is_local = algorithm.startswith("fed_recon")
        size += 0 if is_local else buckets * EMBEDDING
        cells = table[row.name]
        assert cells[f"{WORDS}, numbers"]["mean"] == 2 * size
        assert cells[f"{WORDS}, MB"]["mean"] == pytest.approx(8 * size / 1e6)
        assert cells["formula"]["mean"] == ("2|g|" if is_local else "2|l| + 2|g|")
        assert cells["formula"]["published"] == row.published.get("formula")
        assert row.published.get("formula") in (None, cells["formula"]["mean"])


def test_the_page_has_the_runs_figures(done):
    folder, page, _ = done
    heading = f"# Table 2 for {WORDS} words on generated (a stand-in: the paper's figures are Stack"
    assert page.startswith(heading)
    assert "Left out: vocabularies of 5,000 words; the training users have 1,1" in page
    # It is of one seed.
    assert "a single seed, hence no standard deviation" in page and "±" not in page
    test = summary_of(folder, "fed_avg_finetuning")["test"]
    name, metric = "Full finetuning (500 OOV)", "accuracy_without_oov_or_eos"
    measured = 100 * test[metric]
    assert cells_of(folder, "table2", "accuracy")[name][f"{WORDS}"]["values"] == [measured]
    assert f"| {name}     | {measured:.1f}" in page
    before = cells_of(folder, "table2", "before")[name]
    assert before[f"{WORDS}, before"]["mean"] == 100 * test["before"][metric]
    assert before[f"{WORDS}, hurt"]["mean"] == 100 * test["share_hurt"]


def test_counts_of_words_are_of_the_runs_targets(done):
    folder = done[0]
    path = folder / f"vocab_{WORDS}" / "fed_recon_500_oov" / "seed_0" / "per_client.csv"
    clients = pd.read_csv(path)
    for row in table2.CONTROLS:
        (own,) = word_tables.count_words(
            reproduction_in(folder).with_preset(quick=True), table2_source(), [row], WORDS
        )[row.name]
        for column in ("client", "num_known_words", "num_after_personal_words"):
            assert own[column].tolist() == clients[column].tolist()
        known = own["num_known_words"]
        share = 100 * np.average(own["accuracy_among_known_after"], weights=known)
        cell = cells_of(folder, "table2", "accuracy_among_known")[row.name][f"{WORDS}"]
        assert cell["mean"] == pytest.approx(share) and share > 3


def test_counts_alone_train_nothing(tmp_path, no_work):
    names = ["Most frequent word", "Trigram counts (1 OOV)"]
    page = table2.run(reproduction_in(tmp_path, rows=names, vocab_sizes=[WORDS])).write(tmp_path)
    assert all(f"| {name}" in page for name in names) and "Communication" not in page


def test_differences_are_those_of_the_rows(done):
    folder = done[0]
    accuracy = cells_of(folder, "table2", "accuracy")
    found = cells_of(folder, "table2", f"{table2.METRIC}_differences")
    first, second = table2.REFERENCES
    for name, cells in found.items():
        for reference in {first, second} - {name}:
            cell = cells[f"{WORDS} − {reference}"]
            expected = accuracy[name][f"{WORDS}"]["mean"] - accuracy[reference][f"{WORDS}"]["mean"]
            assert cell["mean"] == pytest.approx(expected, abs=1e-5)
            low, high = cell["interval"]
            assert low <= cell["mean"] <= high
    assert f"{WORDS} − {first}" not in found[first]


def test_gains_are_of_what_follows_personal_words(done):
    folder, page, _ = done
    test = summary_of(folder, "fed_avg_finetuning")["test"]
    table = cells_of(folder, "table2", "personal_words")
    cells = table["Full finetuning (500 OOV)"]
    before, after = (test[f"personal_word_accuracy_{stage}"] for stage in ("before", "after"))
    assert cells[f"{WORDS}, before"]["mean"] == pytest.approx(100 * before)
    assert cells[f"{WORDS}, after"]["mean"] == pytest.approx(100 * after)
    assert cells[f"{WORDS}, gain"]["mean"] == pytest.approx(100 * (after - before))
    # Nothing is personalised.
    assert table["FedYogi (500 OOV)"][f"{WORDS}, gain"]["mean"] == 0
    assert set(table["Trigram counts (1 OOV)"]) == {f"{WORDS}, after"}
    path = folder / f"vocab_{WORDS}" / "fed_yogi_1_oov" / "seed_0" / "per_client.csv"
    number = pd.read_csv(path)["num_after_personal_words"].sum()
    assert number > 500 and f"There are {number:,} ({WORDS}) such targets" in page


def test_published_figures_stand_by_their_vocabulary():
    published = [[row.published[size] for size in ("1k", "5k", "10k")] for row in table2.PAPER_ROWS]
    assert published[2] == [29.6, 28.1, 27.7] and published[4] == [30.8, 29.2, 28.8]
    assert [row[2] for row in published] == [26.7, 26.4, 27.7, 27.9, 28.8, 28.6]


def test_presets_let_rows_share_trainings(tmp_path):
    for preset in ("quick", "paper"):
        plan = table2.make_plan(
            reproduction_in(tmp_path, seeds=[0, 1], preset=preset, vocab_sizes=[WORDS]),
            table2.PAPER_ROWS,
        )
        trainers = {run.trainer.path for runs in plan.runs[WORDS].values() for run in runs}
        assert len(trainers) == 2 * 4


def test_methods_that_train_differently_share_no_training(tmp_path):
    asked = reproduction_in(tmp_path).with_preset(quick=True)
    row = table2.ROWS[3]
    (run,), *others = (
        asked.runs(table2.TASK, row, name, **own)
        for name, own in (
            ("a", {}),
            ("client", {"client_learning_rate": 0.1}),
            ("server", {"server_learning_rate": 0.1}),
            ("buckets", {"num_oov_buckets": 5}),
            ("rounds", {"total_rounds": 7}),
            ("local", {"algorithm": "fed_recon"}),
            ("phases", {"algorithm": "fed_prox"}),
            ("fine-tuning", {"algorithm": "fed_avg_finetuning", "finetuning_epochs": 9}),
            ("nothing else", {"algorithm": "fed_avg"}),
        )
    )
    shared = run_module.share_training([run, *(other for (other,) in others)])
    assert [own.trained_by is run for own in shared] == [False] * 7 + [True, True]


def test_models_with_other_variables_share_no_training(done):
    """Such as an embedding of users, of documents, that only one of two methods has."""
    plan = table2.make_plan(reproduction_in(done[0]), table2.ROWS)
    (run,) = plan.runs[WORDS]["FedYogi (1 OOV)"]
    other = dataclasses.replace(
        run, path=done[0] / "other", trained_by=run, values={**run.values, "embedding_dim": 5}
    )
    with pytest.raises(ValueError, match="fed_yogi and fed_yogi have other variables"):
        run_module.complete([other], plan.source.describe(), isolated=False)


def test_some_rows_are_taken_from_the_runs_of_all(done, tmp_path, no_work):
    names = ["Full finetuning (500 OOV)", "FedYogi (1 OOV)"]
    table2.run(reproduction_in(tmp_path, rows=names, runs_dir=done[0])).write(tmp_path)
    some, every = (cells_of(folder, "table2", "accuracy") for folder in (tmp_path, done[0]))
    assert some == {name: every[name] for name in reversed(names)}
    with pytest.raises(UserError, match="'FedYogi' is no row of table 2; these are: FedYogi"):
        table2.run(reproduction_in(tmp_path, rows=["FedYogi"]))


def test_too_few_words_for_anything_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="1,1.. distinct words, too few for a vocabulary of 5,000"):
        table2.run(reproduction_in(tmp_path, vocab_sizes=[10_000, 5_000]))


def test_figure2_draws_table_2s_runs(done, tmp_path, no_work):
    folder = done[0]
    page = figure2.run(reproduction_in(tmp_path, runs_dir=folder)).write(tmp_path)
    assert "a stand-in" in page.splitlines()[0]
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
    points = pd.read_csv(tmp_path / "figure2.csv").query("table == 'points'")
    assert points["row"].unique().tolist() == [row.name for row in figure2.CURVES]
    sent = cells_of(folder, "table2", "communication")
    for row in figure2.CURVES:
        own = points[points["row"] == row.name]
        numbers = sent[row.name][f"{WORDS}, numbers"]["mean"]
        # Evaluated after rounds 1 and 2, with 3 clients each, in thousands.
        x = own["column"].astype(float)
        assert x.tolist() == pytest.approx([3 * numbers / 1e3, 6 * numbers / 1e3])
        algorithm, buckets = row.values.values()
        path = folder / f"vocab_{WORDS}" / f"{algorithm}_{buckets}_oov" / "seed_0" / "metrics.csv"
        expected = 100 * pd.read_csv(path)["eval/accuracy_without_oov_or_eos"]
        assert own["value"].tolist() == pytest.approx(expected.tolist())


def test_figure3_compares_steps_with_the_base(done, tmp_path, monkeypatch):
    """With a number of steps each; that of updates is the base's own, and so are its figures."""
    usual = {"reconstruction_epochs": 2, "max_reconstruction_steps": 2}
    usual.update(local_epochs=1, max_local_steps=1)
    panels = [
        dataclasses.replace(panel, steps=steps)
        for panel, steps in zip(figure3.PANELS, ((0,), (1,)))
    ]
    monkeypatch.setattr(figure3, "PANELS", panels)
    asked = reproduction_in(tmp_path, vocab_sizes=[WORDS], given=usual)
    page = figure3.run(asked).write(tmp_path)
    assert "Ratings: movielens-100k (a stand-in: the paper's are MovieLens-1M's), 4 rounds" in page
    assert (tmp_path / "figure3.png").read_bytes().startswith(b"\x89PNG")
    tables = json.loads((tmp_path / "figure3.json").read_text())["tables"]
    name = f"{WORDS} words"
    assert tables["client_update_steps"][name]["1"]["mean"] == pytest.approx(100)
    folder = tmp_path / f"vocab_{WORDS}"
    none, base = (
        json.loads((folder / path / "seed_0" / "summary.json").read_text())["test"][table2.METRIC]
        for path in ("reconstruction_steps_0", "fed_recon_500_oov")
    )
    assert tables["reconstruction_steps"][name]["0"]["mean"] == pytest.approx(100 * none / base)
    assert tables["base"][name]["accuracy, %"]["mean"] == 100 * base
    config = json.loads((folder / "reconstruction_steps_0/seed_0/config.json").read_text())
    options = config["options"]
    # Without a pass there is no step.
    assert (options["reconstruction_epochs"], options["max_reconstruction_steps"]) == (0, 1)


def test_steps_are_as_many_as_asked_for_even_of_little_data():
    asked = Reproduction(pathlib.Path("none"))
    row = Row("a row", "movielens_paper", {})
    for (title, steps), (run,) in figure3._vary(asked, table1.TASK, row, "folder").items():
        (panel,) = (panel for panel in figure3.PANELS if panel.title == title)
        # A client with a single batch takes as many passes.
        assert [getattr(run.options, n) for n in panel.options] == [steps, max(1, steps)]


def test_nothing_right_is_nothing_to_compare_with(done):
    class Nothing:
        summary = {"test": {"accuracy": 0.0}}

    line = figure3.Line("ratings", "accuracy", [Nothing()], {})
    with pytest.raises(UserError, match="ratings: the base run predicts nothing right"):
        line.relative(figure3.PANELS[0], 1)
