"""The call-dominant form of a computation: its parts in the order of execution.

The body of each function of the computation replaces the function's calls. Each other call has a
name, and parts that no result needs are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedpersonal.tff.language import (
    Block,
    Call,
    ComputationBuildingBlock,
    Lambda,
    Reference,
    Selection,
    Struct,
    iter_elements,
    unique_name_generator,
)

Scope = Mapping[str, ComputationBuildingBlock]


def to_call_dominant(block: ComputationBuildingBlock) -> ComputationBuildingBlock:
    """Returns a computation in call-dominant form.

    Args:
        block: The computation's building block.
    """
    body = _Body(unique_name_generator(block))
    return body.finish(body.build(block, {}))


class _Body:
    """The calls within one function, each under a unique name."""

    def __init__(self, names: Iterator[str]):
        self._names = names
        self._calls: list[tuple[str, Call]] = []

    def build(self, block: ComputationBuildingBlock, scope: Scope) -> ComputationBuildingBlock:
        """Returns the normal form of a block in a scope of names, and records its calls."""
        if isinstance(block, Reference):
            return scope.get(block.name, block)
        if isinstance(block, Selection):
            source, index = self.build(block.source, scope), block.as_index()
            is_struct = isinstance(source, Struct)
            return source[index] if is_struct else Selection(source, index=index)
        if isinstance(block, Struct):
            return Struct([(name, self.build(part, scope)) for name, part in iter_elements(block)])
        if isinstance(block, Block):
            for name, value in block.locals:
                scope = {**scope, name: self.build(value, scope)}
            return self.build(block.result, scope)
        if isinstance(block, Lambda):
            return self._build_function(block, scope)
        if isinstance(block, Call):
            return self._build_call(block, scope)
        return block

    def finish(self, result: ComputationBuildingBlock) -> ComputationBuildingBlock:
        """Returns the calls that a result needs, and the result."""
        kept, needed = [], _names_in(result)
        for name, call in reversed(self._calls):
            if name in needed:
                kept.append((name, call))
                needed |= _names_in(call)
        return Block(kept[::-1], result) if kept else result

    def _build_call(self, block: Call, scope: Scope) -> ComputationBuildingBlock:
        function = self.build(block.function, scope)
        argument = None if block.argument is None else self.build(block.argument, scope)
        if isinstance(function, Lambda):
            # The function's names are unique, so none can hide another.
            parameters = {} if argument is None else {function.parameter_name: argument}
            return self.build(function.result, parameters)
        name = next(self._names)
        self._calls.append((name, Call(function, argument)))
        return Reference(name, block.type_signature)

    def _build_function(self, block: Lambda, scope: Scope) -> Lambda:
        inner, name = _Body(self._names), block.parameter_name
        if name is not None:
            name = next(self._names)
            scope = {**scope, block.parameter_name: Reference(name, block.parameter_type)}
        body = inner.finish(inner.build(block.result, scope))
        return Lambda(name, block.parameter_type, body)


def _names_in(block: ComputationBuildingBlock) -> set[str]:
    """Returns the names that a block refers to."""
    if isinstance(block, Reference):
        return {block.name}
    return set().union(*map(_names_in, block.children()))
