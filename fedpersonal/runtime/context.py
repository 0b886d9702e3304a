"""A TFF context inside this Python process: the default of all threads, once this is imported.

No child process, no port, no serialisation: values go from one part of a computation to the next
as they are. TFF's own default would start a program that listens on a port.
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

_has_run = False  # TensorFlow, in sessions of ours;
_lacks_threads = False  # it had before this process was forked.


class LocalContext(tff.SyncContext):
    """Runs TFF computations in this process.

    Results are those of TFF's own runtime: shards' values are added up in their order, by the same
    TensorFlow operations.
    """

    def __init__(self, *, compile: bool = True):
        """Makes the context.

        Args:
            compile: Whether XLA compiles what shards run, where that seems worth it.
        """
        self._compile = compile
        # By `id`: a computation's hash is that of all its graphs, computed anew each time.
        self._interpreters: dict[int, Interpreter] = {}

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles a part of a computation that was run and still exists."""
        return any(one.is_compiled for one in self._interpreters.values())

    def invoke(self, comp: tff.Computation, arg: Any) -> Any:
        """Runs a computation on an argument and returns its result.

        Raises:
            UserError: If it has a part that this class does not know, or this process was forked
                after TensorFlow had run.
        """
        global _has_run
        check_not_forked()
        _has_run = True
        if id(comp) not in self._interpreters:
            self._interpreters[id(comp)] = Interpreter(comp, compile=self._compile)
            # The computation may outlive this context, and must not hold what the context has made.
            weakref.finalize(comp, _forget, weakref.ref(self), id(comp)).atexit = False
        with self._mapping() as map_shards:
            return self._interpreters[id(comp)](arg, map_shards)

    @contextlib.contextmanager
    def _mapping(self) -> Iterator[MapShards]:
        """Gives what applies a function to each shard, within a `with` statement: threads here."""
        # A single shard, too: the main thread can be interrupted while it waits, not while it
        # computes.
        with shard_threads() as threads:
            yield threads.map


def _forget(context: weakref.ref[LocalContext], key: int) -> None:
    """Drops what a context has made of a computation that is gone."""
    alive = context()
    if alive is not None:
        alive._interpreters.pop(key, None)


def check_not_forked() -> None:
    """Raises a UserError in a fork of a process in which TensorFlow had run.

    A fork lacks the threads of TensorFlow, and would wait for them without end.
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
    """Sets TFF's default context, of all threads.

    A context that a program installs or sets later comes first, as always in TFF.
    """
    stack = tff.get_context_stack()
    kind = type(stack)
    if "_of_all_threads" not in vars(kind):
        stack.__class__ = type(kind.__name__, (_OfAllThreads, kind), {"_of_all_threads": None})
    stack.set_default_context(context)


class _OfAllThreads:
    """TFF's stack of contexts is one for each thread; with this its default is that of all."""

    def set_default_context(self, context: Any) -> None:
        super().set_default_context(context)  # type: ignore[misc]
        type(self)._of_all_threads = context  # type: ignore[attr-defined]

    @property
    def current(self) -> Any:
        self._stack[0] = self._of_all_threads  # type: ignore[attr-defined]
        return super().current  # type: ignore[misc]


_NOTICE = (
    "TFF's own runtime listens on every network interface and asks nobody who they are: others on "
    "this machine and its network can run code as you while this program runs."
)
_CHILD = "worker_binary"


def make_stock_context() -> tff.SyncContext:
    """Returns TFF's own context, and tells on stderr what it opens.

    Its C++ program begins with the first computation, and ends with this process unless that is
    killed.
    """
    from fedpersonal.tff import stock

    print(_NOTICE, file=sys.stderr)
    atexit.register(_end, os.getpid())
    return stock.create_sync_local_cpp_execution_context()


def _end(process: int) -> None:
    """Ends TFF's children of this process, before TFF tries to: its own way comes too late."""
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
