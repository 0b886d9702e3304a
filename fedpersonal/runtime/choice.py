"""The choice of a runtime: one TFF context for the whole program."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from fedpersonal.errors import UserError, check_choice
from fedpersonal.runtime.default_context import set_default_context
from fedpersonal.runtime.processors import count_processors
from fedpersonal.runtime.program import start
from fedpersonal.runtime.worker import start_worker, worker_context

if TYPE_CHECKING:
    import tensorflow_federated as tff

    from fedpersonal.runtime.ray_cluster import Cluster

RUNTIMES = ("local", "worker", "open_worker", "ray")
COMPILE = ("auto", "always", "never")

_chosen: str | None = None
_cluster: Cluster | None = None


def check_runtime(name: str) -> None:
    """Raises an error if a runtime is not known or not installed; loads nothing."""
    check_choice("use_runtime", "name", name, RUNTIMES)
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
    """Sets where TFF's computations run from now on; it may come before TFF is imported.

    Args:
        name: `local`, in this process; `worker`, in TFF's own C++ process, the reference, which
            this process alone can reach; `open_worker`, the same where the system does not let
            it have a network of its own: whoever reaches its port can run code as this user; or
            `ray`, with members of CLIENTS on the nodes of a Ray cluster.
        compile: Whether XLA compiles what clients do: `always`, `never`, or `auto`, where it seems
            worth it. In the local runtime and on Ray.
        ray_address: Where the Ray cluster is, as `host:port`, or `auto` for the one of this
            machine; None to start a Ray for this program alone.
        ray_node_seconds: Seconds without any result after which a Ray node counts as lost.

    Raises:
        UserError: If there is no such runtime, the worker cannot be shut off from others, or the
            cluster cannot be used.
    """
    global _chosen, _cluster
    check_runtime(name)
    check_choice("use_runtime", "compile", compile, COMPILE)
    start()
    if _cluster is not None:
        _cluster.close()
        _cluster = None
    if name == "local":
        set_default_context(lambda: _local_context(compile))
    elif name == "ray":
        from fedpersonal.runtime.ray_cluster import Cluster

        _cluster = cluster = Cluster(ray_address, node_seconds=ray_node_seconds)
        set_default_context(lambda: _ray_context(cluster, compile))
    else:
        is_open = name == "open_worker"
        start_worker(open_worker=is_open)
        set_default_context(lambda: worker_context(open_worker=is_open))
    _chosen = name


def ensure_runtime() -> None:
    """Sets the local runtime unless one was chosen."""
    if _chosen is None:
        set_default_context(lambda: _local_context("auto"))


def describe_runtime() -> str:
    """Returns the name of the runtime that was chosen, and whether it has compiled anything."""
    import tensorflow_federated as tff

    name, context = _chosen or "local", tff.framework.get_context_stack().current
    return f"{name}, compiled" if getattr(context, "is_compiled", False) else name


def _local_context(compile: str) -> tff.framework.SyncContext:
    from fedpersonal.runtime.local import LocalContext

    return LocalContext(worker_context, compile=compile)


def _ray_context(cluster: Cluster, compile: str) -> tff.framework.SyncContext:
    from fedpersonal.runtime.ray import RayContext

    return RayContext(worker_context, cluster, compile=compile)


def num_processors() -> int:
    """Returns how many processors the runtime has: a cluster's, if one was chosen, or our own."""
    return count_processors() if _cluster is None else _cluster.num_processors
