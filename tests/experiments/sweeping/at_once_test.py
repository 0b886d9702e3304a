"""Work in several processes at once: their share of the machine, their ends, the lock."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from experiments.papers.child_process import Call
from experiments.sweeping import at_once
from experiments.sweeping.at_once import alone_in, call_at_once, fitting
from fedpersonal.errors import TrainingError, UserError

PROCESSORS = sorted(os.sched_getaffinity(0))


def note(path, number):
    """Writes when it began and ended, and what it may use; it ends when so many have begun."""
    began, deadline = time.time(), time.monotonic() + 600
    path.with_suffix(".began").touch()
    while len(list(path.parent.glob("*.began"))) < number and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    print("noted")
    told = [began, time.time(), sorted(os.sched_getaffinity(0))]
    path.write_text(json.dumps(told))


def note_process(path):
    """Writes the number of its process."""
    print(os.getpid())
    path.write_text(str(os.getpid()))


def fail(kind):
    if kind == "user":
        raise UserError("no ratings")
    if kind == "diverged":
        raise TrainingError("the loss is nan")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a bug")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_so_many_run_at_once_on_processors_of_their_own(tmp_path, number):
    calls = {
        n: Call(note, (tmp_path / f"{n}.json", number), tmp_path / f"{n}.log") for n in range(5)
    }
    ended = []
    call_at_once(calls, at_once=number, ended=lambda key, error: ended.append((key, error)))
    assert sorted(ended) == [(n, None) for n in range(5)]
    told = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(5)]
    together = [[o for o in told if o[0] <= one[0] < o[1]] for one in told]
    assert max(map(len, together)) == number
    for group in together:
        if number <= len(PROCESSORS):
            used = [processor for _, _, processors in group for processor in processors]
            assert len(used) == len(set(used))
    assert {p for _, _, processors in told for p in processors} == set(PROCESSORS)
    assert (tmp_path / "3.log").read_text() == "noted\n"


@pytest.mark.parametrize(("number", "processes"), [(1, 7), (2, 4), (4, 3)])
def test_a_process_makes_calls_in_a_row_while_others_have_enough(tmp_path, number, processes):
    calls = {n: Call(note_process, (tmp_path / f"{n}",), tmp_path / f"{n}.log") for n in range(7)}
    ended = []
    call_at_once(calls, at_once=2, in_a_row=number, ended=lambda key, error: ended.append(key))
    assert sorted(ended) == list(range(7))
    own = [(tmp_path / f"{n}").read_text() for n in range(7)]
    assert len(set(own)) == processes and max(map(own.count, own)) <= number
    assert all((tmp_path / f"{n}.log").read_text() == f"{own[n]}\n" for n in range(7))


def test_calls_after_one_that_was_killed_are_made_by_another_process(tmp_path):
    calls = {n: Call(note_process, (tmp_path / f"{n}",), tmp_path / "log") for n in range(3)}
    calls[0] = Call(fail, ("killed",), tmp_path / "log")
    told = {}
    call_at_once(calls, at_once=1, in_a_row=3, ended=lambda key, error: told.update({key: error}))
    assert "signal 9" in str(told.pop(0)) and told == {1: None, 2: None}


def test_a_mistake_does_not_end_the_process_of_further_calls(tmp_path):
    calls = {n: Call(note_process, (tmp_path / f"{n}",), tmp_path / "log") for n in range(3)}
    calls[1] = Call(fail, ("diverged",), tmp_path / "log")
    told = {}
    call_at_once(calls, at_once=1, in_a_row=3, ended=lambda key, error: told.update({key: error}))
    assert type(told[1]) is TrainingError and told[0] is told[2] is None
    assert (tmp_path / "0").read_text() == (tmp_path / "2").read_text()


def test_more_at_once_than_processors_share_them(tmp_path):
    number = len(PROCESSORS) + 1
    calls = {n: Call(note, (tmp_path / f"{n}", 0), tmp_path / "log") for n in range(number)}
    call_at_once(calls, at_once=number, ended=lambda key, error: None)
    told = [json.loads((tmp_path / f"{n}").read_text())[2] for n in range(number)]
    assert all(len(processors) == 1 for processors in told)


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("user", UserError, "no ratings"),
        ("diverged", TrainingError, "the loss is nan"),
        ("killed", UserError, "ended by signal 9; was the memory short"),
    ],
)
def test_mistakes_of_the_user_are_told_and_the_others_go_on(tmp_path, kind, expected, message):
    told = {}
    calls = {
        "bad": Call(fail, (kind,), tmp_path / "bad.log"),
        "good": Call(note, (tmp_path / "good", 0), tmp_path / "good.log"),
    }
    call_at_once(calls, at_once=1, ended=lambda key, error: told.update({key: error}))
    assert type(told["bad"]) is expected and message in str(told["bad"])
    assert told["good"] is None and (tmp_path / "good").exists()


@pytest.mark.parametrize("is_bug", [False, True])
def test_what_stops_it_leaves_no_process(tmp_path, is_bug):
    calls = {
        "bad": Call(fail, ("bug" if is_bug else "user",), tmp_path / "bad.log"),
        "long": Call(note, (tmp_path / "long", 600), tmp_path / "long.log"),
    }

    def ended(key, error):
        raise error

    expected = RuntimeError if is_bug else UserError
    with pytest.raises(expected) as told:
        call_at_once(calls, at_once=2, ended=ended)
    if is_bug:
        assert str(told.value).endswith(f"see {tmp_path / 'bad.log'}.")
        assert "ValueError: a bug" in (tmp_path / "bad.log").read_text()
    children = psutil.Process().children()
    assert not any("spawn_main" in " ".join(child.cmdline()) for child in children)
    assert not (tmp_path / "long").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all(signalled, tmp_path, number, status):
    children = _start(signalled, tmp_path, number, status)
    assert not any(child.is_running() for child in children)


def test_children_end_when_their_parent_is_killed(signalled, tmp_path):
    children = _start(signalled, tmp_path, signal.SIGKILL, -signal.SIGKILL)
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert (len(gone), alive) == (2, [])


def _start(signalled, tmp_path, number, status):
    """Starts two long calls, sends their parent a signal, and returns its children."""
    program = (
        "import pathlib, sys, time\n"
        "from experiments import command\n"
        "from experiments.papers.child_process import Call\n"
        "from experiments.sweeping.at_once import call_at_once\n"
        "command.start()\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "calls = {n: Call(time.sleep, (600,), log) for n in range(3)}\n"
        "try:\n"
        "    call_at_once(calls, at_once=2, ended=print)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    returned, errors, children = signalled(program, number, num_children=2, timeout=60)
    assert (returned, errors) == (status, "")
    return children


def test_as_many_fit_as_there_are_processors_and_memory(monkeypatch):
    monkeypatch.setattr(at_once, "count_processors", lambda: 8)
    for free, number, expected in [(64e9, 24, 8), (64e9, 3, 3), (5e9, 24, 3), (1e9, 24, 1)]:
        monkeypatch.setattr(at_once, "free_bytes", lambda free=free: free)
        assert fitting(number) == expected


def test_a_second_sweep_waits_and_then_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(at_once, "_SECONDS_TO_END", 0.5)
    with alone_in(tmp_path / "sweep"):
        with pytest.raises(UserError, match="Another sweep is running in"):
            with alone_in(tmp_path / "sweep"):
                pass
    assert capsys.readouterr().out == f"waiting for another sweep in {tmp_path / 'sweep'} to end\n"
    with alone_in(tmp_path / "sweep"):
        pass


def test_it_waits_for_the_runs_of_a_killed_sweep(tmp_path):
    program = (
        "import pathlib, time\n"
        "from experiments.sweeping.at_once import take_part\n"
        f"take_part(pathlib.Path({str(tmp_path)!r}))\n"
        "print(flush=True)\n"
        "time.sleep(1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as run:
        run.stdout.readline()
        with alone_in(tmp_path):
            assert run.wait(timeout=0.5) == 0
            with open(tmp_path / ".lock", "a") as file:  # Runs of this sweep share it.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_folder_that_cannot_be_written_is_a_mistake(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot write to .*file"):
        with alone_in(tmp_path / "file"):
            pass
