"""Checks that TensorFlow Federated can be imported, and computes in each runtime."""

from __future__ import annotations

import functools
import time

from experiments.health.examination import FAILED, OK, WARNING, Asked, Check, Finding

_IMPORT = "import"
_SLOW_IMPORT = 60.0
_NUMBERS, _SUM_OF_SQUARES = [1.0, 2.0, 3.0], 14.0


def check_import(asked: Asked) -> Finding:
    """Imports TensorFlow Federated."""
    from fedpersonal import runtime

    began = time.monotonic()
    with runtime.quick_imports():
        import tensorflow as tf
        import tensorflow_federated as tff
    seconds = time.monotonic() - began
    versions = f"TensorFlow {tf.__version__}, TensorFlow Federated {tff.__version__}"
    what = f"{versions}, in {seconds:.0f} s"
    if seconds > _SLOW_IMPORT:
        return Finding(WARNING, what, "keep .venv on a local disk")
    return Finding(OK, what)


def check_local(asked: Asked, *, compile: bool) -> Finding:
    """Computes in this process."""
    from fedpersonal import runtime

    runtime.use_runtime("local", compile=compile)
    return _compute("local, compiled" if compile else "local")


def check_ray(asked: Asked) -> Finding:
    """Computes on a Ray of its own, if Ray is installed."""
    from fedpersonal import runtime
    from fedpersonal.errors import UserError

    try:
        runtime.check_runtime("ray")
    except UserError:
        advice = "make cluster_install (Python 3.10, 3.11) adds it"
        return Finding(OK, "Ray is not installed, which only clusters need", advice)
    runtime.use_runtime("ray")
    return _compute("ray", f", on {runtime.num_processors()} processors")


CHECKS = (
    Check(_IMPORT, check_import, 300.0),
    Check("local plain", functools.partial(check_local, compile=False), 120.0, _IMPORT),
    Check("local compiled", functools.partial(check_local, compile=True), 120.0, _IMPORT),
    Check("ray", check_ray, 180.0, _IMPORT),
)


def _compute(wanted: str, where: str = "") -> Finding:
    """Adds up three clients' squares in the runtime that was chosen, and sees where that was."""
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    from fedpersonal import runtime

    @tff.tensorflow.computation(np.float32)
    def square(x):  # In a loop, which is worth compiling.
        return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, x * x), (0, 0.0))[1]

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def add_up(numbers):
        return tff.federated_sum(tff.federated_map(square, numbers))

    began = time.monotonic()
    result = float(add_up(_NUMBERS))
    used = runtime.describe_runtime()  # While the computation exists.
    if not used.startswith(wanted):
        return Finding(FAILED, f"it ran as {used!r}, not {wanted!r}", "take --nocompile")
    if result != _SUM_OF_SQUARES:
        return Finding(FAILED, f"a sum is {result:g}, not {_SUM_OF_SQUARES:g}")
    return Finding(OK, f"a computation in {time.monotonic() - began:.1f} s{where}")
