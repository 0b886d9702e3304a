"""Work in child processes: their share of the machine, their ends, what they raise."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import psutil
import pytest

from fedpersonal.errors import TrainingError, UserError
from fedpersonal.suite.commands import children
from fedpersonal.suite.commands.children import Call, jobs_that_fit, run_calls, run_in_child

PROCESSORS = sorted(os.sched_getaffinity(0))


def note(path, number):
    """Writes when it began and ended, and what it may use; it ends when so many have begun."""
    began, deadline = time.time(), time.monotonic() + 600
    path.with_suffix(".began").touch()
    while len(list(path.parent.glob("*.began"))) < number and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    print("noted")
    path.write_text(json.dumps([began, time.time(), sorted(os.sched_getaffinity(0)), os.getpid()]))


def fail(kind):
    if kind == "user":
        raise UserError("no ratings")
    if kind == "diverged":
        raise TrainingError("the loss is nan")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a bug")


def end_soon():
    """Returns, and ends its process after that."""
    threading.Timer(0.1, os._exit, (1,)).start()


def test_so_many_run_at_once_on_processors_of_their_own(tmp_path):
    calls = {n: Call(note, (tmp_path / f"{n}.json", 2), tmp_path / f"{n}.log") for n in range(5)}
    ended = []
    run_calls(
        calls,
        jobs=2,
        ended=lambda key, error: ended.append((key, error)),
        calls_a_process=2,
    )
    assert sorted(ended) == [(n, None) for n in range(5)]
    notes = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(5)]
    together = [[o for o in notes if o[0] <= one[0] < o[1]] for one in notes]
    assert max(map(len, together)) == 2
    for group in together:
        if len(PROCESSORS) > 1:
            used = [processor for one in group for processor in one[2]]
            assert len(used) == len(set(used))
    # Each process makes two, and the last call has a third one.
    pids = [pid for *_, pid in notes]
    assert len(set(pids)) == 3 and max(map(pids.count, pids)) == 2
    assert (tmp_path / "3.log").read_text() == "noted\n"


def test_no_processor_waits_while_a_call_is_left(tmp_path):
    """The first call ends when all others have begun, by several processes beside its own."""
    numbers = {0: 5, 1: 0, 2: 0, 3: 0, 4: 0}
    calls = {n: Call(note, (tmp_path / f"{n}", least)) for n, least in numbers.items()}
    ended = []
    run_calls(calls, jobs=2, ended=lambda key, error: ended.append(key))
    assert sorted(ended) == [*calls]
    assert json.loads((tmp_path / "0").read_text())[1] > json.loads((tmp_path / "4").read_text())[0]


def test_without_processors_of_their_own_they_share_them(tmp_path, monkeypatch):
    """As outside of Linux."""
    monkeypatch.delattr(os, "sched_getaffinity")
    run_calls(
        {n: Call(note, (tmp_path / f"{n}.json", 2), tmp_path / f"{n}.log") for n in range(2)},
        jobs=2,
        ended=lambda key, error: None,
    )
    for n in range(2):
        assert json.loads((tmp_path / f"{n}.json").read_text())[2] == PROCESSORS


def test_more_at_once_than_processors_share_them(tmp_path):
    number = len(PROCESSORS) + 1
    calls = {n: Call(note, (tmp_path / f"{n}", number), tmp_path / "log") for n in range(number)}
    run_calls(calls, jobs=number, ended=lambda key, error: None)
    used = [json.loads((tmp_path / f"{n}").read_text())[2] for n in range(number)]
    assert all(len(processors) == 1 for processors in used)


def test_mistakes_of_the_user_are_told_and_the_others_go_on(tmp_path):
    calls = {kind: Call(fail, (kind,), tmp_path / "log") for kind in ("user", "diverged")}
    calls["good"] = Call(note, (tmp_path / "good", 0), tmp_path / "log")
    errors = {}
    run_calls(
        calls,
        jobs=1,
        ended=lambda key, error: errors.update({key: error}),
        calls_a_process=3,
    )
    assert type(errors["user"]) is UserError and str(errors["user"]) == "no ratings"
    assert type(errors["diverged"]) is TrainingError and str(errors["diverged"]) == (
        "the loss is nan"
    )
    assert errors["good"] is None and (tmp_path / "good").exists()


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("user", UserError, "no ratings"),
        ("bug", RuntimeError, "fail has failed in its process; see .*bad.log"),
        ("killed", UserError, "was killed; was the memory short"),
    ],
)
def test_what_stops_it_leaves_no_process(tmp_path, kind, expected, message):
    calls = {
        "bad": Call(fail, (kind,), tmp_path / "bad.log"),
        "long": Call(note, (tmp_path / "long", 600), tmp_path / "long.log"),
    }

    def ended(key, error):
        raise error

    with pytest.raises(expected, match=message):
        run_calls(calls, jobs=2, ended=ended)
    if kind == "bug":
        assert "ValueError: a bug" in (tmp_path / "bad.log").read_text()
    left = psutil.Process().children()
    assert not any("spawn_main" in " ".join(child.cmdline()) for child in left)
    assert not (tmp_path / "long").exists()


def test_a_process_that_ends_between_two_calls_is_told():
    calls = {n: Call(end_soon) for n in range(2)}
    with pytest.raises(UserError, match="was killed; was the memory short"):
        run_calls(calls, jobs=1, ended=lambda *_: time.sleep(2), calls_a_process=2)


@pytest.mark.exhaustive
def test_a_child_alone_prints_here_and_hands_its_mistakes_on(tmp_path, capfd):
    run_in_child(os.mkdir, str(tmp_path / "made"))
    assert (tmp_path / "made").is_dir()
    with pytest.raises(UserError, match="no ratings"):
        run_in_child(fail, "user")
    with pytest.raises(RuntimeError, match="int has failed in its process.$"):
        run_in_child(int, "many")
    assert "ValueError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_signal_ends_all(signalled, tmp_path, number, status):
    program = (
        "import pathlib, sys, time\n"
        "from fedpersonal.suite.commands import startup\n"
        "from fedpersonal.suite.commands.children import Call, run_calls\n"
        "startup.start()\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "calls = {n: Call(time.sleep, (600,), log) for n in range(3)}\n"
        "try:\n"
        "    run_calls(calls, jobs=2, ended=print)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    returned, errors, started = signalled(program, number, num_children=2, timeout=60)
    assert returned == status
    # Python itself has a word on semaphores that a killed process leaves.
    assert errors == "" or number == signal.SIGKILL
    gone, alive = psutil.wait_procs(started, timeout=30)
    assert (len(gone), alive) == (2, [])


def test_as_many_fit_as_there_are_processors_and_memory(monkeypatch):
    monkeypatch.setattr(children, "count_processors", lambda: 8)
    for free, number, expected in [(64e9, 24, 8), (64e9, 3, 3), (5e9, 24, 3), (1e9, 24, 1)]:
        monkeypatch.setattr(children, "free_bytes", lambda free=free: free)
        assert jobs_that_fit(number) == expected
    monkeypatch.setattr(children, "free_bytes", lambda: 20e9)
    assert jobs_that_fit(24, 6e9) == 3
