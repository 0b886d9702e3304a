"""The files of a run after damage: what reads them gets what was written, or says one line.

So many cases a test are tried as the environment says: FEDPERSONAL_FUZZ_CASES=20000.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os

import numpy as np
import pandas as pd
import pytest
from damage import (
    BYTES,
    WORDS,
    change_bytes,
    other_arrays,
    other_json,
    outcome,
    packed,
    with_checksum,
    with_digest,
)
from hypothesis import example, given
from hypothesis import strategies as st

from fedpersonal.files import pack_arrays, unpack_arrays
from fedpersonal.simulation import checkpoints, run_config, state_codec
from fedpersonal.simulation.callbacks.callback import Run
from fedpersonal.simulation.callbacks.learning_check import LearningCheck
from fedpersonal.simulation.callbacks.metric_log import MetricLog
from fedpersonal.simulation.callbacks.saver import Saver
from fedpersonal.simulation.callbacks.watched_metric import BestModel, EarlyStopping
from fedpersonal.simulation.run_folder import RunFolder

OPTIONS = {"seed": 3, "rate": 0.5, "name": "a", "layers": ["own"], "task": None}
ABOUT = {"data": {"train": "ab12", "test": "cd34"}, "num_shards": 2, "runtime": "local"}
TRAINING = {"num_clients": 3, "checksum": 12}
ROUNDS = 3
Weights = collections.namedtuple("Weights", ["trainable", "non_trainable"])


@dataclasses.dataclass(frozen=True)
class State:
    """As TFF's are: a named tuple of lists of arrays, and more."""

    global_model_weights: Weights
    optimizer: collections.OrderedDict
    rounds: int


def first_state():
    weights = Weights([np.ones([2, 3], np.float32), np.zeros(2, np.float32)], ())
    return State(weights, collections.OrderedDict(rate=np.float32(0.1), name="sgd"), 0)


class Written:
    """A run's folder, and what its files held."""

    def __init__(self, path):
        self.folder = RunFolder.open(path, OPTIONS, about=ABOUT)
        self.folder.check_data(TRAINING)
        RunFolder.open(path, OPTIONS, about={**ABOUT, "runtime": "worker"})
        self.folder.write_summary({"rounds": ROUNDS, "test": {"rmse": np.float32(0.5)}})
        self.folder.write_boundary([{"name": "items", "shape": [2, 3]}])
        self.folder.write_per_client([{"client": "007", "n": 3, "x": 0.1}, {"client": "NA"}])
        run, callbacks, saver = self.session()
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
        self.checkpoint = self.folder.checkpoints / f"round_{ROUNDS:06d}.npz"
        self.files = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
        self.reached = self.resume()
        self.values = {name: self.read(name) for name in READ}

    def session(self):
        folder = self.folder
        run = Run(folder, ROUNDS + 1, True, state=first_state())
        stops = EarlyStopping("eval/loss", patience=9)
        callbacks = [MetricLog(), LearningCheck(), stops, BestModel("eval/loss")]
        saver = Saver(checkpoints.Checkpoints(folder.checkpoints), callbacks, every=9)
        return run, callbacks, saver

    def resume(self, *, rounds=1):
        """Goes on from the checkpoint for a round or none, and returns all that is then known."""
        run, callbacks, saver = self.session()
        saver.resume(run)
        for callback in callbacks:
            callback.on_start(run)
            callback.on_end(run, None)
        run.metrics = {"eval/loss": 0.1, "train/num_examples": 7}
        for callback in callbacks[1:] * rounds:
            callback.on_round_end(run)
        saver.on_round_end(run)
        remembered = [{n: getattr(c, n) for n in c.remembers} for c in callbacks]
        state = state_codec.encode([run.state, run.round_number, run.stop_reason, remembered])
        return state[0], {name: array.tobytes() for name, array in state[1].items()}

    def read(self, name):
        return READ[name](RunFolder.read(self.folder.path))

    def restore(self, name, content):
        for path, known in self.files.items():
            if path.name != ".lock":
                path.write_bytes(known)
        path = self.checkpoint if name == "checkpoint" else self.folder.path / name
        path.write_bytes(content)
        return path


def settled(record):
    """Reads `config.json` as a session does that goes on."""
    config = run_config.settle(record.config_json, OPTIONS, about=ABOUT)
    known = config.get(run_config.TRAINING_DATA, TRAINING)
    run_config.check_same("data", known, TRAINING, record.path)
    run_config.read_num_shards(record.path)
    return config


READ = {
    "config.json": settled,
    "summary.json": lambda record: record.summary,
    "boundary.json": lambda record: record.boundary,
    "metrics.csv": lambda record: record.metrics,
    "per_client.csv": lambda record: record.per_client,
}


@pytest.fixture(name="written", scope="module")
def _written(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield Written(tmp_path_factory.mktemp("run"))


def content_of(written, name):
    path = written.checkpoint if name == "checkpoint" else written.folder.path / name
    return written.files[path]


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
@given(BYTES)
def test_bytes_of_checked_json(written, name, changes):
    path = written.restore(name, change_bytes(content_of(written, name), changes))
    found = outcome(lambda: written.read(name), path.parent)
    assert found is None or found == written.values[name]


@given(BYTES)
def test_bytes_of_the_boundary(written, changes):
    path = written.restore(
        "boundary.json", change_bytes(content_of(written, "boundary.json"), changes)
    )
    found = outcome(lambda: written.read("boundary.json"), path)
    assert found is None or isinstance(found, list)


@pytest.mark.parametrize("name", ["metrics.csv", "per_client.csv"])
@given(BYTES)
@example([("insert", (True, 1), 1, WORDS.index(b'"\n"'))])  # A line end in a column's name.
def test_bytes_of_tables(written, name, changes):
    path = written.restore(name, change_bytes(content_of(written, name), changes))
    found = outcome(lambda: written.read(name), path)
    known = written.values[name]
    if found is None or name != "metrics.csv":
        assert found is None or isinstance(found, pd.DataFrame)
        return
    assert found["round"].tolist() == list(range(1, len(found) + 1))
    assert all(kind.kind in "biuf" for kind in found.dtypes)
    rounds = min(len(found), ROUNDS)
    checksum = outcome(lambda: written.folder.metrics_checksum(rounds), path)
    if checksum == CHECKSUMS.setdefault(rounds, _checksum(written, rounds)) and rounds:
        pd.testing.assert_frame_equal(
            found[:rounds].dropna(axis=1, how="all").sort_index(axis=1),
            known[:rounds].dropna(axis=1, how="all").sort_index(axis=1),
            check_dtype=False,
        )


CHECKSUMS = {}


def _checksum(written, rounds):
    content = written.folder.metrics_csv.read_bytes()
    written.folder.metrics_csv.write_bytes(content_of(written, "metrics.csv"))
    found = written.folder.metrics_checksum(rounds)
    written.folder.metrics_csv.write_bytes(content)
    return found


@pytest.mark.parametrize("name", ["metrics.csv", "checkpoint"])
@given(BYTES)
def test_bytes_of_what_a_run_goes_on_from(written, name, changes):
    written.restore(name, change_bytes(content_of(written, name), changes))
    found = outcome(written.resume, written.folder.path)
    assert found is None or found == written.reached


@given(st.data())
def test_values_of_the_config(written, data):
    value = json.loads(content_of(written, "config.json"))
    del value["checksum"]
    other = data.draw(other_json(value))
    if not isinstance(other, dict):
        return
    path = written.restore("config.json", with_checksum(other).encode())
    config = outcome(lambda: written.read("config.json"), path.parent)
    if config is not None:
        assert config["options"] == OPTIONS and config["data"] == ABOUT["data"]
        assert config["num_shards"] == 2
        path.write_text(with_checksum(config))
        assert written.read("config.json") == config
        RunFolder.open(path.parent, OPTIONS, about=ABOUT)


@given(st.data())
def test_values_of_the_checkpoint(written, data):
    """With right checksums: what is restored is a state as of this process."""
    arrays = unpack_arrays(content_of(written, "checkpoint"))
    if data.draw(st.booleans()):
        description = json.loads(str(arrays["description"]))
        text = json.dumps(data.draw(other_json(description)))
        arrays["description"] = np.array(text)
    else:
        arrays = data.draw(other_arrays(arrays))
    written.restore("checkpoint", packed(arrays))
    outcome(lambda: written.resume(rounds=0), written.folder.path)


@given(BYTES)
def test_packed_arrays(changes):
    """Bytes of the .npz file within, with a right checksum."""
    content = pack_arrays({"a/b": np.ones([2, 3], np.float32), "text": np.array(["x", "\u00e9"])})
    try:
        found = unpack_arrays(with_digest(change_bytes(content[:-16], changes)))
    except ValueError as error:
        assert len(str(error)) < 500 and str(error).isprintable()
    else:
        assert all(isinstance(array, np.ndarray) for array in found.values())
