"""How this process imports what is large, and how much memory it holds."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Imports TensorFlow Federated, within a `with` statement, in a quarter less time.

    Python looks for garbage again and again while modules make a million objects, and all of them
    stay: it need not look meanwhile. Where TFF is there already, nothing is changed.
    """
    if "tensorflow_federated" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_rss_mb() -> float:
    """Highest resident memory of this process so far, in MiB."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
