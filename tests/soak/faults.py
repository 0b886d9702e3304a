"""What is done to runs: to their processes while they run, and to their files in between."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence

import psutil

from examples.ray_nodes import Nodes
from tests.soak.runs import Fault, Session, timeless

_FAILED = (1, 2)  # A line says what has failed.

# Does something to a running process; returns the statuses with which it may end then, beside 0.
# The docstring names it.
Blow = Callable[[Session, random.Random], Collection[int]]


def strike(
    session: Session, draw: random.Random, more: Sequence[Blow] = ()
) -> tuple[str, Collection[int]]:
    """Does something to a running process.

    Args:
        session: What runs.
        draw: Says what is done, and when.
        more: What fits this process alone.

    Returns:
        What was done, and the statuses with which the process may now end.
    """
    if session.case.runtime == "worker":
        more = (_kill_worker, _kill_supervisor, _stop_worker)
    blow = draw.choice([*_BLOWS, *[*more] * 3])
    seconds, rounds, when = draw.uniform(0, 8), 0, "{:.3g} seconds"
    if draw.random() < 0.7:
        seconds, rounds, when = 0, draw.randrange(session.case.rounds), "{1} rounds"
    is_alive = session.wait_for(seconds=seconds, rounds=rounds)
    if not is_alive:
        return "nothing, it had ended", [0]
    try:
        statuses = blow(session, draw)
    except (ProcessLookupError, psutil.NoSuchProcess):  # It has ended meanwhile.
        statuses = [0]
    assert blow.__doc__ is not None
    return f"{blow.__doc__.rstrip('.').lower()} after {when.format(seconds, rounds)}", [
        0,
        *statuses,
    ]


def _signal(number: signal.Signals, status: int) -> Blow:
    def blow(session: Session, draw: random.Random) -> list[int]:
        session.process.send_signal(number)
        return [status, -number]  # Python itself may not yet have begun.

    blow.__doc__ = f"{number.name}."
    return blow


def _interrupt_twice(session: Session, draw: random.Random) -> list[int]:
    """SIGINT and SIGTERM."""
    session.process.send_signal(signal.SIGINT)
    time.sleep(draw.uniform(0, 0.2))
    session.process.send_signal(signal.SIGTERM)
    return [130, 143, -signal.SIGINT, -signal.SIGTERM]


def _stop(session: Session, draw: random.Random) -> list[int]:
    """A stop for a while."""
    session.process.send_signal(signal.SIGSTOP)
    time.sleep(draw.uniform(0.1, 4))
    session.process.send_signal(signal.SIGCONT)
    return []


def _fill_disk(session: Session, draw: random.Random) -> list[int]:
    """A full disk."""
    # What a process is told whose file may not grow; Python takes the signal for an error.
    size = draw.choice([0, draw.randrange(5_000), draw.randrange(200_000)])
    psutil.Process(session.process.pid).rlimit(resource.RLIMIT_FSIZE, (size, size))
    return [2]


def _stop_reading(session: Session, draw: random.Random) -> list[int]:
    """The end of its reader."""
    assert session.process.stdout
    session.process.stdout.close()
    session.process.stdout = None
    return [128 + signal.SIGPIPE]


def _start_another(session: Session, draw: random.Random) -> list[int]:
    """Another process in its folder."""
    other = Session(session.case, session.folder)
    status, errors = other.end()
    if status not in (0, 2) or (status == 2 and "Another process is running" not in errors):
        raise Fault(f"two at once: status {status}:\n{errors}")
    return [2] if status == 0 else []


def _worker(session: Session) -> psutil.Process:
    """Returns a process that computes for the session."""
    for process in session.family():
        if "worker" in process.name():
            return process
    raise ProcessLookupError


def _kill_worker(session: Session, draw: random.Random) -> list[int]:
    """A killed worker."""
    _worker(session).kill()
    return [*_FAILED]


def _kill_supervisor(session: Session, draw: random.Random) -> list[int]:
    """A killed supervisor."""
    psutil.Process(_worker(session).ppid()).kill()
    return [*_FAILED, -signal.SIGKILL]


def _stop_worker(session: Session, draw: random.Random) -> list[int]:
    """A worker stopped for a while."""
    worker = _worker(session)
    worker.suspend()
    time.sleep(draw.uniform(0.1, 4))
    worker.resume()
    return []


_BLOWS = (
    _signal(signal.SIGINT, 130),
    _signal(signal.SIGTERM, 143),
    _signal(signal.SIGHUP, 129),
    *[_signal(signal.SIGKILL, -signal.SIGKILL)] * 2,
    _interrupt_twice,
    _stop,
    *[_fill_disk] * 2,
    _stop_reading,
    _start_another,
)


def on_ray(nodes: Nodes) -> list[Blow]:
    """Returns what can be done to a process that computes on these nodes; each leaves two."""

    def actors() -> list[psutil.Process]:
        found = [one for number in range(len(nodes.processes)) for one in nodes.family(number)]
        return [one for one in found if one.cmdline()[:1] and "ray::Node" in one.cmdline()[0]]

    def kill_actor(session: Session, draw: random.Random) -> list[int]:
        """A killed actor."""
        draw.choice(actors() or [_nobody()]).kill()
        return []

    def stop_actor(session: Session, draw: random.Random) -> list[int]:
        """A stopped actor."""
        draw.choice(actors() or [_nobody()]).suspend()
        return []

    def kill_node(session: Session, draw: random.Random) -> list[int]:
        """A killed node."""
        nodes.kill(len(nodes.processes) - 1)
        nodes.start(1)
        return []

    return [kill_actor, stop_actor, kill_node]


def _nobody() -> psutil.Process:
    raise ProcessLookupError


def damage(folder: pathlib.Path, draw: random.Random) -> str:
    """Damages one file of a run's folder; returns what was done."""
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and _is_read_again(p)]
    if not paths:
        return "nothing, there was no file"
    path = draw.choice(paths)
    kind = draw.choice(["flip", "flip", "cut", "fill", "delete", "folder", "fifo", "protect"])
    content = bytearray(path.read_bytes())
    if kind == "flip":
        for _ in range(draw.choice([1, 1, 10])):
            if content:
                content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
    elif kind == "cut":
        os.truncate(path, draw.randrange(len(content) + 1))
    elif kind == "fill":
        path.write_bytes(draw.randbytes(draw.choice([0, 1, 1000])))
    elif kind == "protect":
        path.chmod(0)
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
    return f"{kind} {path.relative_to(folder)}"


def _is_read_again(path: pathlib.Path) -> bool:
    is_left = path.name == ".lock" or path.name.startswith("events.")
    return not is_left and path.suffix not in (".png", ".html")


def put_back(copied: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes a run's folder what it was."""
    shutil.rmtree(folder)
    shutil.move(copied, folder)


def files_of(folder: pathlib.Path) -> dict[str, object]:
    """Returns a folder's files that a run which is refused must leave alone."""
    return {
        path.relative_to(folder).as_posix(): _content(path)
        for path in folder.rglob("*")
        # SQLite finishes by itself what a killed process had begun.
        if path.is_file() and _is_read_again(path) and "sqlite" not in path.name
    }


def _content(path: pathlib.Path) -> object:
    if path.name == "config.json":  # The runtime may change, and is noted at once.
        with contextlib.suppress(ValueError, AttributeError):
            return timeless(json.loads(path.read_bytes()))
    return path.read_bytes()
