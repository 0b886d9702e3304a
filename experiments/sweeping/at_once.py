"""Work in child processes, several at once, each with its share of the processors."""

from __future__ import annotations

import contextlib
import fcntl
import math
import multiprocessing.connection
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TextIO, TypeVar

from experiments.papers.child_process import Call, Child
from fedpersonal.errors import UserError
from fedpersonal.process.memory import free_bytes
from fedpersonal.runtime.processors import count_processors

# What a small run needs, and some more.
_BYTES_A_RUN = 1.5e9
_SECONDS_TO_END = 60.0
KeyT = TypeVar("KeyT")


def fitting(number: int) -> int:
    """Returns how many of so many runs fit at once: a processor each, and the memory."""
    return max(1, min(number, count_processors(), int(free_bytes() // _BYTES_A_RUN)))


def call_at_once(
    calls: Mapping[KeyT, Call],
    *,
    at_once: int,
    ended: Callable[[KeyT, UserError | None], None],
    in_a_row: int = 1,
) -> None:
    """Makes calls in other processes, in their order, so many at once.

    However this function ends, no process is left; each gets SIGTERM, which lets it save its run.

    Args:
        calls: The calls by a key.
        at_once: How many at once.
        ended: Told of each call that has ended, and of the user's mistake that it has ended with.
            What it raises ends the others.
        in_a_row: Calls that a process makes at most, one after another: starting one takes seconds.

    Raises:
        RuntimeError: A function has failed otherwise.
    """
    allowed = sorted(os.sched_getaffinity(0))
    shares = [allowed[number % len(allowed) :: at_once] for number in range(at_once)]
    waiting = list(calls)
    running: dict[Connection, tuple[Child, list[KeyT], list[int]]] = {}
    try:
        while waiting or running:
            while waiting and shares:
                number = min(in_a_row, math.ceil(len(waiting) / at_once))
                keys, waiting, share = waiting[:number], waiting[number:], shares.pop(0)
                child = Child(*(calls[key] for key in keys), processors=share)
                running[child.connection] = child, keys, share
            for connection in multiprocessing.connection.wait(list(running)):
                child, keys, share = running[connection]  # type: ignore[index]
                error, key = child.wait(), keys.pop(0)
                if child.was_killed:
                    keys, waiting = [], [*keys, *waiting]
                if not keys:
                    child.join()
                    del running[connection]  # type: ignore[arg-type]
                    shares.append(share)
                ended(key, error)
    finally:
        for child, _, _ in running.values():
            child.terminate()
        for child, _, _ in running.values():
            child.join(_SECONDS_TO_END)


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Keeps another sweep out of a folder; waits for runs of one that was killed to save and end.

    Raises:
        UserError: Another one is still there after a minute.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(folder)
    except OSError as error:
        raise UserError(f"Cannot write to {folder}: {error.strerror}.") from error
    with lock as file:
        deadline, is_told = time.monotonic() + _SECONDS_TO_END, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(f"Another sweep is running in {folder}; wait or end it.") from (
                        None
                    )
            if not is_told:
                print(f"waiting for another sweep in {folder} to end", flush=True)
                is_told = True
            time.sleep(0.1)
        fcntl.flock(file, fcntl.LOCK_SH)  # Which its runs share.
        yield


def take_part(folder: pathlib.Path) -> None:
    """Makes sweeps to come wait for the end of this process, a run of one in the folder."""
    file = _open_lock(folder)
    fcntl.flock(file, fcntl.LOCK_SH)
    _held.append(file)


_held: list[TextIO] = []


def _open_lock(folder: pathlib.Path) -> TextIO:
    return open(folder / ".lock", "a", encoding="utf-8")
