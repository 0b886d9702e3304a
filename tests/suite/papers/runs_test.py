"""Real jobs in small, end to end: what is trained, shared, measured, and not done again."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.statistics import paired_bootstrap
from fedpersonal.files import read_json
from fedpersonal.runs.folder import RunFolder
from fedpersonal.suite.papers import (
    fedperc,
    fedperc_data,
    fedperc_measures,
    fedrecon_data,
    jobs,
    next_word,
    privacy,
    ratings,
)
from fedpersonal.suite.papers.reproduction import Reproduction, Row
from fedpersonal.suite.tasks import running as experiment_run
from fedpersonal.suite.tasks.next_word.task import TASK as WORDS
from fedpersonal.suite.tasks.utterances import task as utterance_task

STANDARD, FINETUNED = "FedAvg + StandardEval", "FedAvg + fine-tuning (seen users)"
UNTRAINED, CLIPPED = privacy.UNTRAINED.name, privacy.CLIPPED.name


def summary_of(path):
    return read_json(path / "summary.json", checked=True)


def cells_of(folder, name, table):
    return json.loads((folder / f"{name}.json").read_text())["tables"][table]


@pytest.fixture(name="table1", scope="module")
def _table1(few_ratings, tmp_path_factory):
    """Table 1 that was stopped before its second training: what is asked, and what was trained."""
    folder, trained = tmp_path_factory.mktemp("table1"), []
    given = {"ratings_file": few_ratings, "embedding_dim": 2, "compile": False}
    rows = [STANDARD, FINETUNED]
    asked = Reproduction(folder, [3, 4], scale_rounds=0.002, options=given, rows=rows)
    train = experiment_run.run_experiment

    def log(experiment, *args, **options):
        if len(trained) == 1:
            trained.append("stopped")
            raise KeyboardInterrupt
        trained.append((experiment.options.method, experiment.options.seed))
        return train(experiment, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_run, "run_experiment", log)
        with pytest.raises(KeyboardInterrupt):
            ratings.table1(asked)
        assert not (folder / "table1.md").exists()
        ratings.table1(asked).write(folder)
    return asked, trained


@pytest.mark.exhaustive
def test_a_stopped_table_goes_on_and_trainings_are_shared(table1):
    asked, trained = table1
    # Both seeds' ratings are split by time, then at random.
    split = [("fed_avg", 3), ("fed_avg", 4)]
    assert trained == [split[0], "stopped", split[1], *split]
    folder = asked.output_dir
    seen = cells_of(folder, "table1", "seen")
    own, other = (
        folder / name for name in ("fedavg_fine-tuning_seen_users", "fedavg_standardeval")
    )
    for number, seed in enumerate(("seed_3", "seed_4")):
        shared, trainer = summary_of(own / seed), summary_of(other / seed)
        assert shared["trained_by"] == "fed_avg"
        assert shared["train_wall_seconds"] == trainer["train_wall_seconds"]
        assert seen[FINETUNED]["RMSE"]["values"][number] == shared["test"]["rmse"]
        assert seen[STANDARD]["RMSE"]["values"][number] == trainer["test"]["rmse"]
        # The same weights, personalised otherwise.
        assert shared["test"]["before"]["rmse"] == trainer["test"]["rmse"]
        assert shared["test"]["rmse"] != trainer["test"]["rmse"]
        clients = pd.read_csv(own / seed / "per_client.csv")
        total = np.average(clients["rmse_after"] ** 2, weights=clients["num_examples"])
        assert np.sqrt(total) == pytest.approx(shared["test"]["rmse"], rel=1e-5)


@pytest.mark.exhaustive
def test_a_shared_training_gives_what_an_own_one_does(table1, tmp_path):
    """Fine-tuning after a training of its own, to the bit."""
    asked, _ = table1
    (row,) = (row for row in fedrecon_data.RATING_ROWS if row.name == FINETUNED)
    alone = asked.replace(output_dir=tmp_path, seeds=[3])
    own = alone.jobs(ratings.TASK, row, "alone")
    jobs.complete(own, alone.read(ratings.TASK, row.preset).describe())
    shared = asked.output_dir / "fedavg_fine-tuning_seen_users/seed_3"
    pd.testing.assert_frame_equal(RunFolder.read(shared).per_client, own[0].record.per_client)
    assert own[0].summary["test"] == summary_of(shared)["test"]


@pytest.mark.exhaustive
def test_what_is_done_is_only_read_and_other_options_are_refused(table1, monkeypatch, capsys):
    asked, _ = table1
    page = (asked.output_dir / "table1.md").read_text()
    monkeypatch.setattr(jobs, "_work", lambda job, about: pytest.fail(job.title))
    assert ratings.table1(asked).write(asked.output_dir) + "\n" == page
    assert capsys.readouterr().out.count("done before") == 4 + 8
    for name, value in (("embedding_dim", 3), ("client_learning_rate", 0.4)):
        other = asked.replace(options={**asked.options, name: value})
        with pytest.raises(UserError, match=f"{name} was .* and is now {value}"):
            ratings.table1(other)
    # What only a shared job reads asks for that job alone.
    (row,) = (row for row in fedrecon_data.RATING_ROWS if row.name == FINETUNED)
    other = dataclasses.replace(row, values={**row.values, "finetuning_learning_rate": 0.1})
    with pytest.raises(UserError, match="seen_users.* finetuning_learning_rate"):
        jobs.check_folders(asked.jobs(ratings.TASK, other, "fedavg_fine-tuning_seen_users"))


@pytest.mark.exhaustive
def test_models_with_other_variables_share_no_training(table1):
    """Such as an embedding of users, of documents, that only one of two methods has."""
    asked, _ = table1
    (row,) = (row for row in fedrecon_data.RATING_ROWS if row.name == STANDARD)
    job = asked.jobs(ratings.TASK, row, "fedavg_standardeval")[0]
    values = {**job.values, "embedding_dim": 5}
    path = asked.output_dir / "other"
    other = dataclasses.replace(job, path=path, trained_by=job, values=values)
    with pytest.raises(ValueError, match="fed_avg and fed_avg have other variables"):
        jobs.complete([other], asked.read(ratings.TASK, row.preset).describe())


def test_methods_that_train_differently_share_no_training():
    asked = Reproduction(pathlib.Path("nowhere"), preset="quick")
    row = fedrecon_data.WORD_ROWS[3]
    changes = [
        {"client_learning_rate": 0.1},
        {"server_learning_rate": 0.1},
        {"num_oov_buckets": 5},
        {"total_rounds": 7},
        {"method": "fed_recon"},
        {"method": "fed_prox"},
        {"method": "fed_avg_finetuning", "finetuning_epochs": 9},
        {"method": "fed_avg"},
    ]
    rows = {n: asked.jobs(WORDS, row, str(n), **own) for n, own in enumerate([{}, *changes])}
    (first,), *others = jobs.share_trainings(rows).values()
    assert [own.trained_by is first for (own,) in others] == [False] * 6 + [True, True]


@pytest.mark.exhaustive
def test_the_initial_model_is_tested_beside_the_guesses(few_ratings, tmp_path):
    given = {"ratings_file": few_ratings, "embedding_dim": 2, "clients_per_round": 4}
    given["compile"] = False
    rows = [UNTRAINED, CLIPPED]
    asked = Reproduction(tmp_path, [3], scale_rounds=0.02, options=given, rows=rows)
    privacy.run(asked).write(tmp_path)
    cells = cells_of(tmp_path, "dp_table", "test")
    initial, clipped = (
        summary_of(tmp_path / name.replace(": ", "_").replace(" ", "_") / "seed_3") for name in rows
    )
    assert (initial["rounds"], clipped["rounds"]) == (0, 2)
    assert initial["test"]["rmse"] != clipped["test"]["rmse"]
    for name, summary in ((UNTRAINED, initial), (CLIPPED, clipped)):
        assert cells[name]["RMSE"]["values"] == [summary["test"]["rmse"]]
        for guess, found in summary["test"]["guesses"].items():
            if f"Baseline: {guess}" in cells:
                assert cells[f"Baseline: {guess}"]["RMSE"]["values"] == [
                    pytest.approx(found["rmse"])
                ]
    assert initial["test"]["guesses"] == clipped["test"]["guesses"] != {}
    assert len(cells) == 2 + 6


@pytest.fixture(name="parts", scope="module")
def _parts(tmp_path_factory, few_utterances):
    """The folder of FedPerC and a part with which it is compared, and its page."""
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utterance_task, "SAMPLES", (1, None))
        patch.setitem(fedperc_data.SHARED, "Personal bias", "FedPerC")
        asked = few_utterances(folder, rows=["Personal bias"])
        yield asked, fedperc.parts(asked).write(folder)


@pytest.mark.exhaustive
def test_parts_are_those_of_the_runs(parts, tiny_base):
    asked, page = parts
    folder = asked.output_dir
    cells = cells_of(folder, "fedperc_parts", "perplexity")
    for row, name in (("FedPerC", "fedperc"), ("Personal bias", "personal_bias")):
        expected = summary_of(folder / name / "seed_0")["by_samples"]["all"]["perplexity"]
        assert cells[row]["perplexity"]["mean"] == pytest.approx(expected, rel=1e-5)
        assert f"{expected:,.2f} " in page
    assert cells["Personal bias"]["kept"]["mean"] == 4 * tiny_base.config.vocab_size
    assert cells["Personal bias"]["sent"]["mean"] < 100 and "kept" not in cells["Base model"]
    ours, others = (summary_of(folder / f"losses_{name}/seed_0")["all"] for name in _NAMES)
    tokens = np.array(ours["tokens"])
    found = paired_bootstrap(*(np.stack([one["loss"], tokens], -1) for one in (ours, others)))
    ratio = math.exp((sum(ours["loss"]) - sum(others["loss"])) / tokens.sum())
    assert math.exp(found.difference) == pytest.approx(ratio)
    low, high = (100 * math.expm1(end) for end in (found.low, found.high))
    told = cells_of(folder, "fedperc_parts", "paired")["Personal bias"]["than the shared part"]
    assert told["mean"] == f"{100 * (ratio - 1):+.1f} ({low:+.1f} to {high:+.1f})"


_NAMES = ("personal_bias", "fedperc")


@pytest.mark.exhaustive
def test_new_lines_are_those_that_are_not_among_the_texts_for_training(parts):
    asked, page = parts
    options = fedperc.TASK.options(**asked.values(fedperc.TASK, "tv_shows_{}"))
    data = fedperc.TASK.split(fedperc.TASK.read(options), options)
    query = data.test.query

    def lines(dataset):
        texts = data.base.tokenizer.batch_decode([row[row >= 0] for row in dataset.labels])
        return [text.replace("<|endoftext|>", "").lower().rstrip(".!?") for text in texts]

    known = set(lines(data.train))
    is_new = np.array([line not in known for line in lines(query)])
    assert 0 < is_new.sum() < len(is_new)
    found = summary_of(asked.output_dir / "losses_fedperc/seed_0")
    counted = (query.labels[:, 3:] >= 0).sum(1)
    for name, kept in (("all", np.ones_like(is_new)), ("new", is_new)):
        tokens = np.bincount(query.example_clients, counted * kept, query.num_clients)
        assert found[name]["tokens"] == tokens.tolist()
    assert found["repeated"] == pytest.approx(1 - is_new.mean())
    assert f"{100 * found['repeated']:.1f} % of all test utterances are repeated" in page


@pytest.mark.exhaustive
def test_what_tables_measure_after_a_training(parts):
    """The base by itself is the guess; own embeddings those trained; a pass takes some time."""
    asked, _ = parts
    own = asked.jobs(fedperc.TASK, fedperc_data.FEDPERC_ROW, "fedperc", evaluate_on="seen")
    experiment, folder = jobs.open_job(own[0])
    folder.close()
    from fedpersonal.training.loaded import load_run

    summary = summary_of(own[0].path)
    with load_run(own[0].path).trained as trained:
        alone = fedperc_measures.test_base_model(own[0], experiment, trained)
        whose = fedperc_measures.measure_specificity(own[0], experiment, trained)
        times = fedperc_measures.time_passes(own[0], experiment, trained, repeats=2)
    found = alone["by_samples"]["0"]
    guess = summary["test"]["guesses"]["the base model alone"]
    assert guess == pytest.approx({name: found[name] for name in guess})
    assert "1 layers of 8" in alone["base"] and not alone["pretrained_here"]
    spread = summary["by_samples"]["0"]["percentiles"]["loss"]
    for percentile in (5, 50, 95):
        expected = spread[f"p{percentile}"]
        assert np.percentile(whose["own_loss"], percentile) == pytest.approx(expected, rel=1e-5)
    # 4 users of the one context, 3 of the other.
    assert (whose["num_users"], whose["num_pairs"]) == (7, 4 * 3 + 3 * 2)
    assert np.shape(whose["others_losses"]) == (7, 3)
    assert list(times) == list(fedperc_data.PAPER_PASSES)
    assert all(0 < own["train"]["median"] < 60_000 for own in times.values())


def test_data_that_cannot_be_split_are_refused_before_the_first_job(tmp_path, few_utterances):
    lines = [
        json.dumps({"user": user, "text": f"some more words {n}", "context": "c"})
        for user in "ab"
        for n in range(9)
    ]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    asked = few_utterances(tmp_path / "out")
    asked = asked.replace(options={**asked.options, "text_file": str(tmp_path / "two.jsonl")})
    with pytest.raises(UserError, match="2 users; at least 3 are needed"):
        fedperc.tables(asked)
    assert not (tmp_path / "out").exists()


def test_too_few_words_for_anything_is_the_users_mistake(tmp_path):
    asked = Reproduction(tmp_path, vocab_sizes=[10_000, 5_000])
    with pytest.raises(UserError, match="1,1.. distinct words, too few for a vocabulary of 5,000"):
        next_word.table2(asked)


def test_steps_are_as_many_as_asked_for_even_of_little_data():
    asked = Reproduction(pathlib.Path("nowhere"))
    row = Row("a row", "movielens_paper", {})
    for (panel, steps), (job,) in next_word.vary(asked, ratings.TASK, row, "folder").items():
        # A client with a single batch takes as many passes; without a pass there is no step.
        options = fedrecon_data.PANELS[panel][1]
        assert [getattr(job.options, n) for n in options] == [steps, max(1, steps)]


def test_nothing_right_is_nothing_to_compare_with():
    class Nothing:
        summary = {"test": {"accuracy": 0.0}}

    with pytest.raises(UserError, match="ratings: the base run predicts nothing right"):
        next_word.relative("ratings", "accuracy", [Nothing()], [])
