from __future__ import annotations

import collections
import math
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import types

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs import folder as run_folder
from fedpersonal.runs.state import RunState
from fedpersonal.training import loop
from fedpersonal.training.progress import Progress

State = collections.namedtuple("State", ["weights", "rounds"])


class Process:
    """Moves the weights towards the cohort; the loss is exact in float32."""

    def __init__(self, *, stop_in=None, error=KeyboardInterrupt, loss=None):
        self._stop_in = stop_in
        self._error = error
        self._loss = loss or (lambda round_number: 1 / round_number)

    def initialize(self):
        return State(np.zeros(4, np.float32), 0)

    def next(self, state, cohort):
        round_number = state.rounds + 1
        if round_number == self._stop_in:
            raise self._error
        metrics = {"loss": self._loss(round_number), "deep": {"mean": cohort.mean()}, "none": ()}
        weights = state.weights * np.float32(0.9) + cohort
        return types.SimpleNamespace(state=State(weights, round_number), metrics=metrics)


def _cohort(round_number):
    return np.random.default_rng(round_number).normal(size=4).astype(np.float32)


def _evaluate(state, round_number):
    assert state.rounds == round_number
    return {"rmse": float(np.abs(state.weights).sum())}


def _run(path, process=None, **options):
    defaults = {
        "process": process or Process(),
        "cohort_fn": _cohort,
        "run_folder": run_folder.RunFolder.open(path, {}),
        "total_rounds": 10,
        "evaluate_fn": _evaluate,
        "rounds_per_eval": 4,
        "rounds_per_checkpoint": 3,
        "progress": False,
    }
    return loop.run_rounds(**{**defaults, **options})


def _metrics(path):
    table = pd.read_csv(path / "metrics.csv", float_precision="round_trip")
    return table.drop(columns="seconds")


def _assert_same_run(path, result, undisturbed_path, undisturbed):
    pd.testing.assert_frame_equal(_metrics(path), _metrics(undisturbed_path), check_exact=True)
    assert result.state.weights.tobytes() == undisturbed.state.weights.tobytes()
    assert result.state.rounds == undisturbed.state.rounds


def test_runs_every_round_once_in_order(tmp_path):
    result = _run(tmp_path)
    expected = np.zeros(4, np.float32)
    for round_number in range(1, 11):
        expected = expected * np.float32(0.9) + _cohort(round_number)
    assert result.state.weights.tobytes() == expected.tobytes()
    assert (result.rounds_run, result.resumed_from) == (10, 0)
    metrics = _metrics(tmp_path)
    assert list(metrics.columns) == ["round", "train/loss", "train/deep/mean", "eval/rmse"]
    assert list(metrics["round"]) == list(range(1, 11))
    assert list(metrics["train/loss"]) == [1 / r for r in range(1, 11)]
    evaluated = metrics[metrics["eval/rmse"].notna()]
    assert list(evaluated["round"]) == [4, 8, 10]


@pytest.mark.parametrize("stop_in", [1, 4, 10])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_stopped_run_goes_on_to_the_same_bits(tmp_path, stop_in, error):
    undisturbed = _run(tmp_path / "undisturbed")
    path = tmp_path / "stopped"
    with pytest.raises(error):
        _run(path, Process(stop_in=stop_in, error=error))
    result = _run(path)
    assert result.resumed_from == stop_in - 1
    assert result.rounds_run == 11 - stop_in
    _assert_same_run(path, result, tmp_path / "undisturbed", undisturbed)


@pytest.mark.parametrize("copied", [False, True])
def test_nothing_is_written_to_a_folder_made_anew_meanwhile(tmp_path, copied):
    path, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def move(state, round_number):
        path.rename(elsewhere)
        shutil.copytree(elsewhere, path) if copied else path.mkdir()
        run_folder.RunFolder.open(path, {}).close()
        files.update({file: file.read_bytes() for file in path.rglob("*") if file.is_file()})
        return _evaluate(state, round_number)

    files = {}
    with pytest.raises(UserError, match="run is not the folder in which this run began"):
        _run(path, evaluate_fn=move)
    found = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert found == files and len(_metrics(elsewhere)) == 3


def test_stop_in_evaluation_repeats_its_round(tmp_path):
    undisturbed = _run(tmp_path / "undisturbed")

    def stop(state, round_number):
        if round_number == 8:
            raise KeyboardInterrupt
        return _evaluate(state, round_number)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "stopped", evaluate_fn=stop)
    result = _run(tmp_path / "stopped")
    assert result.resumed_from == 7
    _assert_same_run(tmp_path / "stopped", result, tmp_path / "undisturbed", undisturbed)


def test_finished_run_returns_its_state_and_may_be_prolonged(tmp_path):
    first = _run(tmp_path / "run")
    again = _run(tmp_path / "run")
    assert (again.rounds_run, again.resumed_from) == (0, 10)
    assert again.train_wall_seconds == first.train_wall_seconds
    assert again.median_round_seconds == first.median_round_seconds
    longer = _run(tmp_path / "run", total_rounds=12)
    assert (longer.rounds_run, longer.resumed_from) == (2, 10)
    assert longer.state.weights.tobytes() == (
        _run(tmp_path / "other", total_rounds=12).state.weights.tobytes()
    )
    with pytest.raises(UserError, match="total_rounds is 5, but .* already at round 12"):
        _run(tmp_path / "run", total_rounds=5)


def test_times_are_those_of_training_over_all_sessions(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])

    class Slow(Process):
        def next(self, state, cohort):
            clock[0] += 0.02
            return super().next(state, cohort)

    def slow_evaluation(state, round_number):
        clock[0] += 0.1
        return {"rmse": 1.0}

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, Slow(stop_in=6), evaluate_fn=slow_evaluation, rounds_per_eval=1)
    result = _run(tmp_path, Slow(), evaluate_fn=slow_evaluation, rounds_per_eval=1)
    assert result.train_wall_seconds == pytest.approx(0.2)
    assert result.median_round_seconds == pytest.approx(0.02)
    seconds = pd.read_csv(tmp_path / "metrics.csv")["seconds"]
    assert result.train_wall_seconds == pytest.approx(seconds.sum(), abs=1e-4)
    assert result.median_round_seconds == seconds.median()


def test_next_cohort_is_made_while_a_round_runs(tmp_path):
    begun = collections.defaultdict(threading.Event)
    makers = set()

    def cohort(round_number):
        makers.add(threading.current_thread())
        begun[round_number].set()
        return _cohort(round_number)

    class Waiting(Process):
        def next(self, state, cohort):
            if state.rounds + 2 <= 10:
                assert begun[state.rounds + 2].wait(5)
            assert not begun[state.rounds + 3].is_set()
            return super().next(state, cohort)

    _run(tmp_path, Waiting(), cohort_fn=cohort)
    assert max(begun[r].is_set() and r for r in begun) == 10
    assert len(makers) == 1 and threading.main_thread() not in makers


def test_a_stopped_run_does_not_wait_for_the_next_cohort(tmp_path):
    begun, ended = threading.Event(), threading.Event()

    def cohort(round_number):
        if round_number == 3:
            begun.set()
            ended.wait(60)
        return _cohort(round_number)

    class Waiting(Process):
        def next(self, state, cohort):
            assert state.rounds < 1 or begun.wait(60)
            return super().next(state, cohort)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, Waiting(stop_in=2), cohort_fn=cohort)
    assert not ended.is_set() and "prefetch_0" in {t.name for t in threading.enumerate()}
    ended.set()


def test_error_in_a_cohort_reaches_the_caller(tmp_path):
    def cohort(round_number):
        if round_number == 6:
            raise UserError("client 7 has no examples")
        return _cohort(round_number)

    with pytest.raises(UserError, match="client 7"):
        _run(tmp_path, cohort_fn=cohort)
    assert _run(tmp_path).resumed_from == 5


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan")])
def test_diverged_training_stops(tmp_path, value):
    process = Process(loss=lambda round_number: value if round_number == 5 else 1.0)
    with pytest.raises(UserError, match="train/loss is (nan|inf) in round 5.* lower learning rate"):
        _run(tmp_path, process)
    assert len(_metrics(tmp_path)) == 4


@pytest.mark.parametrize("option", ["total_rounds", "rounds_per_eval", "rounds_per_checkpoint"])
def test_names_the_option_out_of_range(tmp_path, option):
    with pytest.raises(UserError, match=f"{option} is 0"):
        _run(tmp_path, **{option: 0})


def test_metrics_must_be_numbers(tmp_path):
    with pytest.raises(TypeError, match=r"eval/confusion is a ndarray of shape \(2, 2\)"):
        _run(tmp_path, evaluate_fn=lambda state, round_number: {"confusion": np.eye(2)})


def test_away_from_a_terminal_progress_is_some_lines(tmp_path, capfd):
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, Process(stop_in=1), total_rounds=100, progress=True)
    assert capfd.readouterr().err == (
        "Stopped before the end of the first round: there is nothing to resume.\n"
    )
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, Process(stop_in=95), total_rounds=100, progress=True)
    first, last = capfd.readouterr().err.splitlines()
    assert first.startswith("round 1/100, 0 s: train/loss ") and "eval" not in first
    assert last == "Stopped after round 94; the same command resumes the run."
    _run(tmp_path, total_rounds=100, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Resuming after round 94."
    assert [line.partition(",")[0] for line in lines[1:]] == ["round 95/100", "round 100/100"]
    _run(tmp_path, total_rounds=100, progress=True)
    finished = "The run is finished: 100 rounds. With a larger --total_rounds (rounds= of fit) it "
    assert capfd.readouterr().err == finished + "resumes from there.\n"


def test_lines_come_every_ten_seconds_with_the_time_left(tmp_path, capfd):
    now = 100.0
    progress = Progress(clock=lambda: now)
    run = RunState(None, 4000, True, state=None)
    progress.on_start(run)
    for run.round_number in range(1, 4001):
        # The first round takes 8 s, others 4; each thousandth is evaluated.
        now += 8.0 if run.round_number == 1 else 4.0
        run.metrics = {"train/loss": 1 / run.round_number, "train/num_examples": 3}
        if run.round_number % 1000 == 0:
            run.metrics["eval/rmse"] = 0.5
        progress.on_round_end(run)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "round 1/4000, 8 s: train/loss 1"
    # At most every 10 s, here every third round.
    assert lines[1] == "round 4/4000, 20 s, 4.4 h left: train/loss 0.25"
    assert [line.split("/")[0] for line in lines[:-1]] == [f"round {r}" for r in range(1, 4000, 3)]
    told = {line.split("/")[0]: line.partition(" s")[2] for line in lines}
    # An old evaluation says of which round it is.
    assert told["round 1000"] == ", 3.3 h left: train/loss 0.001, eval/rmse 0.5"
    assert told["round 1003"].endswith("train/loss 0.000997, eval/rmse 0.5 (round 1000)")
    assert told["round 3751"].startswith(", 17 min left: ")
    assert told["round 3994"].startswith(", 24 s left: ")
    assert told["round 4000"] == ": train/loss 0.00025, eval/rmse 0.5"


def test_a_run_whose_checkpoints_are_gone_does_not_begin_anew(tmp_path):
    _run(tmp_path, total_rounds=7)
    rows = (tmp_path / "metrics.csv").read_text()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UserError) as caught:
        _run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'metrics.csv'} has rounds, but the run has no checkpoint to resume from: "
        "restore its checkpoints, or local_state.sqlite if clients keep local variables, or give "
        "another folder."
    )
    assert (tmp_path / "metrics.csv").read_text() == rows


def test_a_checkpoint_under_another_name_is_refused(tmp_path):
    _run(tmp_path, total_rounds=7)
    folder = tmp_path / "checkpoints"
    (folder / "round_000007.npz").rename(folder / "round_000008.npz")
    with pytest.raises(UserError, match="The checkpoint in .* is damaged or was changed"):
        _run(tmp_path)


class _Weighing(Process):
    """One whose state has weights, of so many numbers."""

    def __init__(self, size):
        super().__init__()
        self._size = size

    def initialize(self):
        return Weighing(np.zeros(self._size, np.float32), 0)

    def next(self, state, cohort):
        return types.SimpleNamespace(state=state._replace(rounds=state.rounds + 1), metrics={})


Weighing = collections.namedtuple("Weighing", ["global_model_weights", "rounds"])


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    _run(tmp_path, _Weighing(4), total_rounds=2, evaluate_fn=None)
    _run(tmp_path, _Weighing(4), total_rounds=3, evaluate_fn=None)
    with pytest.raises(UserError) as caught:
        _run(tmp_path, _Weighing(5), evaluate_fn=None)
    assert str(caught.value) == (
        f"The checkpoint in {tmp_path} is of another model or algorithm: state/global_model_weights"
        " is float32 of shape [4], not float32 of shape [5]. Give another folder."
    )


@pytest.mark.exhaustive
def test_a_disk_that_fills_is_one_line(tmp_path):
    """As a limit on the size of files, in a process of its own, since it holds for all files."""
    program = f"""
import resource, signal, sys
sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]
import pathlib, loop_test
from fedpersonal.errors import UserError
path = pathlib.Path({str(tmp_path)!r})
loop_test._run(path, total_rounds=2)
largest = max(file.stat().st_size for file in path.rglob("*") if file.is_file())
# Checkpoints differ by a few bytes, as times do; the log of rounds becomes longer than they are.
for limit in (0, 100, 500, largest + 150):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        loop_test._run(path, total_rounds=100)
    except UserError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
result = loop_test._run(path, total_rounds=110)
print(result.resumed_from > 2, result.state.weights.tobytes().hex())
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    *lines, last = finished.stdout.splitlines()
    assert len(lines) == 4, finished.stderr
    assert all(
        f"{tmp_path}/" in line and "cannot be written: File too large" in line for line in lines
    )
    undisturbed = _run(tmp_path / "other", total_rounds=110)
    assert last == f"True {undisturbed.state.weights.tobytes().hex()}"


class Losing(Process):
    """Drops the updates of all clients in the rounds named."""

    def __init__(self, rounds):
        super().__init__()
        self._rounds = rounds

    def next(self, state, cohort):
        output = super().next(state, cohort)
        lost = output.state.rounds in self._rounds
        counts = {"num_dropped_updates": 5.0 * lost, "num_examples": np.float32(7 * (not lost))}
        return types.SimpleNamespace(state=output.state, metrics={**output.metrics, **counts})


def test_a_run_that_learns_nothing_is_refused(tmp_path):
    with pytest.raises(UserError) as caught:
        _run(tmp_path / "long", Losing(range(1, 40)), total_rounds=30)
    assert str(caught.value) == (
        "Nothing was learned in rounds 1 to 10: every client's update was infinite or NaN, and "
        "was dropped. Lower the learning rates, or look for NaN and huge numbers in the data, and "
        "start a new run."
    )
    for _ in range(2):  # It does not pass the second time either.
        with pytest.raises(UserError, match="Nothing was learned in rounds 1 to 4: "):
            _run(tmp_path / "short", Losing(range(1, 40)), total_rounds=4)
    _run(tmp_path / "late", Losing(range(1, 9)), total_rounds=12)
    # Of 5 updates a round 10 in a row are enough once others were used; a few are not.
    _run(tmp_path / "now and then", Losing(range(2, 40, 2)), total_rounds=20)
    with pytest.raises(UserError, match="has diverged: all clients' updates are .* in round 3; st"):
        _run(tmp_path / "early", Losing(range(2, 40)), total_rounds=20)
