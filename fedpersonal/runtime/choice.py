"""The choice of a runtime: one TFF context for the whole program."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from fedpersonal.errors import UserError

if TYPE_CHECKING:
    import tensorflow_federated as tff

RUNTIMES = ("local", "worker", "ray")
COMPILE = ("auto", "always", "never")

_chosen: tff.framework.SyncContext | None = None


def check_runtime(name: str) -> None:
    """Raises a `UserError` if a runtime is not known or not installed; loads nothing."""
    if name not in RUNTIMES:
        raise UserError(f"runtime is {name!r}; it must be one of {', '.join(RUNTIMES)}.")
    if name == "ray" and importlib.util.find_spec("ray") is None:
        how = "`make cluster_install`" if sys.version_info >= (3, 10) else "Python 3.10 or 3.11"
        raise UserError(f"The runtime ray needs Ray, which is not installed here; it takes {how}.")


def use_runtime(
    name: str = "local",
    *,
    compile: str = "auto",
    ray_address: str | None = None,
    ray_node_seconds: float = 600.0,
) -> None:
    """Sets where TFF computations run from now on; loads TFF.

    Args:
        name: `local`, in this process; `worker`, in TFF's own C++ process, the reference; or `ray`,
            with CLIENTS members on the nodes of a Ray cluster.
        compile: Whether XLA compiles what clients do: `always`, `never`, or `auto`, where it seems
            worth it. In the local runtime and on Ray.
        ray_address: Where the Ray cluster is, as `host:port`, or `auto` for the one of this
            machine; None to start a Ray for this program alone.
        ray_node_seconds: Seconds without any result after which a Ray node counts as lost.

    Raises:
        UserError: If there is no such runtime, or no such cluster.
    """
    global _chosen
    check_runtime(name)
    import tensorflow_federated as tff

    from fedpersonal.runtime.local import LocalContext

    def worker():
        return tff.backends.native.create_sync_local_cpp_execution_context()

    leave_cluster = getattr(_chosen, "close", None)
    if leave_cluster is not None:
        leave_cluster()
    if name == "ray":
        from fedpersonal.runtime.ray import RayContext

        _chosen = RayContext(
            worker, compile=compile, address=ray_address, node_seconds=ray_node_seconds
        )
    else:
        _chosen = worker() if name == "worker" else LocalContext(worker, compile=compile)
    tff.framework.set_default_context(_chosen)


def ensure_runtime() -> None:
    """Chooses the local runtime where none was chosen."""
    if _chosen is None:
        use_runtime()


def num_processors() -> int | None:
    """Returns how many processors a cluster that was chosen has; None if there is none."""
    return getattr(_chosen, "num_processors", None)
