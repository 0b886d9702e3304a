"""Where TFF's computations run; TensorFlow Federated is loaded when one is chosen."""

from fedpersonal.runtime.choice import (
    RUNTIMES,
    check_runtime,
    describe_runtime,
    num_processors,
    use_runtime,
)
from fedpersonal.runtime.program import peak_rss_mb, quick_imports

__all__ = [
    "RUNTIMES",
    "check_runtime",
    "describe_runtime",
    "num_processors",
    "peak_rss_mb",
    "quick_imports",
    "use_runtime",
]
