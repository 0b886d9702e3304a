"""Runs TFF's building blocks: a computation's own parts, one after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow_federated as tff

from fedpersonal.runtime.graphs import Graph, Unsupported
from fedpersonal.runtime.values import AllEqual, Members

Scope = Mapping[str, Any]


class Interpreter:
    """Runs one computation, any number of times."""

    def __init__(
        self, computation: tff.Computation, pool: ThreadPoolExecutor, *, compiled: bool | None
    ):
        """Takes the computation apart and imports its graphs.

        Args:
            computation: The computation.
            pool: The threads in which members of CLIENTS run.
            compiled: Whether XLA compiles what members run; None where it seems worth it.

        Raises:
            Unsupported: If the computation has a part that this class does not know.
        """
        block, _ = tff.tensorflow.replace_intrinsics_with_bodies(computation.to_building_block())
        self._root = tff.framework.to_call_dominant(block)
        self._takes_argument = computation.type_signature.parameter is not None
        self._pool = pool
        self._graphs: dict[int, Graph] = {}
        _check(self._root)
        of_members = _mapped_graphs(self._root)
        for part in _parts(self._root):
            if isinstance(part, tff.framework.CompiledComputation):
                choice = compiled if id(part) in of_members else False
                self._graphs[id(part)] = Graph(part, compiled=choice)

    def __call__(self, argument: Any, num_members: int) -> Any:
        """Runs the computation; values are those of `fedpersonal.runtime.values`."""
        run = _Run(self._graphs, self._pool, num_members)
        function = run.evaluate(self._root, {})
        return function(argument) if self._takes_argument else function()


class _Run:
    """One call of a computation."""

    def __init__(self, graphs: Mapping[int, Graph], pool: ThreadPoolExecutor, num_members: int):
        self._graphs = graphs
        self._pool = pool
        self._num_members = num_members

    def evaluate(self, block: tff.framework.ComputationBuildingBlock, scope: Scope) -> Any:
        """Returns a building block's value where names have the values of a scope."""
        framework = tff.framework
        if isinstance(block, framework.Reference):
            return scope[block.name]
        if isinstance(block, framework.Selection):
            return self.evaluate(block.source, scope)[block.as_index()]
        if isinstance(block, framework.Struct):
            return [self.evaluate(part, scope) for part in block]
        if isinstance(block, framework.Block):
            inner = dict(scope)
            for name, value in block.locals:
                inner[name] = self.evaluate(value, inner)
            return self.evaluate(block.result, inner)
        if isinstance(block, framework.Lambda):
            return self._function(block, scope)
        if isinstance(block, framework.CompiledComputation):
            return self._graphs[id(block)]
        if isinstance(block, framework.Literal):
            return np.asarray(block.value, block.type_signature.dtype)
        function, argument = block.function, block.argument
        value = [] if argument is None else [self.evaluate(argument, scope)]
        if isinstance(function, framework.Intrinsic):
            return _INTRINSICS[function.uri](self, *value)
        return self.evaluate(function, scope)(*value)

    def _function(self, block: tff.framework.Lambda, scope: Scope) -> Callable[..., Any]:
        def function(*argument: Any) -> Any:
            named = {block.parameter_name: argument[0]} if argument else {}
            return self.evaluate(block.result, {**scope, **named})

        return function

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
        # Even one alone: the main thread can be interrupted while it waits, not while it computes.
        return Members(self._pool.map(function, self._members(values)))

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
_KNOWN = (
    tff.framework.Block,
    tff.framework.Call,
    tff.framework.CompiledComputation,
    tff.framework.Intrinsic,
    tff.framework.Lambda,
    tff.framework.Literal,
    tff.framework.Reference,
    tff.framework.Selection,
    tff.framework.Struct,
)


def _parts(block: tff.framework.ComputationBuildingBlock) -> list[Any]:
    """Returns a building block and all that are within it."""
    found = [block]
    for child in block.children():
        found.extend(_parts(child))
    return found


def _mapped_graphs(root: tff.framework.ComputationBuildingBlock) -> set[int]:
    """Returns the graphs that members of CLIENTS run, by `id`."""
    found: set[int] = set()
    for part in _parts(root):
        if isinstance(part, tff.framework.Call) and isinstance(
            part.function, tff.framework.Intrinsic
        ):
            if part.function.uri == "federated_map":
                inner = _parts(part.argument[0])
                graphs = (p for p in inner if isinstance(p, tff.framework.CompiledComputation))
                found.update(map(id, graphs))
    return found


def _check(root: tff.framework.ComputationBuildingBlock) -> None:
    for part in _parts(root):
        if not isinstance(part, _KNOWN):
            raise Unsupported(f"it has a {type(part).__name__}")
        if isinstance(part, tff.framework.Intrinsic) and part.uri not in _INTRINSICS:
            raise Unsupported(f"it calls {part.uri}")
