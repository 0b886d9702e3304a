"""What TFF computes in unless a program says otherwise.

TFF's own default starts an open worker with the first computation. So that a program never meets
it, another one can be set before TFF is imported, which takes seconds.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow_federated as tff

_TFF = "tensorflow_federated"


def set_default_context(make: Callable[[], tff.framework.SyncContext]) -> None:
    """Sets TFF's default context, of all threads: now, or as soon as TFF has been imported.

    A context that a program installs or sets itself comes first, as always in TFF.

    Args:
        make: Makes the context; it may import TFF. Of several calls before the import, the last
            one counts.
    """
    if _TFF in sys.modules:
        _set(make)
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _AfterImport)]
    sys.meta_path.insert(0, _AfterImport(make))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds TFF as the other finders do, and sets the default context when it is imported."""

    def __init__(self, make: Callable[[], tff.framework.SyncContext]) -> None:
        self._make = make

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TFF:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_set(module: types.ModuleType) -> None:
            execute(module)
            _set(self._make)

        spec.loader.exec_module = execute_and_set  # type: ignore[method-assign]
        return spec


def _set(make: Callable[[], tff.framework.SyncContext]) -> None:
    import tensorflow_federated as tff

    stack = tff.framework.get_context_stack()
    kind = type(stack)
    if "_of_all_threads" not in vars(kind):
        stack.__class__ = type(kind.__name__, (_OfAllThreads, kind), {"_of_all_threads": None})
    stack.set_default_context(make())


class _OfAllThreads:
    """TFF's stack of contexts is one for each thread; with this its default is that of all."""

    def set_default_context(self, context: Any) -> None:
        super().set_default_context(context)  # type: ignore[misc]
        type(self)._of_all_threads = context  # type: ignore[attr-defined]

    @property
    def current(self) -> Any:
        self._stack[0] = self._of_all_threads  # type: ignore[attr-defined]
        return super().current  # type: ignore[misc]
