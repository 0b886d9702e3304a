"""The processors of this process, and the threads in which they compute shards."""

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
    """Returns how many processors this process has, by its affinity and its container's quota."""
    is_known = hasattr(os, "sched_getaffinity")
    processors = len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1
    return max(1, min(processors, math.ceil(_quota() or processors)))


def _quota() -> float | None:
    """Returns how many processors' time the container has (cgroup 2 or 1); None for all."""
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


class _Kept(threading.local):
    """The threads that a thread's `with` statement keeps."""

    pool: ThreadPoolExecutor | None = None


_kept = _Kept()


@contextlib.contextmanager
def shard_threads() -> Iterator[ThreadPoolExecutor]:
    """Gives threads for shards, one a processor, within a `with` statement.

    Those of an enclosing `with` statement are used again: to start threads takes as long as a tenth
    of a quick round.
    """
    if _kept.pool is not None:
        yield _kept.pool
        return
    _kept.pool = pool = ThreadPoolExecutor(count_processors())
    try:
        yield pool
    except BaseException:  # Ctrl-C does not wait for shards.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    else:
        pool.shutdown()
    finally:
        _kept.pool = None
