"""Random damage to a run's folder: what opens it gives the right values or says one line.

So many cases a file are tried as the environment says: FEDPERSONAL_FUZZ_CASES=20000.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.atomic_files import write_json

CASES = int(os.environ.get("FEDPERSONAL_FUZZ_CASES", "12"))
ROUNDS = 4
SGD = tf.keras.optimizers.SGD(0.1)
ALGORITHMS = {
    "kept": fp.furl(client_optimizer=SGD),
    "rebuilt": fp.fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD),
}
FILES = ["config.json", "metrics.csv", "model.json", "model.npz", "checkpoint"]
# What stands in place of a file.
CONTENTS = [
    b"", b"\n", b"[]", b"{}", b"null", b"7", b'"text"', b"[" * 200_000, b"9" * 5000, b"\xff\xfe",
    b"round,seconds\n\xc2\xb2,1\n", b"round,seconds\n", b"\0" * 100, b"PK\x03\x04", b"{\"a\": NaN}",
]  # fmt: skip
VALUES = [None, True, -1, 10**30, 0.5, "", "text", "\ud800", [], [1], {}, {"a": 1}]


class Finished:
    """A run of some rounds, the folder as it then is, and what it comes to with one more."""

    def __init__(self, folder, algorithm):
        random_numbers = np.random.default_rng(0)
        data = fp.ClientDataset(
            client_ids=[f"c{i}" for i in range(6)],
            offsets=np.arange(7) * 8,
            features={"x": random_numbers.normal(size=(48, 2)).astype(np.float32)},
            labels=random_numbers.normal(size=48).astype(np.float32),
        )
        self.algorithm, self.data, self.folder = algorithm, data, folder
        model = fp.PartitionedModel(self._build, local_layers=["own"])
        self.trainer = fp.Trainer(model, algorithm, data, clients_per_round=3, batch_size=4)
        self.fit(ROUNDS)
        self.files = {
            path.relative_to(folder): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != ".lock"
        }
        self.loaded = self.load()
        self.reached = self.fit(ROUNDS + 1)

    @staticmethod
    def _build():
        x = tf.keras.Input([2], name="x")
        hidden = tf.keras.layers.Dense(2, activation="tanh", name="shared")(x)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(hidden))

    def restore(self):
        """Makes the folder what it was after the first session; the lock is this process's."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()
        for name, content in self.files.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_bytes(content)

    def fit(self, rounds):
        """Goes on to a round, and returns all that there is then."""
        with self.trainer.fit(
            rounds=rounds, folder=self.folder, progress=False, rounds_per_checkpoint=2
        ) as trained:
            return [*self._values(trained), self._rows()]

    def load(self):
        """Opens the folder, and returns all that is in it."""
        run = fp.load_run(self.folder, algorithm=self.algorithm)
        with run.trained as trained:
            return [*self._values(trained), run.metrics.drop(columns="seconds"), run.config]

    def _values(self, trained):
        weights = {name: np.asarray(value).tobytes() for name, value in trained.weights.items()}
        if trained.kept_by is None:
            return weights, None
        known, kept = trained.kept_by(self.data.client_ids)
        return weights, (known.tobytes(), {name: value.tobytes() for name, value in kept.items()})

    def _rows(self):
        return pd.read_csv(self.folder / "metrics.csv", float_precision="round_trip").drop(
            columns="seconds"
        )

    def place(self, name):
        """The file of a name; where clients keep variables, the store has the checkpoint."""
        if name != "checkpoint":
            return self.folder / name
        if self.algorithm.keeps:
            return self.folder / "local_state.sqlite"
        return self.folder / "checkpoints" / f"round_{ROUNDS:06d}.npz"

    def try_all(self, what, *, is_foreign=False):
        """Opens and resumes; `is_foreign`: another run's files are as good, if they say a line."""
        for use, expected in (
            (self.load, self.loaded),
            (lambda: self.fit(ROUNDS + 1), self.reached),
        ):
            try:
                found = use()
            except fp.UserError as error:
                assert "\n" not in str(error) and len(str(error)) < 2000, what
                assert str(self.folder) in str(error), (what, error)
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
            else:
                for one, other in zip(found, expected):
                    same = one.equals(other) if isinstance(one, pd.DataFrame) else one == other
                    assert same or is_foreign, what


@pytest.fixture(name="finished", scope="module", params=ALGORITHMS)
def _finished(request, tmp_path_factory):
    return Finished(tmp_path_factory.mktemp(request.param), ALGORITHMS[request.param])


def hurt(draw, content):
    """Returns a file's content with some damage."""
    kind = draw.choice(["flip", "flip", "cut", "drop", "insert", "repeat", "digit", "replace"])
    start = draw.randrange(len(content) + 1)
    end = min(len(content), start + draw.choice([1, 1, 3, 20, 500]))
    if kind == "replace":
        return draw.choice(CONTENTS)
    if kind == "cut":
        return content[:start]
    if kind == "drop":
        return content[:start] + content[end:]
    if kind == "insert":
        return content[:start] + draw.randbytes(end - start) + content[start:]
    if kind == "repeat":
        return content[:end] + content[start:]
    if kind == "digit":
        places = [i for i, byte in enumerate(content) if 48 <= byte < 58]
        start = draw.choice(places) if places else start
        return content[:start] + b"%d" % draw.randrange(10) + content[start + 1 :]
    return (
        content[:start]
        + bytes(b ^ 1 << draw.randrange(8) for b in content[start:end])
        + content[end:]
    )


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes(finished, name):
    for case in range(CASES):
        draw = random.Random(f"{name} {case}")
        finished.restore()
        path = finished.place(name)
        path.write_bytes(hurt(draw, path.read_bytes()))
        finished.try_all(f"bytes of {name}, case {case}")


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file(finished, name):
    for make in (os.unlink, os.mkdir, os.mkfifo):
        finished.restore()
        path = finished.place(name)
        path.unlink()
        if make is not os.unlink:
            make(path)
        finished.try_all(f"{make.__name__} {name}")


def change(draw, value):
    """Returns a JSON value with another one somewhere in it."""
    if not value or not isinstance(value, (dict, list)) or draw.random() < 0.2:
        return draw.choice(VALUES)
    places = list(value) if isinstance(value, dict) else range(len(value))
    place = draw.choice(places)
    kind = draw.random()
    if isinstance(value, list):
        return [*value[:place], change(draw, value[place]), *value[place + 1 :]]
    if kind < 0.15:
        return {name: item for name, item in value.items() if name != place}
    return {**value, place: change(draw, value[place])}


@pytest.mark.parametrize("name", ["config.json", "model.json"])
def test_other_values_with_a_right_checksum(finished, name):
    for case in range(CASES):
        draw = random.Random(f"{name} {case}")
        finished.restore()
        path = finished.place(name)
        value = json.loads(path.read_text())
        del value["checksum"]
        other = value
        while other == value or not isinstance(other, dict):
            other = change(draw, value)
        try:
            write_json(path, other, checked=True)
        except UnicodeEncodeError:  # No file can say it.
            continue
        finished.try_all(f"values of {name}, case {case}", is_foreign=True)


def test_other_rows_in_the_store(finished):
    if not finished.algorithm.keeps:
        return
    for case in range(CASES):
        draw = random.Random(case)
        finished.restore()
        path = finished.place("checkpoint")
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            table = draw.choice(["local_state", "local_state", "run", "about"])
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
            row = draw.choice(rows)
            if draw.random() < 0.3:
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])
            else:
                value = draw.choice([-1, 7, 10**18, 0.5, "text", "[]", "[" * 9**5, b"", b"x" * 12])
                with contextlib.suppress(sqlite3.IntegrityError):
                    connection.execute(
                        f"UPDATE {table} SET {draw.choice(columns)} = ? WHERE rowid = ?",
                        [value, row],
                    )
        finished.try_all(f"rows of the store, case {case}")


def test_rows_that_are_deleted_are_missed(finished):
    """The oracle above can fail: what is not checked would pass for a client that kept nothing."""
    finished.restore()
    assert finished.load()[:2] == finished.loaded[:2]
    with pytest.raises(AssertionError, match="some damage"):
        finished.loaded[0] = {**finished.loaded[0], "shared/kernel": b""}
        finished.try_all("some damage")
