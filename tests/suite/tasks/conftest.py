"""Tiny tables, tiny models and short runs of every task, each made once and shared."""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import math
import os
from unittest import mock

import pytest

from benchmarks.tiny import MAIN, tiny_options, write_tables
from fedpersonal.evaluation.baselines import strongest
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.runs.record import RunRecord
from fedpersonal.suite.testing import open_folder, train


def read_table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Finished:
    """An experiment that has run, and what it has written."""

    def __init__(self, experiment, path):
        self.experiment, self.data, self.path = experiment, experiment.data, path
        self.summary = RunRecord(path).summary
        self.test = self.summary["test"]
        self.clients = read_table(path / "per_client.csv")
        self.boundary = json.loads((path / "boundary.json").read_text())

    @property
    def rounds(self):
        """The rounds, without what depends on the machine's speed."""
        rows = read_table(self.path / "metrics.csv")
        return [{k: v for k, v in row.items() if "second" not in k} for row in rows]

    @property
    def crossing(self):
        """The variables and sums that cross in rounds, by the last part of their names."""
        names = [row["name"] for row in self.boundary]
        # Clients' noisy mean is asked for by the option that unseen clients start there.
        return {name.split(".")[-1] for name in names if not name.startswith("clipped.")}

    @functools.cached_property
    def trained(self):
        """What its rounds have led to."""
        return train(self.experiment, self.path)


@contextlib.contextmanager
def ctrl_c(experiment, round_number):
    """Stops rounds of an experiment as Ctrl-C in one of them would."""
    cohort = experiment.trainer.cohort

    def interrupted(number):
        if number == round_number:
            raise KeyboardInterrupt
        return cohort(number)

    with mock.patch.object(experiment.trainer, "cohort", interrupted):
        with pytest.raises(KeyboardInterrupt):
            yield


def check_run(finished):
    """What every run of every task writes down; all that a test runs is checked by this."""
    experiment, summary, test = finished.experiment, finished.summary, finished.test
    options, method, model = experiment.options, experiment.method, experiment.model
    files = {file for file in os.listdir(finished.path) if not file.startswith((".", "events"))}
    expected = {"boundary.json", "config.json", "per_client.csv", "summary.json"}
    expected |= {"model.json", "model.npz", "report.html"}
    if method.trains:
        expected |= {"learning_curve.png", "metrics.csv"}
        expected |= {"local_state.sqlite" if experiment.algorithm.keeps else "checkpoints"}
    if experiment.task.name in ("movielens", "interactions"):
        expected.add("recommendations.json")
    assert files == expected
    page = (finished.path / "report.html").read_text(encoding="utf-8")
    assert 'id="verdict"' in page and '"names":["client 1"' in page
    assert not [row["client"] for row in finished.clients if f'"{row["client"]}"' in page]

    assert (summary["method"], summary["seed"]) == (options.method, options.seed)
    assert summary["dataset"] == finished.data.name
    if not summary.get("validation", {}).get("stopped"):
        assert summary["rounds"] == (options.total_rounds if method.trains else 0)
    for measured in (
        "train_wall_seconds",
        "median_round_seconds",
        "broadcast_bytes_per_client",
        "aggregated_bytes_per_client",
    ):
        assert (summary[measured] > 0) == method.trains, measured
    assert summary["peak_rss_mb"] > 0
    found = [find_metric(metric, test) for metric in ("loss", *experiment.task.metrics)]
    assert all(math.isfinite(test[metric]) for metric in found if metric)
    check_guesses(finished)
    check_counts(finished)
    for line in experiment.task.report(summary):
        assert line and "\n" not in line

    query = finished.data.test.query
    assert {row["client"] for row in finished.clients} <= set(query.client_ids)
    assert test["num_examples"] == sum(int(row["num_examples"]) for row in finished.clients) > 0
    assert set(test["percentiles"]["loss"]) == {"p5", "p25", "p50", "p75", "p95"}
    if test["before"]:
        personalized = test["loss"] != test["before"]["loss"]
        brings_kept = experiment.has_kept(finished.data.test)
        phases = experiment.evaluator.personalization(brings_kept)
        assert personalized == summary["is_personalised"] == (brings_kept or bool(phases))
        assert 0 <= test["share_hurt"] <= 1

    local = {variable.name for variable in model.local_variables}
    shared = {variable.name for variable in model.global_variables} if method.trains else set()
    layers = method.local_layers(experiment.options, experiment.layers)
    algorithm = experiment.algorithm
    assert bool(local) == bool(layers or algorithm.personal or algorithm.choice)
    assert shared <= finished.crossing and not local & finished.crossing

    if method.trains:
        rounds = finished.rounds
        assert [int(row["round"]) for row in rounds] == [*range(1, summary["rounds"] + 1)]
        assert all(math.isfinite(float(row["train/loss"])) for row in rounds)
        evaluated = [int(row["round"]) for row in rounds if row.get("eval/loss")]
        anybody = finished.data.validation.query.num_examples > 0  # Else there is no loss.
        every = options.rounds_per_eval
        assert evaluated == [r for r in range(1, len(rounds) + 1) if r % every == 0 and anybody]


def check_guesses(finished):
    """The headline has a guess, beside it where it is told, and each client has its value."""
    experiment, test = finished.experiment, finished.test
    headline = next(filter(None, (find_metric(n, test) for n in experiment.task.metrics)))
    assert strongest(test["guesses"], headline)
    lines = " ".join(experiment.task.report(finished.summary))
    shown = [strongest(test["guesses"], metric) for metric in test if f"{metric} " in lines]
    assert any(best and best[0] in lines and f"{best[1]:.5f}"[:4] in lines for best in shown)
    columns = {key for key in finished.clients[0] if key.endswith("_guess")}
    assert f"{headline}_guess" in columns or headline == "auc" and "accuracy_guess" in columns
    for row in finished.clients:
        for column in columns:
            metric = column[: -len("_guess")]
            has_value = row.get(f"{metric}_after", row.get(metric))
            assert bool(row[column]) == bool(has_value), column


def check_counts(finished):
    """How many clients count in each metric is what `per_client.csv` says."""
    clients, test = finished.clients, finished.test
    has_query = [int(row["num_examples"]) > 0 for row in clients]
    assert test["num_clients"] == sum(has_query) > 0
    assert test["num_clients_without_query"] == len(clients) - sum(has_query)
    for name in (name for name, value in test.items() if isinstance(value, float)):
        column = next((c for c in (f"{name}_after", name) if c in clients[0]), None)
        told = test["num_clients_of"].get(name, test["num_clients"])
        assert column is None or told == sum(row[column] != "" for row in clients), name
    for chance in test["guesses"].get("chance", {}).values():
        assert 0 < chance < 1


# So many experiments, which keep what was traced for them, and runs.
_KEPT = 12


class Tiny:
    """Makes tiny experiments and runs them; what was made with the same options is shared."""

    train, ctrl_c = staticmethod(train), staticmethod(ctrl_c)
    main = MAIN

    def __init__(self, folder, make_folder, request):
        self.folder, self.make_folder, self._request = folder, make_folder, request
        self._built, self._run, self._sources = {}, {}, {}
        write_tables(folder)

    @staticmethod
    def _last(made, key, make):
        """Returns what was made for a key, or makes it; the last ones are kept."""
        made[key] = made.pop(key, None) or make()
        for old in [*made][:-_KEPT]:
            del made[old]
        return made[key]

    def options(self, task, **options):
        """Returns a task's tiny options."""
        base = options.pop("base_model", None)
        if task.name == "tv_shows" and base is None:
            base = self._request.getfixturevalue("tiny_base").source
        return tiny_options(task, self.folder, base, **options)

    def source(self, task, options):
        """Returns the data as read, once for all options of a table."""
        values = options.values()
        read = ("text_file", "label_column", "user_vectors")
        key = (task.name, *(values.get(name) for name in read))
        if key not in self._sources:
            self._sources[key] = task.read(options)
        return self._sources[key]

    def build(self, task, **options):
        """Returns a new experiment."""
        from fedpersonal.suite.tasks.experiment import build_experiment

        options = self.options(task, **options)
        return build_experiment(task, self.source(task, options), options)

    def built(self, task, **options):
        """Returns an experiment that others of the same options share."""
        key = (task.name, *sorted(options.items()))
        return self._last(self._built, key, lambda: self.build(task, **options))

    def run(self, task, **options):
        """Returns a run that others of the same options share."""
        key = (task.name, *sorted(options.items()))

        def make():
            return self.run_in(self.make_folder(), self.built(task, **options))

        return self._last(self._run, key, make)

    def run_in(self, path, experiment):
        """Runs an experiment in a folder."""
        from fedpersonal.suite.tasks.running import run_experiment

        summary = run_experiment(experiment, open_folder(path, experiment), progress=False)
        finished = Finished(experiment, path)
        assert finished.summary == json.loads(json.dumps(summary))
        check_run(finished)
        return finished


@pytest.fixture(name="tiny", scope="session")
def _tiny(tmp_path_factory, request):
    make_folder = functools.partial(tmp_path_factory.mktemp, "run")
    return Tiny(tmp_path_factory.mktemp("tiny"), make_folder, request)


@pytest.fixture(autouse=True, scope="module")
def _few_samples(request):
    """Each count of samples is an evaluation: those that a test looks at."""
    from fedpersonal.suite.tasks.utterances import task

    looks = "utterances" in request.module.__name__
    with mock.patch.object(task, "SAMPLES", (1, None) if looks else (None,)):
        yield


@pytest.fixture(autouse=True, scope="module")
def _compiled_in_one_module(request):
    if not request.module.__name__.endswith("contract_test"):
        request.getfixturevalue("not_compiled")
