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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
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

    Each process has a share of the processors. However this function ends, no process is left; each
    gets SIGTERM, which lets it save its run.

    Args:
        calls: The calls by a key.
        at_once: How many at once.
        ended: Is given the key of each call that has ended, and the user's mistake that it has
            ended with. What it raises ends the others.
        calls_a_process: How many a process makes, about: each leaves some memory behind, and
            starting one takes seconds.

    Raises:
        UserError: A process was killed.
        RuntimeError: A function has failed otherwise.
    """
    keys, number = list(calls), at_once * calls_a_process
    for start in range(0, len(keys), number):
        some = {key: calls[key] for key in keys[start : start + number]}
        others = multiprocessing.active_children()
        with _pool(min(at_once, len(some))) as pool:
            with _interrupts_blocked():  # Processes start here, and take over the mask.
                futures = {pool.submit(_make, *call): key for key, call in some.items()}
            workers = [one for one in multiprocessing.active_children() if one not in others]
            for future in _as_completed(futures, workers):
                error = future.exception()
                if isinstance(error, (BrokenProcessPool, SystemExit)):
                    raise UserError(_KILLED) from None
                if error is not None and not isinstance(error, UserError):
                    raise error
                ended(futures[future], error)


def _as_completed(
    futures: Iterable[concurrent.futures.Future], workers: Sequence[BaseProcess]
) -> Iterator[concurrent.futures.Future]:
    """Yields calls as they end; raises a `UserError` once a worker has died unheard by its pool."""
    waiting = set(futures)
    while waiting:
        done, waiting = concurrent.futures.wait(waiting, 1.0, concurrent.futures.FIRST_COMPLETED)
        yield from done
        if not done and not all(worker.is_alive() for worker in workers):
            raise UserError(_KILLED)


@contextlib.contextmanager
def _pool(number: int) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Gives so many processes; whatever is raised ends them."""
    context = multiprocessing.get_context("spawn")
    # Only Linux lets a process have processors of its own.
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares: SimpleQueue[Sequence[int]] = context.SimpleQueue()
    for place in range(number):
        shares.put(allowed[place % max(1, len(allowed)) :: number])
    pool = concurrent.futures.ProcessPoolExecutor(
        number, mp_context=context, initializer=_begin, initargs=(shares,)
    )
    others = multiprocessing.active_children()
    try:
        yield pool
    except BaseException:
        own = [child for child in multiprocessing.active_children() if child not in others]
        pool.shutdown(wait=False, cancel_futures=True)
        for child in own:
            child.terminate()
        for child in own:
            child.join(_SECONDS_TO_END)
            child.kill()
        raise
    pool.shutdown()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C reaches the whole group; this process alone answers it, with SIGTERM to the others."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(shares: SimpleQueue[Sequence[int]]) -> None:
    """Readies a child: its processors, its logs, its signals, its end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if processors := shares.get():
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
