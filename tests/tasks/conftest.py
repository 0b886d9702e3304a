"""Tiny tables, tiny models and short runs of every task, each made once and shared."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import json
from unittest import mock

import numpy as np
import pytest

# Sizes and rates with which each task learns something in two rounds.
TINY = {
    "movielens": {
        "embedding_dim": 3,
        "use_biases": True,
        "rating_offset": 3.5,
        "client_learning_rate": 0.1,
    },
    "stackoverflow": {
        "vocab_size": 14,
        "num_oov_buckets": 3,
        "sequence_length": 6,
        "embedding_dim": 3,
        "lstm_units": 4,
        "projection_dim": 3,
    },
    "reddit": {
        "num_labels": 3,
        "min_texts": 5,
        "text_length": 8,
        "character_dim": 3,
        "user_dim": 3,
        "lstm_units": 4,
        "hidden_units": (5,),
    },
    "tv_shows": {
        "text_length": 10,
        "history_length": 12,
        "client_learning_rate": 0.02,
        "local_steps": 2,
        "finetuning_learning_rate": 0.02,
    },
}
_EVERYWHERE = {
    "total_rounds": 2,
    "clients_per_round": 5,
    "client_batch_size": 4,
    "local_epochs": 1,
    "finetuning_epochs": 1,
    "reconstruction_epochs": 1,
    "rounds_per_eval": 2,
    "rounds_per_checkpoint": 1,
}
NUM_USERS = 20
_PLACES = {
    "sea": "boat net tide gull harbour".split(),
    "hill": "goat stone fog fern path".split(),
    "town": "tram shop clock square lamp".split(),
}


def write_ratings(path):
    """A user's taste decides much, an item's fame some, and chance little."""
    random = np.random.default_rng(3)
    users, items = random.normal(0, 0.8, NUM_USERS), random.normal(0, 0.8, 25)
    rows = [("user", "item", "rating", "time")]
    for user, taste in enumerate(users):
        for time, item in enumerate(random.permutation(25)[: 15 + user % 5]):
            score = 3.5 + taste + items[item] + random.normal(0, 0.3)
            rows.append((f"u{user}", f"i{item}", int(np.clip(np.rint(score), 1, 5)), time))
    write_rows(path, rows)


def write_texts(path):
    """Texts of a few words about places; a user has one that is dear, and a word of their own."""
    random = np.random.default_rng(4)
    rows = [("user", "text", "context", "liked", "time")]
    for user in range(NUM_USERS):
        dear = list(_PLACES)[user % 3]
        for time in range(12):
            place = dear if random.random() < 0.6 else random.choice(list(_PLACES))
            first, second = random.choice(_PLACES[place], 2)
            text = f"the {first} by the {second} me{user}."
            rows.append((f"u{user}", text, place, int(place == dear), time))
    write_rows(path, rows)


def write_rows(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def read_table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Finished:
    """An experiment that has run, and what it has written."""

    def __init__(self, experiment, path):
        self.experiment, self.data, self.path = experiment, experiment.data, path
        self.summary = json.loads((path / "summary.json").read_text())
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
        """The variables and sums that cross, by the last part of their names."""
        return {row["name"].split(".")[-1] for row in self.boundary}

    @functools.cached_property
    def trained(self):
        """What its rounds have led to."""
        return train(self.experiment, self.path)


@dataclasses.dataclass(frozen=True)
class Weights:
    """What rounds have led to: the last weights, and who of the training clients has kept what."""

    loop: object
    weights: dict
    known: np.ndarray | None = None
    kept: dict = dataclasses.field(default_factory=dict)

    def arrays(self):
        """All of it by name, kept values of those who have any."""
        own = {f"kept {name}": value[self.known] for name, value in self.kept.items()}
        return {**self.weights, **own}


def open_folder(path):
    from fedpersonal.simulation.run_folder import RunFolder

    return RunFolder.open(path, {})


def train(experiment, path, *, rounds=None):
    """Runs the rounds that are missing, without evaluation."""
    options = experiment.options
    with experiment.trainer.fit(
        rounds=rounds or options.total_rounds,
        folder=open_folder(path),
        rounds_per_checkpoint=options.rounds_per_checkpoint,
        progress=False,
    ) as trained:
        weights = {name: np.array(value) for name, value in trained.weights.items()}
        kept = trained.kept_by(experiment.data.train.client_ids) if trained.kept_by else ()
        return Weights(trained.loop, weights, *kept)


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


class Tiny:
    """Makes tiny experiments and runs them; what was made with the same options is shared."""

    train, ctrl_c = staticmethod(train), staticmethod(ctrl_c)

    def __init__(self, folder, make_folder, request):
        self.folder, self.make_folder, self._request = folder, make_folder, request
        self._built, self._run, self._sources = {}, {}, {}
        write_ratings(folder / "ratings.csv")
        write_texts(folder / "texts.csv")

    def options(self, task, **options):
        """Returns a task's tiny options."""
        table = {"ratings_file": str(self.folder / "ratings.csv")}
        if task.name != "movielens":
            table = {"text_file": str(self.folder / "texts.csv")}
        if task.name == "stackoverflow":
            table["cache_dir"] = str(self.folder / "cache")
        if task.name == "tv_shows":
            table["base_model"] = self._request.getfixturevalue("tiny_base").source
            table["base_model_dir"] = str(self.folder)
        return task.options(**{**_EVERYWHERE, **TINY[task.name], **table, **options})

    def source(self, task, options):
        """Returns the data as read, once for all options of a table."""
        key = (task.name, getattr(options, "label_column", None))
        if key not in self._sources:
            self._sources[key] = task.read(options)
        return self._sources[key]

    def build(self, task, **options):
        """Returns a new experiment."""
        from fedpersonal.tasks.experiment import build_experiment

        options = self.options(task, **options)
        return build_experiment(task, self.source(task, options), options)

    def built(self, task, **options):
        """Returns an experiment that others of the same options share."""
        key = (task.name, *sorted(options.items()))
        if key not in self._built:
            self._built[key] = self.build(task, **options)
        return self._built[key]

    def run(self, task, **options):
        """Returns a run that others of the same options share."""
        key = (task.name, *sorted(options.items()))
        if key not in self._run:
            self._run[key] = self.run_in(self.make_folder(), self.built(task, **options))
        return self._run[key]

    def run_in(self, path, experiment):
        """Runs an experiment in a folder."""
        from fedpersonal.tasks.experiment import run_experiment

        summary = run_experiment(experiment, open_folder(path), progress=False)
        finished = Finished(experiment, path)
        assert finished.summary == json.loads(json.dumps(summary))
        return finished


@pytest.fixture(name="tiny", scope="session")
def _tiny(tmp_path_factory, request):
    from fedpersonal.tasks.utterances import task

    # Of the counts of samples as many as show which phases a test runs.
    with mock.patch.object(task, "SAMPLES", (1, None)):
        make_folder = functools.partial(tmp_path_factory.mktemp, "run")
        yield Tiny(tmp_path_factory.mktemp("tiny"), make_folder, request)
