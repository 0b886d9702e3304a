"""Runtimes of TFF's computations; TensorFlow Federated is loaded when one is chosen."""

from fedpersonal.runtime.choose import (
    RUNTIMES,
    check_runtime,
    describe_runtime,
    num_processors,
    peak_rss_mb,
    quick_imports,
    use_runtime,
)
from fedpersonal.runtime.processors import shard_threads

__all__ = [
    "RUNTIMES",
    "check_runtime",
    "describe_runtime",
    "num_processors",
    "peak_rss_mb",
    "quick_imports",
    "shard_threads",
    "use_runtime",
]
