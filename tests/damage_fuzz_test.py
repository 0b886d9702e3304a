"""Every file that is read, after damage: it gives the right value, or one line that names it.

So many cases a reader are tried as the environment says, FEDPERSONAL_FUZZ_CASES=20000, or a
sixteenth of that where a whole run goes on, a page is made or a GPT-2 is read.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sqlite3
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from damage import (
    BYTES,
    ROWS,
    change_bytes,
    change_rows,
    few,
    other_arrays,
    other_json,
    outcome,
    packed,
    with_digest,
)
from hypothesis import given
from hypothesis import strategies as st

import fedpersonal as fp
from fedpersonal import files
from fedpersonal.model.partition import VariableSpec
from fedpersonal.report import samples
from fedpersonal.report.page import report_page
from fedpersonal.report.run import read_run
from fedpersonal.runs import folder as run_secret
from fedpersonal.runs import record as run_config
from fedpersonal.runs.checkpoints import Checkpoints, StoreCheckpoints
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.kept import KeptState
from fedpersonal.runs.metrics import MetricLog
from fedpersonal.runs.saver import Saver
from fedpersonal.runs.state import RunState
from fedpersonal.runs.store import LocalStateStore, read_all
from fedpersonal.suite.models import gpt2 as base_model
from fedpersonal.suite.readers.sentences import read_text
from fedpersonal.training.callbacks import BestModel, EarlyStopping, StopIfStuck


@dataclasses.dataclass
class Reader:
    """How a file is read.

    Attributes:
        path: The file.
        read: Reads it.
        folder: The folder that is restored, and named where the file is refused; None for its own.
        is_exact: Whether it must give what was written; without a digest it may give another value.
        also: A value that is right, too.
    """

    path: pathlib.Path
    read: Callable[[], Any]
    folder: pathlib.Path | None = None
    is_exact: bool = True
    also: Any = "no other value"

    def __post_init__(self):
        self.folder = self.folder or self.path.parent
        self.files = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        self.value = as_written(self.read())

    def restore(self):
        """Makes the folder what it was; a lock is this process's."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != ".lock":
                path.unlink()
        for path, content in self.files.items():
            if path.name != ".lock":
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)

    def damage(self, draw):
        """Changes the file; returns whether the change carries a right digest."""
        self.restore()
        content, kind = self.files[self.path], self.path.suffix
        is_store = kind == ".sqlite" and draw(st.booleans())
        if is_store:
            for change in draw(st.lists(ROWS, min_size=1, max_size=2)):
                change_rows(self.path, change)
        elif kind == ".json" and draw(st.booleans()):
            value = json.loads(content)
            is_checked = isinstance(value, dict) and value.pop("digest", None)
            other = draw(other_json(value))
            is_object = isinstance(other, dict) and is_checked
            self.path.write_bytes(with_digest(other) if is_object else json.dumps(other).encode())
            return is_object
        elif kind == ".npz" and draw(st.booleans()):
            arrays = files.unpack_arrays(content)
            if "description" in arrays and draw(st.booleans()):
                text = json.dumps(draw(other_json(json.loads(str(arrays["description"])))))
                self.path.write_bytes(packed({**arrays, "description": np.array(text)}))
            elif draw(st.booleans()):
                self.path.write_bytes(packed(draw(other_arrays(arrays))))
            else:  # The .npz file within.
                changed = change_bytes(content[:-8], draw(BYTES))
                self.path.write_bytes(with_digest(changed))
            return True
        else:
            self.path.write_bytes(change_bytes(content, draw(BYTES)))
        return False

    def check(self, is_forged):
        """Reads the file: the right value, another one where that may be, or one line."""
        found = outcome(self.read, self.folder)
        if found is not None and self.is_exact and not is_forged:
            assert as_written(found) in (self.value, as_written(self.also))


def as_written(value):
    """Returns a value that equals another one only if they have the same bits."""
    if isinstance(value, pd.DataFrame):
        return value.to_csv(index=False)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): as_written(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [as_written(item) for item in value]
    return repr(value)


# A run's folder, written without training.
OPTIONS = {"seed": 3, "rate": 0.5, "name": "a", "layers": ["own"], "task": None}
ABOUT = {"data": {"train": "ab12", "test": "cd34"}, "num_shards": 2, "runtime": "local"}
ROUNDS = 3
Weights = collections.namedtuple("Weights", ["trainable", "non_trainable"])


@dataclasses.dataclass(frozen=True)
class State:
    """As TFF's are: a named tuple of lists of arrays, and more."""

    global_model_weights: Weights
    optimizer: collections.OrderedDict
    rounds: int


def session(folder):
    """A run in its first state, what logs and remembers, and what saves it."""
    weights = Weights([np.ones([2, 3], np.float32), np.zeros(2, np.float32)], ())
    state = State(weights, collections.OrderedDict(rate=np.float32(0.1), name="sgd"), 0)
    stops = EarlyStopping("eval/loss", patience=9)
    callbacks = [MetricLog(), StopIfStuck(), stops, BestModel("eval/loss")]
    saver = Saver(Checkpoints(folder.checkpoints), callbacks, every=9)
    return RunState(folder, ROUNDS + 1, True, state=state), callbacks, saver


def folder_of_a_run(path):
    folder = RunFolder.open(path, OPTIONS, about=ABOUT)
    folder.check_data({"num_clients": 3})
    RunFolder.open(path, OPTIONS, about={**ABOUT, "runtime": "worker"})
    folder.write_summary({"rounds": ROUNDS, "test": {"rmse": np.float32(0.5)}})
    folder.write_boundary([{"name": "items", "shape": [2, 3]}])
    folder.write_per_client([{"client": "007", "n": 3, "x": 0.1}, {"client": "NA"}])
    run_secret.load_or_create_secret(path, 77)
    run, callbacks, saver = session(folder)
    for callback in callbacks:
        callback.on_start(run)
    for run.round_number in range(1, ROUNDS + 1):
        run.metrics = {"eval/loss": 1 / run.round_number, "train/num_examples": 7}
        run.metrics.update({"train/late": 0.25} if run.round_number > 1 else {})
        for callback in callbacks:
            callback.on_round_end(run)
    for callback in callbacks:
        callback.on_end(run, None)
    saver.on_round_end(run)
    saver.on_end(run, None)
    return folder


def go_on(folder):
    """Goes on from the checkpoint for a round, and returns all that is then known."""
    run, callbacks, saver = session(folder)
    saver.resume(run)
    for callback in callbacks:
        callback.on_start(run)
        callback.on_end(run, None)
    remembered = [{n: getattr(c, n) for n in c.remembers} for c in callbacks]
    return [run.state, run.round_number, run.stop_reason, remembered]


def settled(folder):
    """Reads `config.json` as a session does that goes on."""
    config = run_config.merge_config(folder.config_json, OPTIONS, about=ABOUT)
    run_config.check_same("data", config["training_data"], {"num_clients": 3}, folder.path)
    assert run_config.read_num_shards(folder.path) == 2
    return config


def in_folder(name, read, **options):
    """A reader of a file in a run's folder."""

    def make(path):
        folder = folder_of_a_run(path)
        return Reader(path / name, lambda: read(folder), **options)

    return make


def read_only(path):
    return RunFolder.read(path)


# A store after two commits.
VARIABLES = [
    VariableSpec("user/embeddings", "user", (1, 2), tf.float32, True, None),
    VariableSpec("count", "count", (), tf.int64, True, None),
]
NAMES = ["a", "b", "\u00e9", ""]


def write_store(path):
    with contextlib.closing(LocalStateStore.open(path, VARIABLES)) as store:
        for number in (1, 2):
            rows = store.pack(
                {
                    "user/embeddings": np.full([4, 1, 2], number, np.float32),
                    "count": np.arange(4) * number,
                }
            )
            state = {"state": KeptState(number, np.float32(number), dict(zip(NAMES, rows)))}
            StoreCheckpoints(store).save(number, state)


def read_store(path):
    with contextlib.closing(LocalStateStore.open(path, VARIABLES)) as store:
        rows = store.read([*NAMES, "nobody"])
        saved = StoreCheckpoints(store).restore(like=KeptState(0, np.float32(0), {}))
        return rows, store.client_ids(), store.num_clients, saved


# A file without tables is that of a new store; runs that have rounds refuse it.
NEW = ([None] * 5, [], 0, None)


def a_store(folder):
    path = folder / "local_state.sqlite"
    write_store(path)
    return Reader(path, lambda: read_store(path), also=NEW)


def a_store_of_any_variables(folder):
    path = folder / "local_state.sqlite"
    write_store(path)
    none = ([], {v.name: np.zeros([0, *v.shape], v.dtype.as_numpy_dtype) for v in VARIABLES})
    return Reader(path, lambda: read_all(path), also=none)


def a_journal(folder):
    """What a crash within a commit leaves beside the store: it is rolled back."""
    path = folder / "local_state.sqlite"
    write_store(path)
    before, journal = path.read_bytes(), path.with_name(path.name + "-journal")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("PRAGMA cache_size = 1", "PRAGMA cache_spill = ON", "BEGIN EXCLUSIVE"):
            connection.execute(statement)
        connection.execute("UPDATE local_state SET value = zeroblob(16)")
        connection.execute("UPDATE run SET state = zeroblob(50000)")
        connection.execute("DELETE FROM local_state WHERE client = 'a'")
        during, hot = path.read_bytes(), journal.read_bytes()
        connection.execute("ROLLBACK")
    path.write_bytes(before)
    expected = read_store(path)
    path.write_bytes(during)
    journal.write_bytes(hot)
    reader = Reader(journal, lambda: read_store(path), also=NEW)
    assert during != before and reader.value == as_written(expected)
    return reader


def arrays(folder):
    path = folder / "arrays.npz"
    files.write_arrays(path, {"a/b": np.ones([2, 3], np.float32), "t": np.array(["x", "\u00e9"])})
    return Reader(path, lambda: files.read_arrays(path))


def some_texts(folder):
    samples.add_texts(folder, client="c", context="x", prompt="p", texts=["one"], rounds=3)
    return Reader(folder / samples.GENERATED, lambda: samples.read_texts(folder), is_exact=False)


def some_recommendations(folder):
    item = samples.Item("film", 0.5, True, 4.0)
    client = samples.ClientItems("c", "most helped", 0.1, 0.2, [item], [item])
    found = samples.Recommendations("hr@10", [client])
    samples.write_recommendations(folder, found, rounds=3)
    path = folder / samples.RECOMMENDATIONS
    return Reader(path, lambda: samples.read_recommendations(folder))


def a_corpus(folder):
    """A cached corpus: a damaged file is made again."""
    table = folder.parent / "table.jsonl"
    table.write_text('{"user": "\u00fc", "text": "\u00dcber. One more!"}\n{"user": "x"}\n')

    def read():
        found = read_text(table, cache_dir=folder)
        return {name: list(getattr(found, name)) for name in ("client_ids", "words", "lexicon")}

    read()
    return Reader(next(folder.iterdir()), read)


def a_checkpoint(path):
    folder = folder_of_a_run(path)
    last = folder.checkpoints / f"round_{ROUNDS:06d}.npz"
    return Reader(last, lambda: go_on(folder), folder=path)


READERS = {
    "checkpoint": a_checkpoint,
    "config.json": in_folder("config.json", settled),
    "summary.json": in_folder("summary.json", lambda folder: read_only(folder.path).summary),
    "boundary.json": in_folder(
        "boundary.json", lambda folder: read_only(folder.path).boundary, is_exact=False
    ),
    "metrics.csv": in_folder(
        "metrics.csv", lambda folder: read_only(folder.path).metrics, is_exact=False
    ),
    "per_client.csv": in_folder(
        "per_client.csv", lambda folder: read_only(folder.path).per_client, is_exact=False
    ),
    "secret": in_folder(
        run_secret.SECRET, lambda folder: run_secret.load_or_create_secret(folder.path, 5)
    ),
    "metrics.csv that a run goes on from": in_folder("metrics.csv", go_on),
    "store": a_store,
    "store of any variables": a_store_of_any_variables,
    "store's journal": a_journal,
    "arrays": arrays,
    "texts": some_texts,
    "recommendations": some_recommendations,
    "corpus": a_corpus,
}


@pytest.fixture(name="reader_of", scope="module")
def _reader_of(tmp_path_factory):
    """Makes each reader once, by its name."""
    made = {}

    def reader_of(name, readers):
        if name not in made:
            folder = tmp_path_factory.mktemp("files")
            made[name] = readers[name](folder)
        return made[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield reader_of


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_damage_is_noticed_in_one_line(reader_of, name, data):
    reader = reader_of(name, READERS)
    reader.check(reader.damage(data.draw))


@pytest.mark.parametrize("name", READERS)
def test_so_is_what_is_no_file(reader_of, name):
    reader = reader_of(name, READERS)
    for make in (os.mkdir, os.mkfifo):
        if ".sqlite" not in reader.path.name:  # SQLite waits for who writes to a pipe.
            reader.restore()
            reader.path.unlink()
            make(reader.path)
            reader.check(False)
    reader.restore()
    assert as_written(reader.read()) == reader.value


# Whole runs, of clients that keep local variables or rebuild them.
SGD = tf.keras.optimizers.SGD(0.1)
ALGORITHMS = {
    "kept": fp.furl(client_optimizer=SGD),
    "rebuilt": fp.fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD),
}


class Trained:
    """A run of some rounds, and what it gives when it is opened, and with one round more."""

    def __init__(self, folder, kind, model):
        numbers = np.random.default_rng(0)
        self.data = fp.ClientDataset(
            client_ids=[f"c{i}" for i in range(6)],
            offsets=np.arange(7) * 8,
            features={"x": numbers.normal(size=(48, 2)).astype(np.float32)},
            labels=numbers.normal(size=48).astype(np.float32),
        )
        self.folder, self.algorithm, self.expected = folder, ALGORITHMS[kind], None
        self.model = model
        self.trainer = fp.Trainer(
            model, self.algorithm, self.data, clients_per_round=3, batch_size=4
        )
        self.fit(ROUNDS)
        state = folder / "checkpoints" / f"round_{ROUNDS:06d}.npz"
        self.state = folder / "local_state.sqlite" if self.algorithm.keeps else state

    def fit(self, rounds):
        """Goes on to a round, and returns all that there is then."""
        with self.trainer.fit(
            rounds=rounds, folder=self.folder, progress=False, rounds_per_checkpoint=2
        ) as trained:
            return self.values(trained, RunFolder.read(self.folder))

    def load(self):
        """Opens the folder, and returns all that is in it."""
        run = fp.load_run(self.folder, model=self.model, algorithm=self.algorithm)
        with run.trained as trained:
            return self.values(trained, run)

    def values(self, trained, run):
        weights = {name: np.asarray(value) for name, value in trained.weights.items()}
        kept = trained.kept_by and trained.kept_by(self.data.client_ids)
        return weights, kept, run.metrics.drop(columns="seconds")

    def both(self):
        """Opens it and goes on; what is refused in a line counts as right."""
        found = [outcome(use, self.folder) for use in (self.load, lambda: self.fit(ROUNDS + 1))]
        self.expected = self.expected or found
        return [right if one is None else one for one, right in zip(found, self.expected)]


@pytest.fixture(name="whole_run", scope="module", params=ALGORITHMS)
def _whole_run(request, tmp_path_factory, dense_model):
    run = Trained(tmp_path_factory.mktemp("trained"), request.param, dense_model())
    reader = Reader(run.folder / "config.json", run.both, folder=run.folder)
    assert None not in run.expected
    return run, reader


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", "model.json", "model.npz", "state"])
@few
@given(data=st.data())
def test_damage_to_a_whole_run(whole_run, name, data):
    run, reader = whole_run
    reader.path = run.state if name == "state" else run.folder / name
    reader.check(reader.damage(data.draw))


@pytest.mark.parametrize("name", ["config.json", "metrics.csv", "model.json", "model.npz", "state"])
def test_a_whole_run_without_a_file(whole_run, name):
    run, reader = whole_run
    reader.restore()
    reader.path = run.state if name == "state" else run.folder / name
    reader.path.unlink()
    reader.check(False)


PAGE = ["config.json", "summary.json", "model.json", "boundary.json", "per_client.csv"]
PAGE += [samples.RECOMMENDATIONS]


@pytest.fixture(name="page", scope="module")
def _page(tmp_path_factory, make_run):
    path = make_run(tmp_path_factory.mktemp("page"), rounds=3, clients=3, use_biases=True)
    item = samples.Item("film", 0.5, True, 4.0)
    client = samples.ClientItems("c", "most helped", 0.1, 0.2, [item], [item])
    samples.write_recommendations(path, samples.Recommendations("rmse", [client]), rounds=3)
    return Reader(
        path / PAGE[0], lambda: report_page(read_run(path), show_clients=True), is_exact=False
    )


@pytest.mark.parametrize("name", [*PAGE, "metrics.csv"])
@few
@given(data=st.data())
def test_damage_below_a_page(page, name, data):
    page.path = page.folder / name
    page.check(page.damage(data.draw))


GPT2 = {
    "config.json": lambda folder: base_model._read_config(folder / "config.json"),
    "tokenizer.json": base_model._read_tokenizer,
    "tokenizer_config.json": base_model._read_tokenizer,
    "special_tokens_map.json": base_model._read_tokenizer,
    "tf_model.h5": base_model.load_base_model,
}


@pytest.fixture(name="gpt2", scope="module")
def _gpt2(tmp_path_factory, tiny_base):
    folder = shutil.copytree(tiny_base.source, tmp_path_factory.mktemp("models") / "tiny")
    return Reader(folder / "config.json", lambda: None, is_exact=False)


@pytest.mark.parametrize("name", GPT2)
@few
@given(data=st.data())
def test_damage_to_a_base_model(gpt2, name, data):
    gpt2.path, gpt2.read = gpt2.folder / name, lambda: GPT2[name](gpt2.folder)
    gpt2.check(gpt2.damage(data.draw))
