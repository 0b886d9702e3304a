"""Times members of CLIENTS on 1, 2 and 4 Ray nodes of this machine, and what a journey costs.

python -m benchmarks.cluster

Members sleep, so that nodes do not wait for each other. What docs/how_to/several_machines.md says
of the cost of a round comes from here. Needs Ray: `make cluster`.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np
from absl import app, flags

from examples.ray_nodes import ray_nodes
from fedpersonal import runtime

_SECONDS = flags.DEFINE_float("seconds", 0.5, "How long a member sleeps.", 0)
_MEMBERS = flags.DEFINE_integer("members", 8, "How many members there are.", 4)
_MEGABYTES = flags.DEFINE_integer("megabytes", 64, "The size of a large model, or of data.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Rounds of which the median counts.", 1)


def _build(seconds: float):
    """Returns a round: members get a model and data of their own, sleep, and send a number."""
    import tensorflow as tf
    import tensorflow_federated as tff
    from tensorflow.python.data.experimental.ops import testing

    array = tff.TensorType(np.float32, [None])

    @tff.tensorflow.computation(array, array)
    def work(model, data):
        total = tf.reduce_max(model) + tf.reduce_max(data)
        if seconds:
            one = tf.data.Dataset.range(1).apply(testing.sleep(int(1e6 * seconds))).take(1)
            total += tf.cast(one.reduce(np.int64(0), lambda _, x: x), tf.float32)
        return total

    @tff.federated_computation(
        tff.FederatedType(array, tff.SERVER), tff.FederatedType(array, tff.CLIENTS)
    )
    def one_round(model, data):
        return tff.federated_sum(tff.federated_map(work, (tff.federated_broadcast(model), data)))

    return one_round


def _median_seconds(one_round, members: int, model: np.ndarray, data: np.ndarray) -> float:
    one_round(model, [data] * members)  # Functions go to their nodes.
    took = []
    for _ in range(_REPEATS.value):
        begin = time.perf_counter()
        one_round(model, [data.copy() for _ in range(members)])
        took.append(time.perf_counter() - begin)
    return statistics.median(took)


def main(argv: list[str]) -> None:
    """Prints the times."""
    del argv
    one, large = np.ones(1, np.float32), np.ones(_MEGABYTES.value * 2**18, np.float32)
    members, alone = _MEMBERS.value, 0.0
    sleeping, awake = _build(_SECONDS.value), _build(0)
    with ray_nodes() as nodes:
        os.environ.update(nodes.environment)
        for count in (1, 2, 4):
            while len(nodes.processes) < count:
                nodes.start(1)
            runtime.use_runtime("ray", ray_address=nodes.address)
            took = _median_seconds(sleeping, members, one, one)
            alone = alone or took
            print(f"{count} nodes, {members} members that sleep: {took:.2f} s, {took / alone:.2f}")
            empty = _median_seconds(awake, members, one, one)
            many = _median_seconds(awake, 8 * members, one, one)
            model = _median_seconds(awake, members, large, one) - empty
            data = _median_seconds(awake, members, one, large) - empty
            print(
                f"  a round {1000 * empty:.1f} ms, a member more "
                f"{1000 * (many - empty) / (7 * members):.2f} ms; {_MEGABYTES.value} MiB: as a "
                f"model {model:.2f} s, as each member's data {data / members:.2f} s"
            )
    runtime.use_runtime("local")


if __name__ == "__main__":
    app.run(main)
