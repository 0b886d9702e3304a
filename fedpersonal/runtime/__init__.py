"""Where TFF's computations run, and how a program that uses them starts and ends."""

from fedpersonal.runtime.choice import (
    COMPILE,
    RUNTIMES,
    check_runtime,
    describe_runtime,
    ensure_runtime,
    num_processors,
    use_runtime,
)
from fedpersonal.runtime.imports import quick_imports
from fedpersonal.runtime.program import (
    check_not_forked,
    leave,
    peak_rss_mb,
    quiet_logs,
    rss_mb,
    spare_home,
    start,
)

__all__ = [
    "COMPILE",
    "RUNTIMES",
    "check_not_forked",
    "check_runtime",
    "describe_runtime",
    "ensure_runtime",
    "leave",
    "num_processors",
    "peak_rss_mb",
    "quick_imports",
    "quiet_logs",
    "rss_mb",
    "spare_home",
    "start",
    "use_runtime",
]
