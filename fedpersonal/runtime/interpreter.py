"""An interpreter of TFF's building blocks, which run one after another in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal import tff
from fedpersonal.runtime.graphs import Graph, unsupported
from fedpersonal.runtime.values import AllEqual, Shards, build_deliverer, build_ingester, num_shards

Scope = Mapping[str, Any]
MapShards = Callable[[Callable[..., Any], Shards], Iterable[Any]]


class Interpreter:
    """Runs the building blocks of one computation, any number of times."""

    def __init__(self, computation: tff.Computation, *, compile: bool):
        """Decomposes the computation and imports its graphs.

        Args:
            computation: The computation.
            compile: Whether XLA compiles the shards' graphs, if that seems worth it.

        Raises:
            UserError: If the computation has an unsupported part.
        """
        block = computation.to_building_block()
        intrinsics = (b for b in blocks_in(block) if isinstance(b, tff.Intrinsic))
        if any(part.uri not in _SUPPORTED_URIS for part in intrinsics):
            from fedpersonal.tff import stock

            block, _ = stock.replace_intrinsics_with_bodies(block)
        self._root = tff.to_call_dominant(block)
        self._parameter = computation.type_signature.parameter
        if self._parameter is not None:
            self._ingest = build_ingester(self._parameter)
        self._deliver = build_deliverer(computation.type_signature.result)
        _check(self._root)
        shard_graphs = _mapped_graphs(self._root)
        self._graphs = {
            id(part): Graph(part, compile=compile and id(part) in shard_graphs)
            for part in graphs_in(self._root)
        }

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles a part of the computation."""
        return any(graph.compiled for graph in self._graphs.values())

    def __call__(self, argument: Any, map_shards: MapShards) -> Any:
        """Runs the computation.

        Args:
            argument: The argument in TFF's form; the result is in TFF's form, too.
            map_shards: Applies a `Graph` or a `Function` to each value at CLIENTS.
        """
        if self._parameter is None:
            return self._deliver(_Run(self._graphs, map_shards, 0).evaluate(self._root, {})())
        run = _Run(self._graphs, map_shards, num_shards(argument, self._parameter) or 0)
        return self._deliver(run.evaluate(self._root, {})(self._ingest(argument)))


class Function:
    """A callable `tff.framework.Lambda` with a scope of names."""

    def __init__(self, run: _Run, block: tff.Lambda, scope: Scope):
        self._run = run
        self.block = block
        self.scope = scope

    def __call__(self, *argument: Any) -> Any:
        """Calls the function."""
        parameters = {self.block.parameter_name: argument[0]} if argument else {}
        return self._run.evaluate(self.block.result, {**self.scope, **parameters})

    @property
    def graphs(self) -> list[Graph]:
        """The graphs that the function calls, in the order of `graphs_in`."""
        return [self._run.graphs[id(part)] for part in graphs_in(self.block)]


def load_function(proto: bytes, *, compile: bool) -> Callable[..., Any]:
    """Returns a function of the elements of a shard's value from a serialised building block.

    Args:
        proto: The building block of a graph, or of a function that calls graphs.
        compile: Whether XLA compiles the graphs, if that seems worth it.
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
        """Returns a building block's value in a scope of names."""
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
        """Adds shards in their order, as TFF's executors do."""
        values, total, accumulate, _, report = argument
        for value in self._as_shards(values):
            total = accumulate([total, value])
        return report(total)

    def _sum(self, values: Any, result_type: tff.FederatedType) -> Any:
        """Adds shards in their order, like TFF's graphs of a sum, but faster."""
        total, *others = self._as_shards(values) or [_zeros(result_type.member)]
        if others:
            total = _sum_arrays(total, others.pop(0))
        return functools.reduce(_add_to, others, total)

    def _as_shards(self, values: Any) -> Shards:
        return values.to_shards(self._num_shards) if isinstance(values, AllEqual) else values


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
_SUPPORTED_URIS = {*_INTRINSICS, "federated_sum"}
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
    """Returns a building block and all blocks within it."""
    blocks = [block]
    for child in block.children():
        blocks.extend(blocks_in(child))
    return blocks


def graphs_in(
    block: tff.ComputationBuildingBlock,
) -> list[tff.CompiledComputation]:
    """Returns the graphs within a building block, itself included, in a fixed order."""
    return [p for p in blocks_in(block) if isinstance(p, tff.CompiledComputation)]


def _zeros(type_spec: tff.Type) -> Any:
    if isinstance(type_spec, tff.StructType):
        return [_zeros(element) for element in type_spec]
    return np.zeros(type_spec.shape, type_spec.dtype)


def _sum_arrays(value: Any, other: Any) -> Any:
    """Returns the sum of two values in newly allocated arrays."""
    if isinstance(value, list):
        return list(map(_sum_arrays, value, other))
    # TensorFlow copies arrays whose memory does not start at a multiple of 64.
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
    """Returns the `id`s of the graphs that shards run."""
    ids: set[int] = set()
    for part in blocks_in(root):
        if isinstance(part, tff.Call) and isinstance(part.function, tff.Intrinsic):
            if part.function.uri == "federated_map":
                ids.update(map(id, graphs_in(part.argument[0])))
    return ids


def _check(root: tff.ComputationBuildingBlock) -> None:
    for part in blocks_in(root):
        if isinstance(part, tff.Intrinsic):
            if part.uri not in _SUPPORTED_URIS:
                raise unsupported(f"A computation calls tff.{part.uri}")
        elif type(part) not in _EVALUATE:
            raise unsupported(f"A computation has a part of the kind {type(part).__name__}")
