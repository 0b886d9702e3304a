"""Work in a process of its own, whose memory comes back when the work is done.

TensorFlow does not give all memory back: many runs in one process would make it grow with each.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from experiments import command
from fedpersonal.errors import TrainingError, UserError

# What `command.start` sets, and takes for the user's wish where it finds it set.
_LOG_LEVEL = ("TF_CPP_MIN_LOG_LEVEL", "3")


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


class Child:
    """Calls, one after another, in a new process, which ends with this one however that ends.

    Attributes:
        connection: Ready, for `multiprocessing.connection.wait`, when a call has ended.
        was_killed: Whether the process is known to have been killed: no further call ends.
    """

    was_killed = False

    def __init__(self, *calls: Call, processors: Collection[int] = ()):
        """Starts the process.

        Args:
            *calls: The calls.
            processors: Those that it may use, by number; none for all of this process.
        """
        context = multiprocessing.get_context("spawn")
        self._calls = iter(calls)
        self.connection, sender = context.Pipe(duplex=False)
        # Unpickling imports TensorFlow, which must not come before `command.start`.
        pickled = [(call.output, pickle.dumps(call)) for call in calls]
        told = (sender, pickled, tuple(processors))
        self._process = context.Process(target=_main, args=told, daemon=True)
        # Ctrl-C reaches the whole group; this process alone answers it, with SIGTERM to the child,
        # which takes over the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sender.close()

    def wait(self) -> UserError | None:
        """Waits for the end of the next call.

        Returns:
            What the function has raised, if that is a mistake of the user, or what tells that the
            process was killed.

        Raises:
            RuntimeError: The function has raised another error, which the process has printed.
        """
        call = next(self._calls)
        try:
            return self.connection.recv()
        except EOFError:
            self._process.join()
        code = self._process.exitcode
        assert code is not None  # It has ended.
        if code > 0:
            where = f"; see {call.output}" if call.output else ""
            raise RuntimeError(f"{call.function.__name__} has failed in its process{where}.")
        self.was_killed = True
        return UserError(
            f"the process of a run was ended by signal {-code}; was the memory short? "
            "The same command goes on from there."
        )

    def terminate(self) -> None:
        """Sends it SIGTERM, which lets it save its run."""
        self._process.terminate()

    def join(self, seconds: float | None = None) -> None:
        """Waits for its end, whatever that is; after so many seconds it is killed."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def run_in_child(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process and waits for its end.

    When this process is interrupted or ended meanwhile, the child is ended by SIGTERM, which lets
    it save its run.

    Args:
        function: A function of a module; it hands its results on in files.
        *arguments: Its arguments; they are pickled.

    Raises:
        UserError: That of the function, or the child was killed.
        RuntimeError: The function has raised another error, which the child has printed.
    """
    child = Child(Call(function, arguments))
    try:
        error = child.wait()
        child.join()
    except BaseException:
        child.terminate()
        child.join()
        raise
    if error:
        raise error


def _main(
    sender: Any, calls: list[tuple[pathlib.Path | None, bytes]], processors: tuple[int, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if processors:
        os.sched_setaffinity(0, processors)
    _print_to(calls[0][0])
    name, value = _LOG_LEVEL
    if os.environ.get(name) == value:
        del os.environ[name]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # For `start`, which leaves other handlers alone.
    command.start()
    threading.Thread(target=_follow_parent, daemon=True).start()
    for output, pickled in calls:
        _print_to(output)
        try:
            call = pickle.loads(pickled)
            call.function(*call.arguments)
        except UserError as error:
            kind = TrainingError if isinstance(error, TrainingError) else UserError
            sender.send(kind(str(error)))
        except Exception:
            traceback.print_exc()
            command.leave(1)
        else:
            sender.send(None)
    command.leave(0)


def _print_to(path: pathlib.Path | None) -> None:
    """Adds to a file what this process, and those that it starts, print from now on."""
    if path is not None:
        sys.stdout.flush()
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
