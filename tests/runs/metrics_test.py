from __future__ import annotations

import csv

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.metrics import MetricLog
from fedpersonal.runs.state import RunState


def _rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(name="path")
def _path(tmp_path):
    RunFolder.open(tmp_path, {})
    return tmp_path / "metrics.csv"


class _Log:
    """A log and the run that it belongs to."""

    def __init__(self, path, *, after_round=0, digest=""):
        folder = RunFolder.open(path.parent, {})
        self._run = RunState(folder, 10, True, state=None, round_number=after_round)
        self._log = MetricLog()
        self._log.digest = digest  # As a checkpoint says.
        self._log.on_start(self._run)

    def append(self, round_number, seconds, metrics):
        self._run.round_number, self._run.seconds = round_number, seconds
        self._run.metrics = metrics
        self._log.on_round_end(self._run)

    def close(self):
        self._log.on_end(self._run, None)

    @property
    def digest(self):
        return self._log.digest

    @property
    def median_seconds(self):
        return self._log.median_seconds


def test_writes_a_row_a_round_at_once(path):
    log = _Log(path)
    log.append(1, 0.25, {"train/loss": np.float32(0.1), "train/num": 3})
    log.append(2, 0.5, {"train/loss": 1e-12, "train/num": np.int64(4)})
    assert path.read_text() == ("round,seconds,train/loss,train/num\n1,0.25,0.1,3\n2,0.5,1e-12,4\n")


def test_reads_back_what_it_wrote(path):
    values = np.random.default_rng(0).normal(size=50)
    log = _Log(path)
    for round_number, value in enumerate(values, 1):
        log.append(round_number, 0.1, {"double": float(value), "single": np.float32(value)})
    rows = _rows(path)
    assert [float(row["double"]) for row in rows] == list(values)
    assert [np.float32(row["single"]) for row in rows] == list(values.astype(np.float32))


def test_columns_may_appear_and_be_left_empty(path):
    log = _Log(path)
    log.append(1, 0.5, {"a": 1})
    log.append(2, 0.5, {"a": 2, "b,c": 3.5})
    log.append(3, 0.5, {"a": 4})
    log.append(4, 0.5, {"b,c": 5})
    assert path.read_text() == 'round,seconds,a,"b,c"\n1,0.5,1,\n2,0.5,2,3.5\n3,0.5,4,\n4,0.5,,5\n'


def test_going_on_removes_later_rows_and_half_written_ones(path):
    log, digests = _Log(path), {}
    for round_number in range(1, 6):
        log.append(round_number, round_number, {"a": round_number})
        digests[round_number] = log.digest
    log.close()
    with open(path, "a") as file:
        file.write("6,1.")
    log = _Log(path, after_round=3, digest=digests[3])
    assert path.read_text() == "round,seconds,a\n1,1,1\n2,2,2\n3,3,3\n"
    log.append(4, 10.0, {"a": 9})
    assert path.read_text().splitlines()[-1] == "4,10.0,9"
    assert log.median_seconds == np.median([1, 2, 3, 10])


def test_rows_that_were_changed_are_refused(path):
    log = _Log(path)
    log.append(1, 1.0, {"b": 0.5, "a": 1})
    log.append(2, 1.0, {"a": 1, "c": 3.0, "b": 0.5})  # In another order, and one more.
    log.close()
    whole = path.read_text()
    _Log(path, after_round=2, digest=log.digest).close()
    assert path.read_text() == whole
    path.write_text(whole.replace("0.5", "0.6", 1))
    with pytest.raises(UserError, match="metrics.csv is damaged or was changed: restore"):
        _Log(path, after_round=2, digest=log.digest)


def test_a_new_run_begins_with_no_rows(path):
    log = _Log(path)
    log.append(1, 1.0, {"a": 1})
    log.close()
    log = _Log(path)
    assert _rows(path) == []
    assert log.median_seconds == 0.0


@pytest.mark.parametrize("content", ["", "round,seconds\n1,1\n3,1\n", "round,seconds\n1,1\nx,1\n"])
def test_refuses_to_go_on_over_missing_rows(path, content):
    path.write_text(content)
    with pytest.raises(UserError, match="metrics.csv is damaged or was changed"):
        _Log(path, after_round=3)


def test_refuses_a_file_that_is_not_its_own(path):
    path.write_text("user,item\n1,2\n")
    with pytest.raises(UserError, match="metrics.csv is not"):
        _Log(path)
    assert path.read_text() == "user,item\n1,2\n"
