"""A TFF context inside this Python process: the default of all threads, once this is imported.

It needs no child process, no port and no serialisation: the parts of a computation exchange values
in memory. TFF's default context would start a program that listens on a port.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import psutil

from fedpersonal import tff
from fedpersonal.errors import UserError
from fedpersonal.runtime.interpreter import Interpreter, MapShards
from fedpersonal.runtime.processors import shard_threads

_has_run = False  # Whether TensorFlow has run in sessions of this module.
_lacks_threads = False  # Whether this process was forked after TensorFlow had run.


class LocalContext(tff.SyncContext):
    """Runs TFF computations in this process.

    Results equal those of TFF's runtime: the same TensorFlow operations add shards' values in the
    same order.
    """

    def __init__(self, *, compile: bool = True):
        """Creates the context.

        Args:
            compile: Whether XLA compiles the shards' graphs, if that seems worth it.
        """
        self._compile = compile
        # Keys are `id`s, because the hash of a computation is computed anew from all its graphs.
        self._interpreters: dict[int, Interpreter] = {}

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles a part of any computation that has run and still exists."""
        return any(one.is_compiled for one in self._interpreters.values())

    def invoke(self, comp: tff.Computation, arg: Any) -> Any:
        """Runs a computation on an argument and returns its result.

        Raises:
            UserError: If the computation has an unsupported part, or this process was forked
                after TensorFlow had run.
        """
        global _has_run
        check_not_forked()
        _has_run = True
        if id(comp) not in self._interpreters:
            self._interpreters[id(comp)] = Interpreter(comp, compile=self._compile)
            # The computation may outlive this context, and must not keep the interpreter alive.
            weakref.finalize(comp, _forget, weakref.ref(self), id(comp)).atexit = False
        with self._mapping() as map_shards:
            return self._interpreters[id(comp)](arg, map_shards)

    @contextlib.contextmanager
    def _mapping(self) -> Iterator[MapShards]:
        """Yields a function that applies a function to each shard; here, in threads."""
        # Threads run single shards, too: the main thread can be interrupted only while it waits.
        with shard_threads() as threads:
            yield threads.map


def _forget(context: weakref.ref[LocalContext], key: int) -> None:
    """Removes the interpreter of a deleted computation from a context."""
    alive = context()
    if alive is not None:
        alive._interpreters.pop(key, None)


def check_not_forked() -> None:
    """Raises a UserError in a fork of a process in which TensorFlow had run.

    A fork lacks the threads of TensorFlow, and would wait for them forever.
    """
    if _lacks_threads:
        raise UserError(
            "this process was forked after TensorFlow had run, so TensorFlow cannot run in it: "
            "start it by multiprocessing.get_context('spawn'), or fork before anything is trained."
        )


def _note_fork() -> None:
    global _lacks_threads
    eager = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    _lacks_threads = _lacks_threads or _has_run or getattr(eager, "_initialized", False)


def set_default_context(context: tff.SyncContext) -> None:
    """Sets TFF's default context in all threads.

    A context that a program installs or sets later takes precedence, as always in TFF.
    """
    stack = tff.get_context_stack()
    kind = type(stack)
    if "_shared_default" not in vars(kind):
        stack.__class__ = type(
            kind.__name__, (_SharedDefaultStack, kind), {"_shared_default": None}
        )
    stack.set_default_context(context)


class _SharedDefaultStack:
    """TFF's stack of contexts, one for each thread, with a default that all threads share."""

    def set_default_context(self, context: Any) -> None:
        super().set_default_context(context)  # type: ignore[misc]
        type(self)._shared_default = context  # type: ignore[attr-defined]

    @property
    def current(self) -> Any:
        self._stack[0] = self._shared_default  # type: ignore[attr-defined]
        return super().current  # type: ignore[misc]


_NOTICE = (
    "TFF's runtime listens on every network interface without authentication: others on this "
    "machine and its network can run code as you while this program runs."
)
_CHILD = "worker_binary"


def make_stock_context() -> tff.SyncContext:
    """Returns TFF's context, and prints a notice about its open port to stderr.

    The C++ program starts with the first computation, and ends with this process, unless this
    process is killed.
    """
    from fedpersonal.tff import stock

    print(_NOTICE, file=sys.stderr)
    atexit.register(_end, os.getpid())
    return stock.create_sync_local_cpp_execution_context()


def _end(process: int) -> None:
    """Ends TFF's child processes of this process, because TFF ends them too late."""
    if os.getpid() != process:  # A fork.
        return
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == _CHILD:
                child.kill()
    set_default_context(LocalContext())
    gc.collect()  # TFF waits for its child when its context is collected.


os.register_at_fork(after_in_child=_note_fork)
set_default_context(LocalContext())
