"""TFF's own runtime, the C++ worker, with its door closed.

Other users and other machines cannot reach the worker, see `supervisor`; another process of the
same user could only by looking into this one's memory or into the worker's network (`ptrace`,
`nsenter`). Messages, compiler and results are those of TFF's own context.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedpersonal.errors import UserError
from fedpersonal.runtime import supervisor

if TYPE_CHECKING:
    import tensorflow_federated as tff

_MAX_MESSAGE_BYTES = 2 * 10**9
_NEVER = 2**31 - 1
_LONGEST_PLACE = 80  # A socket's path has at most 107 bytes.
_CHANNEL_OPTIONS = [
    ("grpc.max_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # The supervisor lets in one connection, so it has to last.
    ("grpc.client_idle_timeout_ms", _NEVER),
    ("grpc.min_reconnect_backoff_ms", _NEVER),
]

_workers: dict[bool, _Worker] = {}
_lock = threading.Lock()


def start_worker(*, open_worker: bool = False) -> None:
    """Starts TFF's C++ worker, which this process alone can reach, unless it is there.

    It can be called before TFF is imported: then the worker starts meanwhile. The worker ends with
    this process, even by SIGKILL.

    Args:
        open_worker: Let the worker listen on every network interface, as TFF does, where the
            system does not let it have a network of its own. Whoever reaches its port can then run
            code as this user.

    Raises:
        UserError: If the worker cannot have a network of its own, and `open_worker` is not set.
    """
    with _lock:
        if open_worker in _workers and _workers[open_worker].has_ended():
            del _workers[open_worker]
    _worker(open_worker)


def worker_context(*, open_worker: bool = False) -> tff.framework.SyncContext:
    """Returns a context like `tff.backends.native.create_sync_local_cpp_execution_context`'s.

    It computes in the worker of `start_worker`; computations raise a UserError once that has been
    ended by others.
    """
    import tensorflow_federated as tff

    def make_executor(
        cardinalities: Mapping[tff.framework.PlacementLiteral, int],
    ) -> tff.framework.RemoteExecutor:
        executor = tff.framework.RemoteExecutor(_worker(open_worker).connect())
        executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
        return executor

    return tff.framework.SyncExecutionContext(
        executor_fn=tff.framework.ResourceManagingExecutorFactory(make_executor),
        compiler_fn=tff.backends.native.desugar_and_transform_to_native,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )


class _Worker:
    """A worker of this process, its supervisor, and the connection to it."""

    def __init__(self, open_worker: bool) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._stub: tff.framework.RemoteExecutorGrpcStub | None = None
        self._reason: str | None = None  # Why it has ended.
        self._control, its_end = socket.socketpair()
        self._folder = tempfile.mkdtemp(prefix="fedpersonal-", dir=_short_place())
        mode = "open" if open_worker else "closed"
        command = [_worker_binary(), "--max_concurrent_computation_calls=-1"]
        with its_end:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, mode, self._folder, *command],
                stdin=its_end.fileno(),
                start_new_session=True,  # Ctrl-C is for this process to answer.
            )
        atexit.register(self.end)
        self._lines = self._control.makefile(encoding="utf-8")
        step, said = self._listen()
        if step == "refused":
            raise UserError(
                f"TFF's worker cannot be shut off from other users on this system ({said}). Take "
                "another runtime (--runtime=local), or let whoever reaches the worker's port run "
                "code as you (--runtime=open_worker)."
            )
        if step != "started":
            raise UserError(f"TFF's worker does not start: {said}.")

    def has_ended(self) -> bool:
        """Says whether the supervisor, and so the worker, is no more."""
        return self.owner == os.getpid() and self._supervisor.poll() is not None

    def connect(self) -> tff.framework.RemoteExecutorGrpcStub:
        """Returns a stub that is connected to the worker, once the worker is up.

        Raises:
            UserError: If the worker has ended.
        """
        with self._lock:
            if self._stub is None and self._reason is None:
                step, said = self._listen()
                if step == "ready":
                    self._stub = _make_stub(said)
                else:
                    self._reason = said
            while self._stub is not None and not self._stub.is_ready:
                if self.has_ended():
                    self._stub, (_, self._reason) = None, self._listen()
                time.sleep(0.01)
            if self._stub is None:
                raise UserError(f"TFF's worker is gone: {self._reason}")
            return self._stub

    def end(self) -> None:
        """Ends worker and supervisor; a fork's exit leaves those of its parent alone."""
        if self.owner == os.getpid():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)
            self._supervisor.wait()
            shutil.rmtree(self._folder, ignore_errors=True)  # Where others ended the supervisor.

    def _listen(self) -> tuple[str, str]:
        """Returns the next step that the supervisor has come to, and what it says about it."""
        step, _, said = self._lines.readline().strip().partition(" ")
        return step, said or "its supervisor was ended"


def _worker(open_worker: bool) -> _Worker:
    """Returns the worker of this process; a fork needs one of its own."""
    with _lock:
        worker = _workers.get(open_worker)
        if worker is None or worker.owner != os.getpid():
            worker = _workers[open_worker] = _Worker(open_worker)
        return worker


def _short_place() -> str:
    place = tempfile.gettempdir()
    return place if len(os.fsencode(place)) <= _LONGEST_PLACE else "/tmp"


def _make_stub(path: str) -> tff.framework.RemoteExecutorGrpcStub:
    import grpc
    import tensorflow_federated as tff

    channel = grpc.insecure_channel(f"unix:{path}", _CHANNEL_OPTIONS)
    return tff.framework.RemoteExecutorGrpcStub(channel)


def _worker_binary() -> str:
    found = importlib.util.find_spec("tensorflow_federated")
    assert found is not None and found.origin is not None
    return os.path.join(os.path.dirname(found.origin), "data", "worker_binary")
