"""A TFF execution context whose members of CLIENTS run on the nodes of a Ray cluster.

All else runs in this process, as in the local runtime: the server's part, the sums of members'
values, in their order, and so what clients keep. Results are those of the local runtime.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.errors import UserError
from fedpersonal.runtime import ray_node
from fedpersonal.runtime.graphs import Graph
from fedpersonal.runtime.interpreter import Function
from fedpersonal.runtime.local import LocalContext
from fedpersonal.runtime.ray_cluster import Cluster
from fedpersonal.runtime.values import Members

_log = logging.getLogger(__name__)

# A smaller part of an argument goes with the call; a larger one travels once a node.
_SMALL = 2**14


class RayContext(LocalContext):
    """Runs TFF computations here, and their members of CLIENTS on Ray's nodes."""

    def __init__(
        self,
        fallback: Callable[[], tff.framework.SyncContext],
        cluster: Cluster,
        *,
        compile: str = "auto",
    ):
        """Makes the context; `fallback` and `compile` are those of `LocalContext`."""
        super().__init__(fallback, compile=compile)
        self._cluster = cluster
        # By `id` of a function's building block.
        self._works: dict[int, tuple[str, ray_node.Sent] | None] = {}
        # By its `id`, what was sent, which must stay alive for that, and where it is.
        self._sent: dict[int, tuple[Any, ray_node.Sent]] = {}

    def invoke(self, comp: tff.Computation, arg: Any) -> Any:
        """Runs a computation on an argument and returns its result."""
        try:
            return super().invoke(comp, arg)
        finally:
            self._sent.clear()

    def _map_members(self, function: Callable[[Any], Any], members: Members) -> Iterable[Any]:
        """Applies a function to members of CLIENTS on Ray's nodes.

        One that calls no graph, such as a selection, is not worth the journey.
        """
        assert isinstance(function, (Function, Graph))
        if not function.graphs or not members:
            return map(function, members)
        block = function.block
        if id(block) not in self._works:
            self._works[id(block)] = self._send_work(function)
            weakref.finalize(block, self._works.pop, id(block), None).atexit = False
        work = self._works[id(block)]
        if work is None:
            return super()._map_members(function, members)
        calls = [(*work, self._send_argument(member)) for member in members]
        try:
            return self._cluster.run(calls)
        except tf.errors.NotFoundError as error:
            missing = str(error).partition("[[{{")[0].strip().splitlines()[-1]
            raise UserError(
                "A Ray node lacks a file, such as a part of a frozen base model; it must be in the "
                f"same folder on every node: {missing}"
            ) from None

    def _send_work(self, function: Function | Graph) -> tuple[str, ray_node.Sent] | None:
        """Sends a function; returns its key and where it is. None if it must run here."""
        if not _is_closed(function.block):
            _log.warning(
                "A function of clients' values runs in this process, not on Ray's nodes: it uses "
                "values that are not its arguments. Hand them over by tff.federated_broadcast."
            )
            return None
        proto = function.block.proto.SerializeToString(deterministic=True)
        work = ray_node.Work(proto, [graph.compiled for graph in function.graphs])
        return hashlib.sha256(repr(work).encode()).hexdigest(), ray_node.Sent(
            self._cluster.put(work)
        )

    def _send_argument(self, value: Any) -> Any:
        """Returns a member's value as arrays; its larger elements are sent once a call of invoke.

        What all members have, such as a model, so travels once a node.
        """
        if not isinstance(value, list):
            return self._send(value)
        return [self._send(element) for element in value]

    def _send(self, value: Any) -> Any:
        if id(value) in self._sent:
            return self._sent[id(value)][1]
        arrays = ray_node.as_arrays(value)
        if _num_bytes(arrays) < _SMALL:
            return arrays
        sent = ray_node.Sent(self._cluster.put(arrays))
        self._sent[id(value)] = value, sent
        return sent


def _num_bytes(value: Any) -> int:
    """Returns the size of a tree of arrays; texts count by their pointers."""
    if isinstance(value, list):
        return sum(map(_num_bytes, value))
    return np.asarray(value).nbytes


def _is_closed(
    block: tff.framework.ComputationBuildingBlock, known: Set[str] = frozenset()
) -> bool:
    """Tells whether a building block refers to nothing outside itself."""
    if isinstance(block, tff.framework.Reference):
        return block.name in known
    if isinstance(block, tff.framework.Block):
        for name, value in block.locals:
            if not _is_closed(value, known):
                return False
            known = known | {name}
        return _is_closed(block.result, known)
    if isinstance(block, tff.framework.Lambda):
        known = known | {block.parameter_name}
    return all(_is_closed(child, known) for child in block.children())
