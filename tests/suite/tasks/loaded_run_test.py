"""A binary's run, opened again from its folder alone."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil

import numpy as np
import pytest

import fedpersonal as fp
from fedpersonal.report.comparison import read_tested
from fedpersonal.report.page import write_report
from fedpersonal.report.run import read_run
from fedpersonal.suite.tasks.find import all_tasks

TASKS = all_tasks()


# Ratings, labels and images; `contract_test` opens runs of the others.
@pytest.mark.exhaustive
@pytest.mark.parametrize("task", ["movielens", "reddit", "digits"])
def test_a_run_opens_with_its_model(tiny, task, tmp_path):
    finished = tiny.run(TASKS[task], method=tiny.main[task])
    experiment, options = finished.experiment, finished.experiment.options
    # A binary would have written its options.
    path = shutil.copytree(finished.path, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))
    (path / "config.json").unlink()
    (path / "metrics.csv").rename(tmp_path / "metrics.csv")
    fp.RunFolder.open(path, {"task": type(TASKS[task]).__module__, **options.values()})
    (tmp_path / "metrics.csv").rename(path / "metrics.csv")

    run = fp.load_run(path)
    assert run.summary == finished.summary and len(run.metrics) == 2
    with run.trained as trained:
        for name, value in finished.trained.weights.items():
            np.testing.assert_array_equal(trained.weights[name], value, err_msg=name)
        support, query = experiment.task.for_evaluation(trained.model, finished.data.validation)
        known = np.zeros(query.num_clients, bool)
        if experiment.has_kept(finished.data.validation):
            known, _ = trained.kept_by(query.client_ids)
        # What a program finds is what the binary found, also of clients that have kept nothing.
        for start in ("rebuilt", "updated") if task == "reddit" else ("kept",):
            results = trained.results(query, support=support, start=start)
            expected = experiment.evaluation(finished.data.validation, start=start)(trained)
            assert list(results.client_ids) == list(expected.client_ids)
            found, wanted = results.after["loss"], expected.after["loss"]
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
        client = int(np.flatnonzero(known & (query.counts > 0))[0]) if known.any() else 0
        features, labels = query.client(client)
        predictions = trained.predict(features, client=query.client_ids[client], support=support)
        assert len(predictions) == len(labels) and np.isfinite(predictions).all()
    with pytest.raises(
        fp.UserError, match="determines its model .*: pass only the folder to load_run"
    ):
        _ = fp.load_run(path, algorithm=experiment.algorithm).trained


@pytest.mark.exhaustive
def test_the_best_round_s_model_is_tested(tiny, tmp_path, not_compiled):
    """It is the model of a run that has ended there; the folder opens with it."""
    task = TASKS["movielens"]
    options = {
        "method": "furl", "evaluate_on": "seen", "client_learning_rate": 1.0,
        "rounds_per_eval": 1, "total_rounds": 12, "clients_per_round": 3,
    }  # fmt: skip
    watched = tiny.build(task, best="rmse", early_stopping=2, **options)
    chosen = tiny.run_in(tmp_path / "best", watched)
    told = chosen.summary["validation"]
    values = [float(row["eval/rmse"]) for row in chosen.rounds]
    best = 1 + int(np.argmin(values))
    assert told["best_round"] == told["tested_round"] == best
    assert told["last_round"] == len(values) == chosen.summary["rounds"] == best + 2 < 12
    assert "not improved" in told["stopped"]
    page = (chosen.path / "report.html").read_text(encoding="utf-8")
    (said,) = re.findall('id="validation">(.*?)<', page)
    assert f"{values[-1] - values[best - 1]:.4f} units of the rating worse; the model of" in said

    short = tiny.run_in(tmp_path / "short", tiny.build(task, **{**options, "total_rounds": best}))
    assert {**chosen.test} == {**short.test}
    with watched.trainer.fit(rounds=best, progress=False) as expected:
        with fp.load_run(chosen.path).trained as loaded:
            for name, value in expected.weights.items():
                np.testing.assert_array_equal(loaded.weights[name], value, err_msg=name)
            if expected.kept_by:
                names = watched.data.train.client_ids.tolist()
                (known, own), (wanted, values) = loaded.kept_by(names), expected.kept_by(names)
                np.testing.assert_array_equal(known, wanted)
                for name, value in values.items():
                    np.testing.assert_array_equal(own[name][known], value[known], err_msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"best": "rsme"},
            "--best=rsme: validation has no such metric; it has .*; did you mean rmse",
        ),
        ({"best": "num_examples"}, "--best=num_examples: validation has no such metric"),
        ({"method": "local_only", "early_stopping": 3}, "--method=local_only has no rounds"),
    ],
)
def test_what_no_round_can_be_chosen_by_is_refused_before_the_first(tiny, options, message):
    with pytest.raises(fp.UserError, match=message):
        tiny.build(TASKS["movielens"], **options)


FILES = ["metrics.csv", "model.json", "model.npz", "summary.json", "per_client.csv"]
FILES += ["recommendations.json", "config.json"]


@pytest.fixture(name="extended", params=["fed_rep", "fed_recon"], scope="module")
def _extended(request, tiny, tmp_path_factory):
    """Folders of a run of two rounds, of four and stopped in the sixth, and their files."""
    folders = {rounds: tmp_path_factory.mktemp("extended") / "run" for rounds in (2, 4, 5)}
    experiment = tiny.build(TASKS["movielens"], method=request.param)
    tiny.run_in(folders[2], experiment)
    shutil.copytree(folders[2], folders[4], ignore=shutil.ignore_patterns(".lock"))
    options = experiment.options.replace(total_rounds=4)
    tiny.run_in(folders[4], dataclasses.replace(experiment, options=options))
    shutil.copytree(folders[4], folders[5], ignore=shutil.ignore_patterns(".lock"))
    before = fp.load_run(folders[5])
    with tiny.ctrl_c(experiment, 6):
        tiny.train(experiment, folders[5], rounds=9)
    kept = "local_state.sqlite" if request.param == "fed_rep" else "checkpoints"
    return folders, [*FILES, kept], before


@pytest.mark.exhaustive(but=("fed_rep",))
def test_files_of_two_rounds_are_no_run(extended, tmp_path):
    """Whichever files are of which round: one round's, or a line in all that opens a folder."""
    folders, files, _ = extended
    opened = 0
    for rounds in itertools.product((2, 4), repeat=len(files)):
        path = tmp_path / "".join(map(str, rounds))
        path.mkdir()
        for name, number in zip(files, rounds):
            (path / name).symlink_to(folders[number] / name)
        told = {name: number for name, number in zip(files, rounds) if name != "config.json"}
        for read in (fp.load_run, write_report, read_tested):
            if len({*told.values()}) == 1:
                read(path)
                opened += 1
                continue
            with pytest.raises(fp.UserError, match="files of several rounds: round 2 has") as error:
                read(path)
            said = re.search(
                r"round 2 has (.*); round 4 has (.*?)\. Resume the run", str(error.value)
            )
            for number, names in zip((2, 4), said.groups()):
                assert {*names.split(", ")} == {n for n in told if told[n] == number}
    assert opened == 3 * 4  # Options are those of both.


@pytest.mark.exhaustive(but=("fed_rep",))
def test_a_finished_run_that_was_stopped_later_is_refused(extended):
    folders, _, before = extended
    path = folders[5]
    for read in (lambda: before.trained, lambda: fp.load_run(path), lambda: write_report(path)):
        with pytest.raises(fp.UserError, match="round 4 has model.json, .*; round 5 has .*metrics"):
            read()
    assert len(fp.RunFolder.read(path).metrics) == 5
    # A page that tells of a failure has nothing of the end before.
    failed = read_run(path, failure="The training has diverged.")
    assert len(failed.rounds) == 5 and not failed.summary and not len(failed.clients)
