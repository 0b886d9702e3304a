"""A TFF execution context whose shards run on a Ray cluster.

All else runs in this process, as in the local runtime: the server's part, the sums of shards'
values, in their order, and so what clients keep. Results are those of the local runtime.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from fedpersonal.errors import UserError
from fedpersonal.runtime.context import LocalContext
from fedpersonal.runtime.graphs import Graph
from fedpersonal.runtime.interpreter import Function, Interpreter, blocks_in
from fedpersonal.runtime.ray_cluster import Cluster, as_arrays
from fedpersonal.runtime.values import Shards

if TYPE_CHECKING:
    import ray

# A smaller part of an argument goes with the call; a larger one travels once a machine.
_SMALL = 2**14


class RayContext(LocalContext):
    """Runs TFF computations here, and their shards on a Ray cluster."""

    def __init__(self, cluster: Cluster, *, compile: bool = True):
        """Makes the context; `compile` is that of `LocalContext`."""
        super().__init__(compile=compile)
        self._cluster = cluster
        # By `id` of a function's building block: its key, and where it is.
        self._functions: dict[int, tuple[str, ray.ObjectRef]] = {}

    def _run(self, interpreter: Interpreter, argument: Any, num_shards: int) -> Any:
        """Runs a computation; its shards run on the cluster."""
        # By its `id`, what was sent, which must stay alive for that, and where it is.
        sent: dict[int, tuple[Any, ray.ObjectRef]] = {}

        def map_shards(function: Callable[..., Any], shards: Shards) -> Iterable[Any]:
            assert isinstance(function, (Function, Graph))
            # One that calls no graph, such as a selection, is not worth the journey.
            if not shards or not function.graphs or not _is_closed(function.block):
                return map(function, shards)
            elements = [shard if isinstance(shard, list) else [shard] for shard in shards]
            values = [[self._send(element, sent) for element in own] for own in elements]
            return self._run_on_cluster(function, values)

        return interpreter(argument, num_shards, map_shards)

    def _run_on_cluster(
        self, function: Function | Graph, values: Sequence[Sequence[Any]]
    ) -> list[Any]:
        block = function.block
        if id(block) not in self._functions:
            self._functions[id(block)] = self._send_function(function)
            weakref.finalize(block, self._functions.pop, id(block), None).atexit = False
        key, reference = self._functions[id(block)]
        try:
            return self._cluster.run(key, reference, values)
        except tf.errors.NotFoundError as error:
            missing = str(error).partition("[[{{")[0].strip().splitlines()[-1]
            raise UserError(
                "A Ray node lacks a file, such as a part of a frozen base model; it must be in the "
                f"same folder on every node: {missing}"
            ) from None

    def _send_function(self, function: Function | Graph) -> tuple[str, ray.ObjectRef]:
        """Sends a function; returns its key and where it is."""
        proto = function.block.proto.SerializeToString(deterministic=True)
        key = hashlib.sha256(proto).hexdigest() + str(self._compile)
        return key, self._cluster.put((proto, self._compile))

    def _send(self, value: Any, sent: dict[int, tuple[Any, ray.ObjectRef]]) -> Any:
        """Returns a value as arrays, or where it is if it is large.

        What all shards have, such as a model, so travels once a machine.
        """
        if id(value) not in sent:
            arrays = as_arrays(value)
            if _num_bytes(arrays) < _SMALL:
                return arrays
            sent[id(value)] = value, self._cluster.put(arrays)
        return sent[id(value)][1]


def _num_bytes(value: Any) -> int:
    """Returns the size of a tree of arrays; texts count by their pointers."""
    if isinstance(value, list):
        return sum(map(_num_bytes, value))
    return np.asarray(value).nbytes


def _is_closed(block: tff.framework.ComputationBuildingBlock) -> bool:
    """Tells whether a function refers to nothing outside itself, and says so if it does."""
    used, bound = set(), set()
    for part in blocks_in(block):
        if isinstance(part, tff.framework.Reference):
            used.add(part.name)
        elif isinstance(part, tff.framework.Lambda):
            bound.add(part.parameter_name)
        elif isinstance(part, tff.framework.Block):
            bound.update(name for name, _ in part.locals)
    if used <= bound:  # Names are unique in TFF's call-dominant form.
        return True
    logging.log_first_n(
        logging.WARNING,
        "A function of clients' values runs in this process, not on Ray's nodes: it uses values "
        "that are not its arguments. Hand them over by tff.federated_broadcast.",
        1,
    )
    return False
