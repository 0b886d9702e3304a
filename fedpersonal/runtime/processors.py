"""The number of processors of this process, and the threads that compute shards."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

_CGROUP = pathlib.Path("/sys/fs/cgroup")


def count_processors() -> int:
    """Returns the number of processors, by this process' affinity and its container's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    processors = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, min(processors, math.ceil(_quota() or processors)))


def _quota() -> float | None:
    """Returns the container's quota in processors (cgroup 2 or 1); None for no quota."""
    try:
        quota, period = _CGROUP.joinpath("cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            names = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
            quota, period = (_CGROUP.joinpath(name).read_text() for name in names)
        except OSError:
            return None
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except ValueError:  # "max"
        return None


class _ThreadLocal(threading.local):
    """The thread pool of a thread's `with` statement."""

    pool: ThreadPoolExecutor | None = None


_local = _ThreadLocal()


@contextlib.contextmanager
def shard_threads() -> Iterator[ThreadPoolExecutor]:
    """Yields a pool of threads for shards, one thread a processor, for a `with` statement.

    An inner `with` statement reuses the pool of an outer one, because starting threads takes as
    long as a tenth of a fast round.
    """
    if _local.pool is not None:
        yield _local.pool
        return
    _local.pool = pool = ThreadPoolExecutor(count_processors())
    try:
        yield pool
    except BaseException:  # Ctrl-C does not wait for shards.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    else:
        pool.shutdown()
    finally:
        _local.pool = None
