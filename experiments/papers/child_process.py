"""Work in a process of its own, whose memory comes back when the work is done.

A TFF computation stays in its worker for as long as the worker lives, about 200 MB a run: many
runs in one process would make it grow with each.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Collection
from typing import Any

from fedpersonal import runtime
from fedpersonal.errors import TrainingError, UserError

# What `runtime.quiet_logs` sets, and takes for the user's wish where it finds it set.
_LOG_LEVEL = ("TF_CPP_MIN_LOG_LEVEL", "3")


class Child:
    """A function at work in a new process, which ends with this one however this one ends.

    Attributes:
        sentinel: Ready, for `multiprocessing.connection.wait`, when the process has ended.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        processors: Collection[int] = (),
        output: pathlib.Path | None = None,
    ):
        """Starts the process.

        Args:
            function: A function of a module; it hands its results on in files.
            *arguments: Its arguments; they are pickled.
            processors: Those that it may use, by number; none for all of this process.
            output: A file to which what it prints is added; None for this process' output.
        """
        context = multiprocessing.get_context("spawn")
        self._function, self._output = function, output
        self._receiver, sender = context.Pipe(duplex=False)
        # Unpickling imports TensorFlow, which must not come before `runtime.start`.
        call = pickle.dumps((function, arguments))
        told = (sender, call, tuple(processors), output)
        self._process = context.Process(target=_main, args=told, daemon=True)
        # Ctrl-C reaches the whole group; this process alone answers it, with SIGTERM to the child,
        # which takes over the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.sentinel = self._process.sentinel
        sender.close()

    def wait(self) -> None:
        """Waits for its end.

        Raises:
            UserError: That of the function, or the process was killed.
            RuntimeError: The function has raised another error, which the process has printed.
        """
        self._process.join()
        if self._receiver.poll():
            try:
                raise self._receiver.recv()
            except EOFError:
                pass
        code = self._process.exitcode
        assert code is not None  # It has ended.
        if code < 0:
            raise UserError(
                f"the process of a run was ended by signal {-code}; was the memory short? "
                "The same command goes on from there."
            )
        if code:
            where = f"; see {self._output}" if self._output else ""
            raise RuntimeError(f"{self._function.__name__} has failed in its process{where}.")

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
    child = Child(function, *arguments)
    try:
        child.wait()
    except BaseException:
        child.terminate()
        child.join()
        raise


def _main(
    sender: Any, call: bytes, processors: tuple[int, ...], output: pathlib.Path | None
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if processors:
        os.sched_setaffinity(0, processors)
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
    name, value = _LOG_LEVEL
    if os.environ.get(name) == value:
        del os.environ[name]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # For `start`, which leaves other handlers alone.
    runtime.start()
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        function, arguments = pickle.loads(call)
        function(*arguments)
    except UserError as error:
        kind = TrainingError if isinstance(error, TrainingError) else UserError
        sender.send(kind(str(error)))
    except Exception:
        traceback.print_exc()
        runtime.leave(1)
    runtime.leave(0)


def _follow_parent() -> None:
    """Ends this process when its parent has been killed, and could not do so itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
