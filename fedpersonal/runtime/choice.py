"""The choice of a runtime: one TFF context for the whole program."""

from __future__ import annotations

RUNTIMES = ("local", "worker")
COMPILE = ("auto", "always", "never")

_chosen: str | None = None


def use_runtime(name: str = "local", *, compile: str = "auto") -> None:
    """Sets where TFF computations run from now on; loads TFF.

    Args:
        name: `local`, in this process; or `worker`, in TFF's own C++ process, the reference.
        compile: Whether XLA compiles what clients do: `always`, `never`, or `auto`, where it seems
            worth it. In the local runtime alone.

    Raises:
        ValueError: If there is no such runtime.
    """
    global _chosen
    if name not in RUNTIMES:
        raise ValueError(f"use_runtime: there is no runtime {name!r}, but {', '.join(RUNTIMES)}.")
    import tensorflow_federated as tff

    from fedpersonal.runtime.local import LocalContext

    def worker():
        return tff.backends.native.create_sync_local_cpp_execution_context()

    context = worker() if name == "worker" else LocalContext(worker, compile=compile)
    tff.framework.set_default_context(context)
    _chosen = name


def ensure_runtime() -> None:
    """Chooses the local runtime where none was chosen."""
    if _chosen is None:
        use_runtime()
