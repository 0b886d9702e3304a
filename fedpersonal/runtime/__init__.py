"""Where TFF's computations run, and how a program that uses them starts and ends."""

from fedpersonal.runtime.default_context import set_default_context
from fedpersonal.runtime.program import leave, peak_rss_mb, quiet_logs, rss_mb, start
from fedpersonal.runtime.worker import use_worker

__all__ = [
    "leave",
    "peak_rss_mb",
    "quiet_logs",
    "rss_mb",
    "set_default_context",
    "start",
    "use_worker",
]
