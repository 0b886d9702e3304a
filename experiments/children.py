"""Work in child processes, alone or several at once, whose memory comes back when they end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeVar

from experiments import startup
from fedpersonal.errors import UserError
from fedpersonal.federated.memory import free_bytes
from fedpersonal.runtime.processors import count_processors

# What a small run needs, and some more.
BYTES_A_RUN = 1.5e9
_SECONDS_TO_END = 60.0
# What `startup.start` sets, and takes for the user's wish where it finds it set.
_LOG_LEVEL = ("TF_CPP_MIN_LOG_LEVEL", "3")
_KILLED = (
    "the process of a run was killed; was the memory short? The same command goes on from there."
)
KeyT = TypeVar("KeyT")


class Call(NamedTuple):
    """What a child process is to do.

    Attributes:
        function: A function of a module; it hands its results on in files.
        arguments: Its arguments; they are pickled.
        output: A file to which what it prints is added; None for this process' output.
    """

    function: Callable[..., None]
    arguments: tuple = ()
    output: pathlib.Path | None = None


def fitting(number: int, bytes_a_run: float = BYTES_A_RUN) -> int:
    """Returns how many of so many runs fit at once: a processor each, and the memory."""
    return max(1, min(number, count_processors(), int(free_bytes() // bytes_a_run)))


def run_in_child(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process and waits for its end.

    Args:
        function: A function of a module; it hands its results on in files.
        *arguments: Its arguments; they are pickled.

    Raises:
        UserError: That of the function, or the child was killed.
        RuntimeError: The function has raised another error, which the child has printed.
    """

    def ended(key: None, error: UserError | None) -> None:
        if error:
            raise error

    call_at_once({None: Call(function, arguments)}, at_once=1, ended=ended)


def call_at_once(
    calls: Mapping[KeyT, Call],
    *,
    at_once: int,
    ended: Callable[[KeyT, UserError | None], None],
    calls_a_process: int = 1,
) -> None:
    """Makes calls in other processes, in their order, so many at once.

    Each process has its share of the processors. However this function ends, no process is left;
    each gets SIGTERM, which lets it save its run.

    Args:
        calls: The calls by a key.
        at_once: How many at once.
        ended: Is given the key of each call that has ended, and the user's mistake that it has
            ended with. What it raises ends the others.
        calls_a_process: How many a process makes: each leaves some memory behind, and starting one
            takes seconds.

    Raises:
        UserError: A process was killed.
        RuntimeError: A function has failed otherwise.
    """
    waiting = list(calls)[::-1]
    running: dict[concurrent.futures.Future, tuple[KeyT, _Place]] = {}
    with _places(min(at_once, len(calls)), calls_a_process) as places:
        idle = [*places]
        while waiting or running:
            while idle and waiting:
                key, place = waiting.pop(), idle.pop(0)
                running[place.make(calls[key])] = (key, place)
            done, _ = concurrent.futures.wait(running, 1.0, concurrent.futures.FIRST_COMPLETED)
            if not done and not all(place.is_alive() for _, place in running.values()):
                raise UserError(_KILLED)  # It has died unheard by its pool.
            for future in done:
                key, place = running.pop(future)
                error = future.exception()
                if isinstance(error, (BrokenProcessPool, SystemExit)):
                    raise UserError(_KILLED) from None
                if error is not None and not isinstance(error, UserError):
                    raise error
                idle.append(place)
                ended(key, error)


class _Place:
    """Processors on which calls are made, one after the other, each few by a new process."""

    def __init__(self, processors: Sequence[int], calls_a_process: int) -> None:
        self._processors, self._calls_a_process = processors, calls_a_process
        self._number = 0
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._process: BaseProcess | None = None

    def make(self, call: Call) -> concurrent.futures.Future:
        """Has a call made; the one before it has ended."""
        if self._number % self._calls_a_process == 0:
            self.close()
            self._pool = concurrent.futures.ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), _begin, (self._processors,)
            )
        self._number += 1
        assert self._pool is not None
        others = multiprocessing.active_children()
        with _interrupts_blocked():  # The process starts here, and takes over the mask.
            try:
                future = self._pool.submit(_make, *call)
            except BrokenProcessPool:  # Between two calls.
                raise UserError(_KILLED) from None
        started = (one for one in multiprocessing.active_children() if one not in others)
        self._process = next(started, self._process)
        return future

    def is_alive(self) -> bool:
        """Whether the process is there that makes the call."""
        return self._process is not None and self._process.is_alive()

    def close(self) -> None:
        """Ends the process, once its call has ended."""
        if self._pool is not None:
            self._pool.shutdown()


@contextlib.contextmanager
def _places(number: int, calls_a_process: int) -> Iterator[Sequence[_Place]]:
    """Gives so many places, each with its share of the processors; what is raised ends them."""
    # Only Linux lets a process have processors of its own.
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [allowed[place % max(1, len(allowed)) :: number] for place in range(number)]
    places = [_Place(share, calls_a_process) for share in shares]
    others = multiprocessing.active_children()
    try:
        yield places
    except BaseException:
        own = [child for child in multiprocessing.active_children() if child not in others]
        for child in own:
            child.terminate()
        for child in own:
            child.join(_SECONDS_TO_END)
            child.kill()
        raise
    for place in places:
        place.close()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C reaches the whole group; this process alone answers it, with SIGTERM to the others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(processors: Sequence[int]) -> None:
    """Readies a child: its processors, its logs, its signals, its end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if processors:
        os.sched_setaffinity(0, processors)
    name, value = _LOG_LEVEL
    if os.environ.get(name) == value:
        del os.environ[name]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # For `start`, which leaves other handlers alone.
    startup.start()
    threading.Thread(target=_follow_parent, daemon=True).start()


def _make(
    function: Callable[..., None], arguments: tuple[Any, ...], output: pathlib.Path | None
) -> None:
    """Makes a call in a child."""
    _print_to(output)
    try:
        function(*arguments)
    except UserError:
        raise
    except Exception:
        traceback.print_exc()
        where = f"; see {output}" if output else ""
        raise RuntimeError(f"{function.__name__} has failed in its process{where}.") from None
    except SystemExit:  # By a signal, and the run is saved. The pool would go on, exit hooks wait.
        sys.stdout.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()


def _print_to(path: pathlib.Path | None) -> None:
    """Adds to a file what this process, and those that it starts, print from now on."""
    if path is not None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        os.close(file)


def _follow_parent() -> None:
    """Ends this process when its parent has been killed, and could not do so itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
