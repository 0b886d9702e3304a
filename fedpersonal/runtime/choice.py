"""The choice of a runtime: one TFF context for the whole program."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from fedpersonal.errors import UserError, check_choice
from fedpersonal.runtime.processors import count_processors

if TYPE_CHECKING:
    from fedpersonal.runtime.ray_cluster import Cluster

RUNTIMES = ("local", "ray", "tff")

_chosen = "local"
_cluster: Cluster | None = None


def check_runtime(name: str) -> None:
    """Raises an error if a runtime is not known or not installed; loads nothing."""
    check_choice("use_runtime", "name", name, RUNTIMES)
    if name == "ray" and importlib.util.find_spec("ray") is None:
        how = "`make cluster_install`" if sys.version_info >= (3, 10) else "Python 3.10 or 3.11"
        raise UserError(f"The runtime ray needs Ray, which is not installed here; it takes {how}.")


def use_runtime(
    name: str = "local", *, compile: bool = True, ray_address: str | None = None
) -> None:
    """Sets where TFF's computations run from now on, in all threads.

    Args:
        name: `local`, in this process; `ray`, with the shards of a cohort on a Ray cluster; or
            `tff`, in TFF's own C++ program. Whoever reaches the port of that program, which listens
            on every network interface, can run code as this user.
        compile: Whether XLA compiles what clients do, where that seems worth it. In the local
            runtime and on Ray.
        ray_address: Where the Ray cluster is, as `host:port`, or `auto` for the one of this
            machine; None to start a Ray for this program alone.

    Raises:
        UserError: If there is no such runtime, or the cluster cannot be used.
    """
    global _chosen, _cluster
    check_runtime(name)
    from fedpersonal.runtime.context import LocalContext, set_default_context

    if _cluster is not None:
        _cluster.close()
        _cluster = None
    if name == "local":
        set_default_context(LocalContext(compile=compile))
    elif name == "tff":
        from fedpersonal.runtime.stock import make_stock_context

        set_default_context(make_stock_context())
    else:
        from fedpersonal.runtime.ray import RayContext
        from fedpersonal.runtime.ray_cluster import Cluster

        _cluster = Cluster(ray_address)
        set_default_context(RayContext(_cluster, compile=compile))
    _chosen = name


def describe_runtime() -> str:
    """Returns the name of the runtime that was chosen, and whether it has compiled anything."""
    import tensorflow_federated as tff

    context = tff.framework.get_context_stack().current
    return f"{_chosen}, compiled" if getattr(context, "is_compiled", False) else _chosen


def num_processors() -> int:
    """Returns how many processors the runtime has: a cluster's, if one was chosen, or our own."""
    return count_processors() if _cluster is None else _cluster.num_processors
