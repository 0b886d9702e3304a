"""What runs on a node of a Ray cluster: functions of members of CLIENTS.

This module loads TensorFlow and TFF only once a node has the coordinator's settings, and Ray only
once the coordinator has made its own.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.runtime.program import quiet_logs

if TYPE_CHECKING:
    import ray


class Sent(NamedTuple):
    """Something that is in Ray's object store, from which each node fetches it once."""

    reference: ray.ObjectRef


class Work(NamedTuple):
    """A function of members of CLIENTS, as `interpreter.load_function` takes it.

    Attributes:
        proto: Its serialized building block.
        compiled: Whether XLA compiles each of its graphs.
    """

    proto: bytes
    compiled: list[bool]


class Node:
    """The actor of a node. It keeps functions alone: a member is as good on any other node."""

    def __init__(self, environment: Mapping[str, str]):
        """Loads TFF, with the coordinator's environment variables that TensorFlow reads."""
        os.environ.update(environment)
        quiet_logs()
        self._functions: dict[str, Callable[[Any], Any]] = {}
        self._lock = threading.Lock()
        about()

    def about(self) -> dict[str, str]:
        """Returns what must be the same on all nodes."""
        return about()

    def run(self, key: str, work: Sent, argument: Any) -> Any:
        """Applies a function to a member's value; both are trees of arrays and of `Sent`."""
        import ray

        with self._lock:
            if key not in self._functions:
                from fedpersonal.runtime.interpreter import load_function

                self._functions[key] = load_function(*ray.get(work.reference))
        return as_arrays(self._functions[key](_fetch(argument)))


def about() -> dict[str, str]:
    """Returns versions, which must be the same on all nodes, and the processor."""
    import tensorflow as tf
    import tensorflow_federated as tff

    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    }
    return {
        "Python": platform.python_version(),
        "TensorFlow": tf.__version__,
        "TensorFlow Federated": tff.__version__,
        "NumPy": np.__version__,
        "processor": ", ".join(sorted(models)),
    }


def as_arrays(value: Any) -> Any:
    """Returns a tree of arrays and tensors as one of arrays.

    Raises:
        UserError: If one is a dataset.
    """
    if isinstance(value, list):
        return [as_arrays(part) for part in value]
    if getattr(getattr(value, "dtype", None), "name", "") == "variant":
        raise UserError(
            "The ray runtime cannot send a tf.data.Dataset to a node; use the runtime local."
        )
    return value if isinstance(value, bytes) else np.asarray(value)


def _fetch(value: Any) -> Any:
    """Returns a tree of arrays and of `Sent` as one of arrays."""
    import ray

    if isinstance(value, Sent):
        return ray.get(value.reference)
    return [_fetch(part) for part in value] if isinstance(value, list) else value
