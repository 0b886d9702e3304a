"""Work in child processes, one or several in parallel, so that its memory is freed at their end."""

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

from fedpersonal.errors import UserError
from fedpersonal.federated.memory import free_bytes
from fedpersonal.runtime.processors import count_processors
from fedpersonal.suite.commands import startup

# Memory of a small run, with a margin.
BYTES_A_RUN = 1.5e9
_SECONDS_TO_END = 60.0
# A variable that `startup.start` sets. It must be unset in children: `start` would take its value
# for the user's.
_LOG_LEVEL = ("TF_CPP_MIN_LOG_LEVEL", "3")
_KILLED = (
    "the process of a run was killed; was the memory short? The same command resumes from there."
)
KeyT = TypeVar("KeyT")


class Call(NamedTuple):
    """A call for a child process.

    Attributes:
        function: A function of a module; it writes its results to files.
        arguments: Its arguments, which are pickled.
        output: A file to which its output is appended; None for this process's output.
    """

    function: Callable[..., None]
    arguments: tuple = ()
    output: pathlib.Path | None = None


def jobs_that_fit(number: int, bytes_a_run: float = BYTES_A_RUN) -> int:
    """Returns the number of parallel runs, of `number`, for the processors and the memory."""
    return max(1, min(number, count_processors(), int(free_bytes() // bytes_a_run)))


def run_in_child(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process and waits for its end.

    Args:
        function: A function of a module; it writes its results to files.
        *arguments: Its arguments, which are pickled.

    Raises:
        UserError: If the function raises one, or the child is killed.
        RuntimeError: If the function raises another error, which the child prints.
    """

    def ended(key: None, error: UserError | None) -> None:
        if error:
            raise error

    run_calls({None: Call(function, arguments)}, jobs=1, ended=ended)


def run_calls(
    calls: Mapping[KeyT, Call],
    *,
    jobs: int,
    ended: Callable[[KeyT, UserError | None], None],
    calls_a_process: int = 1,
) -> None:
    """Runs calls in child processes, in order, several in parallel.

    Each process has its share of the processors. When this function ends, no process is left; if it
    ends by an error, each gets SIGTERM, which lets it save its run.

    Args:
        calls: The calls by a key.
        jobs: Number of parallel calls.
        ended: Receives the key of each ended call, and the user's mistake with which it has ended,
            or None. An exception from it ends the other calls.
        calls_a_process: Number of successive calls in one process: calls leak a little memory, but
            starting a process takes seconds.

    Raises:
        UserError: If a process is killed.
        RuntimeError: If a function fails with another error.
    """
    waiting = list(calls)[::-1]
    running: dict[concurrent.futures.Future, tuple[KeyT, _Place]] = {}
    with _places(min(jobs, len(calls)), calls_a_process) as places:
        idle = [*places]
        while waiting or running:
            while idle and waiting:
                key, place = waiting.pop(), idle.pop(0)
                running[place.make(calls[key])] = (key, place)
            done, _ = concurrent.futures.wait(running, 1.0, concurrent.futures.FIRST_COMPLETED)
            if not done and not all(place.is_alive() for _, place in running.values()):
                raise UserError(_KILLED)  # The pool has not noticed its end.
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
    """A share of the processors on which calls run in turn; a process runs a few of them."""

    def __init__(self, processors: Sequence[int], calls_a_process: int) -> None:
        self._processors, self._calls_a_process = processors, calls_a_process
        self._number = 0
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._process: BaseProcess | None = None

    def make(self, call: Call) -> concurrent.futures.Future:
        """Starts a call; the previous one must have ended."""
        if self._number % self._calls_a_process == 0:
            self.close()
            self._pool = concurrent.futures.ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), _begin, (self._processors,)
            )
        self._number += 1
        assert self._pool is not None
        others = multiprocessing.active_children()
        with _interrupts_blocked():  # The process starts here, and inherits the mask.
            try:
                future = self._pool.submit(_make, *call)
            except BrokenProcessPool:  # Between two calls.
                raise UserError(_KILLED) from None
        started = (one for one in multiprocessing.active_children() if one not in others)
        self._process = next(started, self._process)
        return future

    def is_alive(self) -> bool:
        """Returns whether the process of the call is alive."""
        return self._process is not None and self._process.is_alive()

    def close(self) -> None:
        """Ends the process, once its call has ended."""
        if self._pool is not None:
            self._pool.shutdown()


@contextlib.contextmanager
def _places(number: int, calls_a_process: int) -> Iterator[Sequence[_Place]]:
    """Yields places, each with its share of the processors; an exception ends their processes."""
    # Only Linux can bind a process to processors.
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [allowed[place % max(1, len(allowed)) :: number] for place in range(number)]
    places = [_Place(share, calls_a_process) for share in shares]
    others = multiprocessing.active_children()
    try:
        yield places
    except BaseException:
        children = [child for child in multiprocessing.active_children() if child not in others]
        for child in children:
            child.terminate()
        for child in children:
            child.join(_SECONDS_TO_END)
            child.kill()
        raise
    for place in places:
        place.close()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Blocks SIGINT: Ctrl-C reaches the whole group, but only this process handles it.

    It sends SIGTERM to the others.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(processors: Sequence[int]) -> None:
    """Prepares a child: its processors, logs and signals, and its end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if processors:
        os.sched_setaffinity(0, processors)
    name, value = _LOG_LEVEL
    if os.environ.get(name) == value:
        del os.environ[name]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # `start` replaces only the default handler.
    startup.start()
    threading.Thread(target=_follow_parent, daemon=True).start()


def _make(
    function: Callable[..., None], arguments: tuple[Any, ...], output: pathlib.Path | None
) -> None:
    """Runs a call in a child."""
    _print_to(output)
    try:
        function(*arguments)
    except UserError:
        raise
    except Exception:
        traceback.print_exc()
        where = f"; see {output}" if output else ""
        raise RuntimeError(f"{function.__name__} has failed in its process{where}.") from None
    except SystemExit:  # A signal, after which the run is saved; the pool would catch it.
        sys.stdout.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()


def _print_to(path: pathlib.Path | None) -> None:
    """Appends the output of this process, and of its children, to a file from now on."""
    if path is not None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        os.close(file)


def _follow_parent() -> None:
    """Ends this process when its parent has been killed, and so cannot end it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
