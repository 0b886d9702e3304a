"""The choice of a runtime: one TFF context for the whole program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpersonal.errors import check_choice
from fedpersonal.runtime.default_context import set_default_context
from fedpersonal.runtime.program import start
from fedpersonal.runtime.worker import start_worker, worker_context

if TYPE_CHECKING:
    import tensorflow_federated as tff

RUNTIMES = ("local", "worker", "open_worker")
COMPILE = ("auto", "always", "never")

_is_chosen = False


def use_runtime(name: str = "local", *, compile: str = "auto") -> None:
    """Sets where TFF's computations run from now on; it may come before TFF is imported.

    Args:
        name: `local`, in this process; `worker`, in TFF's own C++ process, the reference, which
            this process alone can reach; or `open_worker`, the same where the system does not let
            it have a network of its own: whoever reaches its port can run code as this user.
        compile: Whether XLA compiles what clients do: `always`, `never`, or `auto`, where it seems
            worth it. In the local runtime alone.

    Raises:
        UserError: If there is no such runtime, or the worker cannot be shut off from others.
    """
    global _is_chosen
    check_choice("use_runtime", "name", name, RUNTIMES)
    check_choice("use_runtime", "compile", compile, COMPILE)
    start()
    if name == "local":
        set_default_context(lambda: _local_context(compile))
    else:
        is_open = name == "open_worker"
        start_worker(open_worker=is_open)
        set_default_context(lambda: worker_context(open_worker=is_open))
    _is_chosen = True


def ensure_runtime() -> None:
    """Sets the local runtime unless one was chosen."""
    if not _is_chosen:
        set_default_context(lambda: _local_context("auto"))


def _local_context(compile: str) -> tff.framework.SyncContext:
    from fedpersonal.runtime.local import LocalContext

    return LocalContext(worker_context, compile=compile)
