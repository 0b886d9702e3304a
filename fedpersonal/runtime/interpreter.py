"""Runs TFF's building blocks: a computation's own parts, one after another, in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2

from fedpersonal.runtime.graphs import Graph, Unsupported
from fedpersonal.runtime.values import AllEqual, Members

Scope = Mapping[str, Any]
MapMembers = Callable[[Callable[..., Any], Members], Iterable[Any]]


class Interpreter:
    """Runs one computation, any number of times."""

    def __init__(
        self, computation: tff.Computation, map_members: MapMembers, *, compiled: bool | None
    ):
        """Takes the computation apart and imports its graphs.

        Args:
            computation: The computation.
            map_members: Applies a function, a `Graph` or a `Function`, to members of CLIENTS.
            compiled: Whether XLA compiles what members run; None where it seems worth it.

        Raises:
            Unsupported: If the computation has a part that this class does not know.
        """
        block = computation.to_building_block()
        if any(part.uri not in _KNOWN_URIS for part in _intrinsics(block)):
            block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
        self._root = tff.framework.to_call_dominant(block)
        self._takes_argument = computation.type_signature.parameter is not None
        self._map_members = map_members
        self._graphs: dict[int, Graph] = {}
        _check(self._root)
        of_members = _mapped_graphs(self._root)
        for part in graphs_in(self._root):
            choice = compiled if id(part) in of_members else False
            self._graphs[id(part)] = Graph(part, compiled=choice)

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles a part of it."""
        return any(graph.compiled for graph in self._graphs.values())

    def __call__(self, argument: Any, num_members: int) -> Any:
        """Runs the computation; values are those of `fedpersonal.runtime.values`."""
        run = _Run(self._graphs, self._map_members, num_members)
        function = run.evaluate(self._root, {})
        return function(argument) if self._takes_argument else function()


class Function:
    """A `tff.framework.Lambda` where names have the values of a scope."""

    def __init__(self, run: _Run, block: tff.framework.Lambda, scope: Scope):
        self._run = run
        self.block = block
        self.scope = scope

    def __call__(self, *argument: Any) -> Any:
        """Calls the function."""
        named = {self.block.parameter_name: argument[0]} if argument else {}
        return self._run.evaluate(self.block.result, {**self.scope, **named})

    @property
    def graphs(self) -> list[Graph]:
        """The graphs that it calls, in the order of `graphs_in`."""
        return [self._run.graphs[id(part)] for part in graphs_in(self.block)]


def load_function(proto: bytes, compiled: Sequence[bool]) -> Callable[..., Any]:
    """Returns a function of members of CLIENTS from its serialized building block.

    Args:
        proto: The building block, of a graph or of a function that calls graphs.
        compiled: Whether XLA compiles each of its graphs, in the order of `graphs_in`.
    """
    block = tff.framework.ComputationBuildingBlock.from_proto(
        computation_pb2.Computation.FromString(proto)
    )
    graphs = {id(g): Graph(g, compiled=choice) for g, choice in zip(graphs_in(block), compiled)}
    return _Run(graphs, map, 0).evaluate(block, {})


class _Run:
    """One call of a computation."""

    def __init__(self, graphs: Mapping[int, Graph], map_members: MapMembers, num_members: int):
        self.graphs = graphs
        self._map_members = map_members
        self._num_members = num_members

    def evaluate(self, block: tff.framework.ComputationBuildingBlock, scope: Scope) -> Any:
        """Returns a building block's value where names have the values of a scope."""
        return _EVALUATE[type(block)](self, block, scope)

    def _reference(self, block: tff.framework.Reference, scope: Scope) -> Any:
        return scope[block.name]

    def _selection(self, block: tff.framework.Selection, scope: Scope) -> Any:
        return self.evaluate(block.source, scope)[block.as_index()]

    def _struct(self, block: tff.framework.Struct, scope: Scope) -> list[Any]:
        return [self.evaluate(part, scope) for part in block]

    def _block(self, block: tff.framework.Block, scope: Scope) -> Any:
        inner = dict(scope)
        for name, value in block.locals:
            inner[name] = self.evaluate(value, inner)
        return self.evaluate(block.result, inner)

    def _lambda(self, block: tff.framework.Lambda, scope: Scope) -> Function:
        return Function(self, block, scope)

    def _graph(self, block: tff.framework.CompiledComputation, scope: Scope) -> Graph:
        del scope
        return self.graphs[id(block)]

    def _literal(self, block: tff.framework.Literal, scope: Scope) -> np.ndarray:
        del scope
        return np.asarray(block.value, block.type_signature.dtype)

    def _call(self, block: tff.framework.Call, scope: Scope) -> Any:
        function, argument = block.function, block.argument
        value = [] if argument is None else [self.evaluate(argument, scope)]
        if isinstance(function, tff.framework.Intrinsic):
            if function.uri == "federated_sum":
                return self._sum(value[0], block.type_signature)
            return _INTRINSICS[function.uri](self, *value)
        return self.evaluate(function, scope)(*value)

    def _eval_at_server(self, function: Callable[[], Any]) -> Any:
        return function()

    def _eval_at_clients(self, function: Callable[[], Any]) -> Members:
        return Members(function() for _ in range(self._num_members))

    def _at_server(self, value: Any) -> Any:
        return value

    def _at_clients(self, value: Any) -> AllEqual:
        return AllEqual(value)

    def _apply(self, argument: Sequence[Any]) -> Any:
        function, value = argument
        return function(value)

    def _map(self, argument: Sequence[Any]) -> Any:
        function, values = argument
        return Members(self._map_members(function, self._members(values)))

    def _map_all_equal(self, argument: Sequence[Any]) -> AllEqual:
        function, values = argument
        return AllEqual(function(values.value))

    def _zip_at_clients(self, values: Sequence[Any]) -> Any:
        if all(isinstance(value, AllEqual) for value in values):
            return AllEqual([value.value for value in values])
        return Members(map(list, zip(*map(self._members, values))))

    def _aggregate(self, argument: Sequence[Any]) -> Any:
        """Adds members up in their order, as TFF's own executors do."""
        values, total, accumulate, _, report = argument
        for value in self._members(values):
            total = accumulate([total, value])
        return report(total)

    def _sum(self, values: Any, result_type: tff.FederatedType) -> Any:
        """Adds members up in their order, as TFF's own graphs of a sum do, which take longer."""
        total, *others = self._members(values) or [_zeros(result_type.member)]
        return functools.reduce(_add_to, others, _copied(total))

    def _members(self, values: Any) -> Members:
        return values.of(self._num_members) if isinstance(values, AllEqual) else values


_INTRINSICS: Mapping[str, Callable[..., Any]] = {
    "federated_aggregate": _Run._aggregate,
    "federated_apply": _Run._apply,
    "federated_broadcast": _Run._at_clients,
    "federated_eval_at_clients": _Run._eval_at_clients,
    "federated_eval_at_server": _Run._eval_at_server,
    "federated_map": _Run._map,
    "federated_map_all_equal": _Run._map_all_equal,
    "federated_value_at_clients": _Run._at_clients,
    "federated_value_at_server": _Run._at_server,
    "federated_zip_at_clients": _Run._zip_at_clients,
    "federated_zip_at_server": _Run._at_server,
}
_KNOWN_URIS = {*_INTRINSICS, "federated_sum"}
_EVALUATE: Mapping[type, Callable[..., Any]] = {
    tff.framework.Block: _Run._block,
    tff.framework.Call: _Run._call,
    tff.framework.CompiledComputation: _Run._graph,
    tff.framework.Lambda: _Run._lambda,
    tff.framework.Literal: _Run._literal,
    tff.framework.Reference: _Run._reference,
    tff.framework.Selection: _Run._selection,
    tff.framework.Struct: _Run._struct,
}


def blocks_in(block: tff.framework.ComputationBuildingBlock) -> list[Any]:
    """Returns a building block and all that are within it."""
    found = [block]
    for child in block.children():
        found.extend(blocks_in(child))
    return found


def graphs_in(
    block: tff.framework.ComputationBuildingBlock,
) -> list[tff.framework.CompiledComputation]:
    """Returns the graphs within a building block, which may be one itself, in a fixed order."""
    return [p for p in blocks_in(block) if isinstance(p, tff.framework.CompiledComputation)]


def _zeros(type_spec: tff.Type) -> Any:
    if isinstance(type_spec, tff.StructType):
        return [_zeros(element) for element in type_spec]
    return np.zeros(type_spec.shape, type_spec.dtype)


def _copied(value: Any) -> Any:
    """Returns 0 + value, as a sum begins, in arrays of its own."""
    if isinstance(value, list):
        return list(map(_copied, value))
    array = np.asarray(value)
    # TensorFlow copies arrays whose memory does not begin at a multiple of 64.
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    total = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    return np.add(array, np.zeros((), array.dtype), out=total)


def _add_to(total: Any, value: Any) -> Any:
    """Adds a value to a total in place, and returns the total."""
    if isinstance(total, list):
        return list(map(_add_to, total, value))
    return np.add(total, value, out=total)


def _intrinsics(block: tff.framework.ComputationBuildingBlock) -> list[tff.framework.Intrinsic]:
    return [part for part in blocks_in(block) if isinstance(part, tff.framework.Intrinsic)]


def _mapped_graphs(root: tff.framework.ComputationBuildingBlock) -> set[int]:
    """Returns the graphs that members of CLIENTS run, by `id`."""
    found: set[int] = set()
    for part in blocks_in(root):
        if isinstance(part, tff.framework.Call) and isinstance(
            part.function, tff.framework.Intrinsic
        ):
            if part.function.uri == "federated_map":
                found.update(map(id, graphs_in(part.argument[0])))
    return found


def _check(root: tff.framework.ComputationBuildingBlock) -> None:
    for part in blocks_in(root):
        if type(part) not in (*_EVALUATE, tff.framework.Intrinsic):
            raise Unsupported(f"it has a {type(part).__name__}")
        if isinstance(part, tff.framework.Intrinsic) and part.uri not in _KNOWN_URIS:
            raise Unsupported(f"it calls {part.uri}")
