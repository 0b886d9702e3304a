"""The optimizers of a phase, for a stack of clients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from fedpersonal.client.values import align, join_axes, over_clients, tile_clients, where_client
from fedpersonal.errors import UserError
from fedpersonal.methods.phases import GradientPhase, LookAhead, NeighboursPhase, Phase
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.model.variables import VariableSpec, check_names
from fedpersonal.optimizers import Optimizer, ScheduledOptimizer, as_tff_optimizer
from fedpersonal.tff.optimizers import Stepping


def check_phases(model: PartitionedModel, phases: Sequence[Phase]) -> None:
    """Checks what phases name, and their optimizers, against a model.

    Raises:
        UserError: If one names no variable, or a frozen one, or an optimizer cannot be used.
    """
    for i, phase in enumerate(phases):
        if isinstance(phase, NeighboursPhase):
            check_names(f"phase {i}: head", phase.head, model.variables)
            if phase is not phases[-1]:
                raise UserError(
                    f"phase {i}: a NeighboursPhase must be the last, before a client predicts; "
                    f"{len(phases) - i - 1} more would move what it has remembered."
                )
        if not isinstance(phase, GradientPhase):
            _check_unconstrained(model, phase)
            continue
        if not isinstance(phase.variables, str):
            check_names(f"phase {i}: variables", phase.variables, model.variables)
        keys = [key for key in phase.optimizers if key != "local"]
        check_names(f"phase {i}: optimizers", keys, model.variables)
        for variable in model.variables:
            if phase.moves(variable):
                optimizer_of(phase, variable)
                if phase.ahead is not None:
                    optimizer_of(phase.ahead, variable)


def _check_unconstrained(model: PartitionedModel, phase: Phase) -> None:
    constrained = [v.name for v in model.variables if v.constraint and phase.moves(v)]
    if constrained:
        raise UserError(
            f"{type(phase).__name__} moves {constrained[0]!r}, which has a constraint of Keras: "
            "only gradient steps apply it. Build its layer without, or choose another method."
        )


def client_optimizer(
    phase: GradientPhase,
    values: Values,
    model: PartitionedModel,
    *,
    pull: float = 0.0,
    pulled: Collection[str] = (),
    is_near: bool = False,
    added: Values | None = None,
) -> ClientOptimizer | _SplitOptimizer:
    """Returns what steps the variables that a phase moves, by name of shape (C, ...).

    The others are those of `ClientOptimizer`.
    """
    # Optimizers by identity: equal ones step together only where they are one.
    groups: dict[int, tuple[Optimizer, Values]] = {}
    for variable in model.variables:
        if variable.name in values:
            optimizer = optimizer_of(phase, variable)
            _, group = groups.setdefault(id(optimizer), (optimizer, {}))
            group[variable.name] = values[variable.name]
    optimizers = [
        ClientOptimizer(
            optimizer, group, model, pull=pull, pulled=pulled, is_near=is_near, added=added
        )
        for optimizer, group in groups.values()
    ]
    return optimizers[0] if len(optimizers) == 1 else _SplitOptimizer(optimizers)


def optimizer_of(phase: GradientPhase | LookAhead, variable: VariableSpec) -> Optimizer:
    """Returns the optimizer with which a phase moves a variable: the most specific one."""
    others = phase.optimizers if isinstance(phase, GradientPhase) else {}
    key = variable.first_name(others)
    if key is None and variable.is_local and "local" in others:
        key = "local"
    return as_tff_optimizer(phase.optimizer if key is None else others[key])


def plain_sgd_rate(optimizer: Optimizer) -> float | None:
    """Returns the learning rate of SGD without momentum, or None for another optimizer."""
    state = optimizer.initialize({})
    return state["learning_rate"] if list(state) == ["learning_rate"] else None


class _RunTimeSpec:
    """Stands in for a `tf.TensorSpec`: a table's number of touched rows is known at run time."""

    def __init__(self, value: tf.Tensor):
        is_static = value.shape.is_fully_defined()
        self.shape = value.shape if is_static else tf.shape(value)
        self.dtype = value.dtype


class ClientOptimizer:
    """A TFF optimizer that steps a stack of clients, each with a state of its own."""

    def __init__(
        self,
        optimizer: Optimizer,
        values: Values,
        model: PartitionedModel,
        *,
        pull: float = 0.0,
        pulled: Collection[str] = (),
        is_near: bool = False,
        added: Values | None = None,
    ):
        """Takes the optimizer, and the values to step, (C, ...).

        To the gradients of the variables that are `pulled`, each step adds `pull` times their
        distance from what it is given. `is_near` says that rows of tables which a step's batches do
        not have are already there. What is `added` to gradients, (C, ...) or (1, ...), moves all
        rows of tables.
        """
        self._optimizer = optimizer
        plain = optimizer.optimizer if isinstance(optimizer, ScheduledOptimizer) else optimizer
        self._stepping = plain if isinstance(plain, Stepping) else None
        self.names = set(values)
        self._pull = pull
        self._pulled = [name for name in values if name in pulled]
        self._tables = [name for name in values if name in model.tables]
        state = optimizer.initialize({k: _RunTimeSpec(v[0]) for k, v in values.items()})
        if self._tables and "weight_decay" in state:
            raise ValueError(
                f"weight decay moves rows that a client never touches; {self._tables} cannot be "
                "lookups with this optimizer."
            )
        # Plain SGD is linear in the gradient and keeps no state: rows can be stepped one by one,
        # where nothing pulls on those that a batch does not have.
        self._added = {name: added[name] for name in values if added and name in added}
        is_still = (is_near or not self._pulled) and not self._added
        self._is_plain_sgd = list(state) == ["learning_rate"] and is_still
        clients = tf.shape(next(iter(values.values())))[0]
        self._constant_state = state
        self.initial_state: Any = ()
        if not self._is_plain_sgd:
            self.initial_state = tf.nest.map_structure(
                lambda s: tile_clients(tf.convert_to_tensor(s), clients), state
            )

    def private_copies(self, values: Values) -> Values:
        """Copies what steps change in place, so that nothing else sees it change."""
        if not self._is_plain_sgd:
            return values
        return {k: tf.raw_ops.DeepCopy(x=v) if k in self._tables else v for k, v in values.items()}

    def next(self, state, values, stepped, gradients, places, is_active, anchors):
        """Takes one step.

        Args:
            state: The clients' optimizer states.
            values: The moving values, (C, ...); of tables the touched rows (C, R, ...).
            stepped: The same, but of tables the batch's rows, (T, ...) or (C, T, ...).
            gradients: Gradients with respect to `stepped`.
            places: Table name to int32 (T,) or (C, T): where those rows stand among the touched
                rows of all clients, of which there are C * R.
            is_active: float32 (C,), 1 where a client takes this step; gradients are 0 elsewhere.
            anchors: What the variables that are pulled are pulled to, (C, ...) or (1, ...); the
                former where `is_near`.

        Returns:
            The new values and the new states.
        """
        if self._is_plain_sgd:
            slopes = dict(gradients)
            for name in self._pulled:
                if name in self._tables:
                    distance = _row_distance(values[name], anchors[name], places[name])
                else:
                    distance = values[name] - anchors[name]
                slopes[name] += self._pull * distance
            _, moved = self._optimizer.next(self._constant_state, stepped, slopes)
            new = dict(moved)
            for name in self._tables:
                new[name] = _add_rows(values[name], places[name], moved[name] - stepped[name])
            return new, state
        dense = dict(gradients)
        for name in self._tables:
            dense[name] = _sum_rows(values[name], places[name], gradients[name])
        for name in self._pulled:
            dense[name] += self._pull * (values[name] - anchors[name])
        for name, correction in self._added.items():
            dense[name] += correction
        if self._stepping:  # Vectorising it takes seconds to trace.
            new_state, new = self._stepping.next(
                state, values, dense, align=lambda number, weight: align(number, weight.shape.rank)
            )
        else:
            stack = (state, values, dense)
            new_state, new = over_clients(lambda one: self._optimizer.next(*one), stack)
        return tf.nest.map_structure(
            lambda after, before: where_client(is_active > 0, after, before),
            (dict(new), new_state),
            (values, state),
        )


class _SplitOptimizer:
    """Several client optimizers, each of which steps variables of its own."""

    def __init__(self, optimizers: Sequence[ClientOptimizer]):
        self._optimizers = optimizers
        self.initial_state = tuple(optimizer.initial_state for optimizer in optimizers)

    def private_copies(self, values: Values) -> Values:
        """Copies what steps change in place, so that nothing else sees it change."""
        parts = (o.private_copies(_only(values, o.names)) for o in self._optimizers)
        return {k: v for part in parts for k, v in part.items()}

    def next(self, state, values, stepped, gradients, places, is_active, anchors):
        """Takes one step; arguments and results are those of `ClientOptimizer.next`."""
        new_values, new_state = {}, []
        for optimizer, own_state in zip(self._optimizers, state):
            own, rows, slopes = (
                _only(mapping, optimizer.names) for mapping in (values, stepped, gradients)
            )
            moved, own_state = optimizer.next(
                own_state, own, rows, slopes, places, is_active, anchors
            )
            new_values.update(moved)
            new_state.append(own_state)
        return {name: new_values[name] for name in values}, tuple(new_state)


def _only(values: Values, names: Collection[str]) -> Values:
    return {k: v for k, v in values.items() if k in names}


def _add_rows(tables: tf.Tensor, places: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Adds rows to tables (C, R, ...), in place.

    TensorFlow's pure scatter copies the whole table at every step. The tables must be the loop's
    own copy, read by nothing that may run after this.
    """
    flat_rows = join_axes(rows, places.shape.rank)
    flat, places = join_axes(tables, 2), tf.reshape(places, [-1])
    added = tf.raw_ops.InplaceAdd(x=flat, i=places, v=flat_rows)
    return tf.ensure_shape(tf.reshape(added, tf.shape(tables)), tables.shape)


def _row_distance(tables: tf.Tensor, anchors: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the distance of rows of tables (C, R, ...), by place; places of one row share it."""
    slots, flat = tf.reshape(places, [-1]), join_axes(tables, 2)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(slots), slots, tf.shape(flat)[0])
    distance = tf.gather(flat, slots) - tf.gather(join_axes(anchors, 2), slots)
    shared = distance / align(tf.cast(tf.gather(counts, slots), distance.dtype), flat.shape.rank)
    return tf.reshape(shared, tf.concat([tf.shape(places), tf.shape(flat)[1:]], 0))


def _sum_rows(tables: tf.Tensor, places: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Sums rows by their places into zeros shaped like tables (C, R, ...)."""
    shape, flat_rows = tf.shape(tables), join_axes(rows, places.shape.rank)
    places = tf.reshape(places, [-1])
    return tf.reshape(tf.math.unsorted_segment_sum(flat_rows, places, shape[0] * shape[1]), shape)
