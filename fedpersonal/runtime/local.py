"""A TFF execution context that runs computations inside this Python process.

No child process, no port, no serialisation: values go from one part of a computation to the next
as they are. What it cannot run it hands to TFF's worker.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow_federated as tff

from fedpersonal.runtime import values
from fedpersonal.runtime.graphs import Unsupported
from fedpersonal.runtime.interpreter import Interpreter
from fedpersonal.runtime.processors import count_processors
from fedpersonal.runtime.program import note_run
from fedpersonal.runtime.values import Members

_log = logging.getLogger(__name__)


class LocalContext(tff.framework.SyncContext):
    """Runs TFF computations in this process.

    Results are those of TFF's worker: members' values are added up in their order, by the same
    TensorFlow operations.
    """

    def __init__(self, fallback: Callable[[], tff.framework.SyncContext], *, compile: str = "auto"):
        """Makes the context.

        Args:
            fallback: Makes the context to which computations are handed that cannot run here.
            compile: Whether XLA compiles what members of CLIENTS run: `always`, `never`, or `auto`,
                where it seems worth it.
        """
        self._compiled = {"always": True, "never": False, "auto": None}[compile]
        self._make_fallback = fallback
        self._fallback: tff.framework.SyncContext | None = None
        self._pool = ThreadPoolExecutor(count_processors())
        # By `id`: a computation's hash is that of all its graphs, computed anew each time.
        self._interpreters: dict[int, Interpreter | None] = {}

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles a part of a computation that was run and still exists."""
        return any(one.is_compiled for one in self._interpreters.values() if one is not None)

    def invoke(self, comp: tff.Computation, arg: Any) -> Any:
        """Runs a computation on an argument and returns its result."""
        note_run()
        if id(comp) not in self._interpreters:
            self._interpreters[id(comp)] = self._prepare(comp)
            # The computation may outlive this context, and must not hold what the context has made.
            weakref.finalize(comp, _forget, weakref.ref(self), id(comp)).atexit = False
        interpreter = self._interpreters[id(comp)]
        if interpreter is None:
            return self._handed_over(comp, arg)
        parameter = comp.type_signature.parameter
        argument, count = None, None
        if parameter is not None:
            count = values.num_members(arg, parameter)
            argument = values.ingest(arg, parameter)
        return values.deliver(interpreter(argument, count or 0), comp.type_signature.result)

    def _map_members(self, function: Callable[[Any], Any], members: Members) -> Iterable[Any]:
        """Applies a function to members of CLIENTS, in the threads of the pool."""
        # Even one alone: the main thread can be interrupted while it waits, not while it computes.
        return self._pool.map(function, members)

    def _prepare(self, comp: tff.Computation) -> Interpreter | None:
        try:
            return Interpreter(comp, self._map_members, compiled=self._compiled)
        except Unsupported as reason:
            _log.warning("A computation runs in TFF's worker, not in this process: %s.", reason)
            return None

    def _handed_over(self, comp: tff.Computation, arg: Any) -> Any:
        if self._fallback is None:
            self._fallback = self._make_fallback()
        return self._fallback.invoke(comp, arg)


def _forget(context: weakref.ref[LocalContext], key: int) -> None:
    """Drops what a context has made of a computation that is gone."""
    alive = context()
    if alive is not None:
        alive._interpreters.pop(key, None)
