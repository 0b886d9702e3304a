from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.metrics import MetricLog
from fedpersonal.runs.state import RunState

ROWS = [
    {"client": "007", "num_examples": 3, "rmse_after": 0.1},
    {"client": "NA", "num_examples": 0, "rmse_after": ""},
    {"client": 'a,"b"\nc', "num_examples": 2, "rmse_after": 1e-17},
]


@pytest.fixture(name="folder")
def _folder(tmp_path):
    folder = RunFolder.open(tmp_path, {"seed": 3, "rate": 0.5}, about={"data": "ab12"})
    folder.write_summary({"rounds": 2, "test": {"rmse": np.float32(0.5)}})
    folder.write_boundary([{"name": "items", "shape": [2, 3]}])
    folder.write_per_client(ROWS)
    log, run = MetricLog(), RunState(folder, 2, True, state=None)
    log.on_start(run)
    for round_number, metrics in enumerate([{"loss": 0.1 + 0.2}, {"loss": np.nan, "n": 4}], 1):
        run.round_number, run.metrics = round_number, metrics
        log.on_round_end(run)
    log.on_end(run, None)
    return folder


@pytest.mark.parametrize("names", [["007", "12"], ["1e3", "nan"], ["NA", ""], ["x" * 200_000]])
def test_names_of_clients_stay_texts(folder, names):
    folder.write_per_client([{"client": name, "num_examples": 1} for name in names])
    assert RunFolder.read(folder.path).per_client["client"].tolist() == names


def _files(path):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()}


def test_reads_what_was_written_and_writes_nothing(folder):
    before = _files(folder.path)
    record = RunFolder.read(folder.path)
    assert record.config["options"] == {"seed": 3, "rate": 0.5}
    assert (record.config["seed"], record.config["data"]) == (3, "ab12")
    assert record.summary == {"rounds": 2, "test": {"rmse": 0.5}}
    assert record.boundary == [{"name": "items", "shape": [2, 3]}]
    metrics = record.metrics
    assert list(metrics.columns) == ["round", "seconds", "loss", "n"]
    assert metrics["round"].tolist() == [1, 2]
    np.testing.assert_array_equal(metrics["loss"], [0.1 + 0.2, np.nan])
    np.testing.assert_array_equal(metrics["n"], [np.nan, 4])
    clients = record.per_client
    assert clients["client"].tolist() == ["007", "NA", 'a,"b"\nc']
    np.testing.assert_array_equal(clients["rmse_after"], [0.1, np.nan, 1e-17])
    assert clients["num_examples"].dtype == np.int64
    assert _files(folder.path) == before
    assert not hasattr(record, "write_summary")


def test_reads_a_run_that_another_process_has_locked(folder):
    program = (
        "import fcntl, os, sys\n"
        f"file = os.open({str(folder.path / '.lock')!r}, os.O_RDWR)\n"
        "fcntl.lockf(file, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
    )
    # This process's own lock is another's here.
    (folder.path / ".lock").unlink()
    (folder.path / ".lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"locked\n"
        assert RunFolder.read(folder.path).summary["rounds"] == 2
        other.kill()


def test_a_row_that_is_being_written_does_not_count(folder):
    with open(folder.metrics_csv, "a") as file:
        file.write("3,0.1,0.")
    assert RunFolder.read(folder.path).metrics["round"].tolist() == [1, 2]


def test_refuses_what_is_not_the_folder_of_a_run(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="is not the folder of a run: it has no config.json"):
            RunFolder.read(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("summary.json", "has no summary.json: its run has not ended"),
        ("per_client.csv", "has no per_client.csv: its run has not ended"),
        ("boundary.json", "has no boundary.json: its run has not begun to train"),
        ("metrics.csv", "has no metrics.csv: its run has not begun to train"),
        ("config.json", "is not the folder of a run: it has no config.json"),
    ],
)
def test_says_which_file_is_missing(folder, name, message):
    record = RunFolder.read(folder.path)
    (folder.path / name).unlink()
    with pytest.raises(UserError) as caught:
        getattr(record, name.partition(".")[0])
    assert str(caught.value) == f"{folder.path} {message}."


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", "[]"),
        ("summary.json", '{"rounds": 3}'),
        ("boundary.json", "[" * 200_000),
        ("metrics.csv", "round,seconds\n1,\ud800\n"),
        ("metrics.csv", f"round,seconds\n1,{'9' * 200_000}\n"),
        ("metrics.csv", "round,seconds\n1,1\n3,1\n"),
        ("metrics.csv", "round,seconds\n1,x\n"),
        ("per_client.csv", ""),
        ("per_client.csv", "client,a\nx,1\ny,1,2\n"),
    ],
)
def test_says_which_file_is_damaged(folder, name, text):
    (folder.path / name).write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(UserError) as caught:
        getattr(RunFolder.read(folder.path), name.partition(".")[0])
    expected = "is damaged or was changed: restore it, or start a new folder."
    assert str(caught.value).startswith(f"{folder.path / name} {expected}")


def test_numbers_that_json_lacks_are_texts(folder):
    folder.write_summary({"test": {"loss": float("nan")}})
    assert json.loads((folder.path / "summary.json").read_text())["test"] == {"loss": "nan"}
    assert np.isnan(float(RunFolder.read(folder.path).summary["test"]["loss"]))
