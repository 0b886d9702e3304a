"""The choice of a runtime: one TFF context for the whole program."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import pathlib
import resource
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedpersonal.errors import UserError, check_choice
from fedpersonal.runtime.processors import count_processors

if TYPE_CHECKING:
    from fedpersonal.runtime.ray import RayContext

RUNTIMES = ("local", "ray", "tff")
_STATUS = pathlib.Path("/proc/self/status")

_chosen = "local"
_cluster: RayContext | None = None


def check_runtime(name: str) -> None:
    """Raises an error if a runtime is unknown or not installed; loads nothing."""
    check_choice("use_runtime", "name", name, RUNTIMES)
    if name == "ray" and importlib.util.find_spec("ray") is None:
        way = "`make cluster_install`" if sys.version_info >= (3, 10) else "Python 3.10 or later"
        raise UserError(f"The runtime ray needs Ray, which is not installed here; it needs {way}.")
    if name == "tff" and importlib.util.find_spec("tensorflow_federated") is None:
        raise UserError(
            "The runtime tff needs TensorFlow Federated, which is not installed here; it needs "
            "Python 3.9 to 3.11 on Linux and x86-64."
        )


def use_runtime(
    name: str = "local", *, compile: bool = True, ray_address: str | None = None
) -> None:
    """Sets the runtime of all following TFF computations, in all threads.

    Args:
        name: `local`, in this process; `ray`, with the shards of a cohort on a Ray cluster; or
            `tff`, in TFF's C++ program. That program listens on every network interface, and
            anyone who reaches its port can run code as this user.
        compile: Whether XLA compiles the clients' computations, if that seems worth it. Only in the
            local runtime and on Ray.
        ray_address: The address of the Ray cluster, as `host:port`, or `auto` for that of this
            machine; None to start Ray for this program only.

    Raises:
        UserError: If the runtime is unknown, or the cluster cannot be used.

    Examples:
        >>> fp.use_runtime("ray", ray_address="auto")  # doctest: +SKIP
        >>> fp.use_runtime("local", compile=False)  # Small models start sooner.
        >>> fp.runtime.describe_runtime()
        'local'
    """
    global _chosen, _cluster
    check_runtime(name)
    from fedpersonal.runtime.context import (
        LocalContext,
        make_stock_context,
        set_default_context,
    )

    if _cluster is not None:
        _cluster.close()
        _cluster = None
    if name == "local":
        set_default_context(LocalContext(compile=compile))
    elif name == "tff":
        set_default_context(make_stock_context())
    else:
        from fedpersonal.runtime.ray import RayContext

        _cluster = RayContext(ray_address, compile=compile)
        set_default_context(_cluster)
    _chosen = name


def describe_runtime() -> str:
    """Returns the name of the chosen runtime, and whether it has compiled a computation."""
    from fedpersonal import tff

    context = tff.get_context_stack().current
    return f"{_chosen}, compiled" if getattr(context, "is_compiled", False) else _chosen


def num_processors() -> int:
    """Returns the number of processors of the chosen cluster, or of this process."""
    return count_processors() if _cluster is None else _cluster.num_processors


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Makes imports of TensorFlow within a `with` statement a quarter faster.

    It disables the garbage collector, because modules create a million objects that all stay. If
    TensorFlow is imported already, it changes nothing.
    """
    if "tensorflow" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_rss_mb() -> float:
    """Returns the peak resident memory of this process so far, in MiB."""
    try:
        status = _STATUS.read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) for line in status.split("\n") if "VmHWM:" in line) / 1024
    except (OSError, StopIteration):  # On other systems than Linux; may include the parent process.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)
