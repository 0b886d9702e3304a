"""How many processors this process may use."""

from __future__ import annotations

import math
import os
import pathlib

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
