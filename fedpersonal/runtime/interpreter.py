"""Runs TFF's building blocks: a computation's own parts, one after another, in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal import tff
from fedpersonal.runtime.graphs import Graph, unsupported
from fedpersonal.runtime.values import AllEqual, Shards, deliverer, ingester, num_shards

Scope = Mapping[str, Any]
MapShards = Callable[[Callable[..., Any], Shards], Iterable[Any]]


class Interpreter:
    """Runs one computation's building blocks, one after another, any number of times."""

    def __init__(self, computation: tff.Computation, *, compile: bool):
        """Takes the computation apart and imports its graphs.

        Args:
            computation: The computation.
            compile: Whether XLA compiles what shards run, where that seems worth it.

        Raises:
            UserError: If the computation has a part that this class does not know.
        """
        block = computation.to_building_block()
        intrinsics = (b for b in blocks_in(block) if isinstance(b, tff.Intrinsic))
        if any(part.uri not in _KNOWN_URIS for part in intrinsics):
            from fedpersonal.tff import stock

            block, _ = stock.replace_intrinsics_with_bodies(block)
        self._root = tff.to_call_dominant(block)
        self._parameter = computation.type_signature.parameter
        if self._parameter is not None:
            self._ingest = ingester(self._parameter)
        self._deliver = deliverer(computation.type_signature.result)
        _check(self._root)
        of_shards = _mapped_graphs(self._root)
        self._graphs = {
            id(part): Graph(part, compile=compile and id(part) in of_shards)
            for part in graphs_in(self._root)
        }

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles a part of it."""
        return any(graph.compiled for graph in self._graphs.values())

    def __call__(self, argument: Any, map_shards: MapShards) -> Any:
        """Runs the computation.

        Args:
            argument: Its argument, as TFF takes it; its result is as TFF returns it.
            map_shards: Applies a function, a `Graph` or a `Function`, to each value at CLIENTS.
        """
        if self._parameter is None:
            return self._deliver(_Run(self._graphs, map_shards, 0).evaluate(self._root, {})())
        run = _Run(self._graphs, map_shards, num_shards(argument, self._parameter) or 0)
        return self._deliver(run.evaluate(self._root, {})(self._ingest(argument)))


class Function:
    """A `tff.framework.Lambda` where names have the values of a scope."""

    def __init__(self, run: _Run, block: tff.Lambda, scope: Scope):
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


def load_function(proto: bytes, *, compile: bool) -> Callable[..., Any]:
    """Returns a function of the elements of a shard's value from its serialized building block.

    Args:
        proto: The building block, of a graph or of a function that calls graphs.
        compile: Whether XLA compiles its graphs, where that seems worth it.
    """
    block = tff.ComputationBuildingBlock.from_proto(tff.ComputationProto.FromString(proto))
    graphs = {id(part): Graph(part, compile=compile) for part in graphs_in(block)}
    function = _Run(graphs, map, 0).evaluate(block, {})
    takes_struct = isinstance(block.type_signature.parameter, tff.StructType)
    return lambda *elements: function(list(elements) if takes_struct else elements[0])


class _Run:
    """One call of a computation."""

    def __init__(self, graphs: Mapping[int, Graph], map_shards: MapShards, num_shards: int):
        self.graphs = graphs
        self._map_shards = map_shards
        self._num_shards = num_shards

    def evaluate(self, block: tff.ComputationBuildingBlock, scope: Scope) -> Any:
        """Returns a building block's value where names have the values of a scope."""
        return _EVALUATE[type(block)](self, block, scope)

    def _reference(self, block: tff.Reference, scope: Scope) -> Any:
        return scope[block.name]

    def _selection(self, block: tff.Selection, scope: Scope) -> Any:
        return self.evaluate(block.source, scope)[block.as_index()]

    def _struct(self, block: tff.Struct, scope: Scope) -> list[Any]:
        return [self.evaluate(part, scope) for part in block]

    def _block(self, block: tff.Block, scope: Scope) -> Any:
        inner = dict(scope)
        for name, value in block.locals:
            inner[name] = self.evaluate(value, inner)
        return self.evaluate(block.result, inner)

    def _lambda(self, block: tff.Lambda, scope: Scope) -> Function:
        return Function(self, block, scope)

    def _graph(self, block: tff.CompiledComputation, scope: Scope) -> Graph:
        del scope
        return self.graphs[id(block)]

    def _literal(self, block: tff.Literal, scope: Scope) -> np.ndarray:
        del scope
        return np.asarray(block.value, block.type_signature.dtype)

    def _call(self, block: tff.Call, scope: Scope) -> Any:
        function, argument = block.function, block.argument
        value = [] if argument is None else [self.evaluate(argument, scope)]
        if isinstance(function, tff.Intrinsic):
            if function.uri == "federated_sum":
                return self._sum(value[0], block.type_signature)
            return _INTRINSICS[function.uri](self, *value)
        return self.evaluate(function, scope)(*value)

    def _eval_at_server(self, function: Callable[[], Any]) -> Any:
        return function()

    def _eval_at_clients(self, function: Callable[[], Any]) -> Shards:
        return Shards(function() for _ in range(self._num_shards))

    def _at_server(self, value: Any) -> Any:
        return value

    def _at_clients(self, value: Any) -> AllEqual:
        return AllEqual(value)

    def _apply(self, argument: Sequence[Any]) -> Any:
        function, value = argument
        return function(value)

    def _map(self, argument: Sequence[Any]) -> Any:
        function, values = argument
        return Shards(self._map_shards(function, self._as_shards(values)))

    def _map_all_equal(self, argument: Sequence[Any]) -> AllEqual:
        function, values = argument
        return AllEqual(function(values.value))

    def _zip_at_clients(self, values: Sequence[Any]) -> Shards:
        return Shards(map(list, zip(*map(self._as_shards, values))))

    def _aggregate(self, argument: Sequence[Any]) -> Any:
        """Adds shards up in their order, as TFF's own executors do."""
        values, total, accumulate, _, report = argument
        for value in self._as_shards(values):
            total = accumulate([total, value])
        return report(total)

    def _sum(self, values: Any, result_type: tff.FederatedType) -> Any:
        """Adds shards up in their order, as TFF's own graphs of a sum do, which take longer."""
        total, *others = self._as_shards(values) or [_zeros(result_type.member)]
        if others:
            total = _added(total, others.pop(0))
        return functools.reduce(_add_to, others, total)

    def _as_shards(self, values: Any) -> Shards:
        return values.of(self._num_shards) if isinstance(values, AllEqual) else values


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
    tff.Block: _Run._block,
    tff.Call: _Run._call,
    tff.CompiledComputation: _Run._graph,
    tff.Lambda: _Run._lambda,
    tff.Literal: _Run._literal,
    tff.Reference: _Run._reference,
    tff.Selection: _Run._selection,
    tff.Struct: _Run._struct,
}


def blocks_in(block: tff.ComputationBuildingBlock) -> list[Any]:
    """Returns a building block and all that are within it."""
    found = [block]
    for child in block.children():
        found.extend(blocks_in(child))
    return found


def graphs_in(
    block: tff.ComputationBuildingBlock,
) -> list[tff.CompiledComputation]:
    """Returns the graphs within a building block, which may be one itself, in a fixed order."""
    return [p for p in blocks_in(block) if isinstance(p, tff.CompiledComputation)]


def _zeros(type_spec: tff.Type) -> Any:
    if isinstance(type_spec, tff.StructType):
        return [_zeros(element) for element in type_spec]
    return np.zeros(type_spec.shape, type_spec.dtype)


def _added(value: Any, other: Any) -> Any:
    """Returns the sum of two values in arrays of its own."""
    if isinstance(value, list):
        return list(map(_added, value, other))
    # TensorFlow copies arrays whose memory does not begin at a multiple of 64.
    array = np.asarray(value)
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    total = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    return np.add(array, other, out=total)


def _add_to(total: Any, value: Any) -> Any:
    """Adds a value to a total in place, and returns the total."""
    if isinstance(total, list):
        return list(map(_add_to, total, value))
    return np.add(total, value, out=total)


def _mapped_graphs(root: tff.ComputationBuildingBlock) -> set[int]:
    """Returns the graphs that shards run, by `id`."""
    found: set[int] = set()
    for part in blocks_in(root):
        if isinstance(part, tff.Call) and isinstance(part.function, tff.Intrinsic):
            if part.function.uri == "federated_map":
                found.update(map(id, graphs_in(part.argument[0])))
    return found


def _check(root: tff.ComputationBuildingBlock) -> None:
    for part in blocks_in(root):
        if isinstance(part, tff.Intrinsic):
            if part.uri not in _KNOWN_URIS:
                raise unsupported(f"A computation calls tff.{part.uri}")
        elif type(part) not in _EVALUATE:
            raise unsupported(f"A computation has a part of the kind {type(part).__name__}")
