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
from fedpersonal.tff.optimizers import SlotOptimizer


def check_phases(model: PartitionedModel, phases: Sequence[Phase]) -> None:
    """Checks phases' variables and optimizers against a model.

    Raises:
        UserError: If a phase names an unknown or a frozen variable, or has an unusable optimizer.
    """
    for i, phase in enumerate(phases):
        if isinstance(phase, NeighboursPhase):
            check_names(f"phase {i}: head", phase.head, model.variables)
            if phase is not phases[-1]:
                raise UserError(
                    f"phase {i}: a NeighboursPhase must be the last phase; "
                    f"{len(phases) - i - 1} more would outdate the memory that it fills."
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
            f"{type(phase).__name__} moves {constrained[0]!r}, which has a Keras constraint, but "
            "only gradient steps apply constraints. Build its layer without one, or choose another "
            "method."
        )


def client_optimizer(
    phase: GradientPhase,
    values: Values,
    model: PartitionedModel,
    *,
    pull: float = 0.0,
    pulled_names: Collection[str] = (),
    is_at_anchor: bool = False,
    corrections: Values | None = None,
) -> ClientOptimizer | _SplitOptimizer:
    """Returns the optimizer of the variables that a phase moves: name to values (C, ...).

    The keyword arguments are those of `ClientOptimizer`.
    """
    # Variables are grouped by the identity of their optimizer; equal ones stay apart.
    groups: dict[int, tuple[Optimizer, Values]] = {}
    for variable in model.variables:
        if variable.name in values:
            optimizer = optimizer_of(phase, variable)
            _, group = groups.setdefault(id(optimizer), (optimizer, {}))
            group[variable.name] = values[variable.name]
    optimizers = [
        ClientOptimizer(
            optimizer,
            group,
            model,
            pull=pull,
            pulled_names=pulled_names,
            is_at_anchor=is_at_anchor,
            corrections=corrections,
        )
        for optimizer, group in groups.values()
    ]
    return optimizers[0] if len(optimizers) == 1 else _SplitOptimizer(optimizers)


def optimizer_of(phase: GradientPhase | LookAhead, variable: VariableSpec) -> Optimizer:
    """Returns the most specific optimizer that a phase has for a variable."""
    by_name = phase.optimizers if isinstance(phase, GradientPhase) else {}
    key = variable.first_name(by_name)
    if key is None and variable.is_local and "local" in by_name:
        key = "local"
    return as_tff_optimizer(phase.optimizer if key is None else by_name[key])


def plain_sgd_rate(optimizer: Optimizer) -> float | None:
    """Returns the learning rate of SGD without momentum, or None for another optimizer."""
    state = optimizer.initialize({})
    return state["learning_rate"] if list(state) == ["learning_rate"] else None


class _RunTimeSpec:
    """A substitute for `tf.TensorSpec`: a table's number of touched rows is a run-time tensor."""

    def __init__(self, value: tf.Tensor):
        is_static = value.shape.is_fully_defined()
        self.shape = value.shape if is_static else tf.shape(value)
        self.dtype = value.dtype


class ClientOptimizer:
    """A TFF optimizer for a stack of clients, with a state for each."""

    def __init__(
        self,
        optimizer: Optimizer,
        values: Values,
        model: PartitionedModel,
        *,
        pull: float = 0.0,
        pulled_names: Collection[str] = (),
        is_at_anchor: bool = False,
        corrections: Values | None = None,
    ):
        """Builds the optimizer of a stack of clients.

        Args:
            optimizer: The TFF optimizer.
            values: The values to step, (C, ...).
            model: The partitioned model.
            pull: Each step adds `pull` times a variable's distance from its anchor to its gradient.
            pulled_names: The variables with an anchor.
            is_at_anchor: Whether table rows outside of a step's batches already equal their anchor.
            corrections: Variable's name to a number to add to its gradients, (C, ...) or (1, ...);
                it moves all rows of tables.
        """
        self._optimizer = optimizer
        plain = optimizer.optimizer if isinstance(optimizer, ScheduledOptimizer) else optimizer
        self._stepping = plain if isinstance(plain, SlotOptimizer) else None
        self.names = set(values)
        self._pull = pull
        self._pulled_names = [name for name in values if name in pulled_names]
        self._tables = [name for name in values if name in model.tables]
        state = optimizer.initialize({k: _RunTimeSpec(v[0]) for k, v in values.items()})
        if self._tables and "weight_decay" in state:
            raise ValueError(
                f"weight decay moves rows that a client never touches, so {self._tables} cannot be "
                "lookups with this optimizer."
            )
        # Plain SGD is linear in the gradient and keeps no state: it can step rows one by one,
        # unless something pulls on rows outside of the batch.
        self._corrections = {k: corrections[k] for k in values if corrections and k in corrections}
        is_still = (is_at_anchor or not self._pulled_names) and not self._corrections
        self._is_plain_sgd = list(state) == ["learning_rate"] and is_still
        clients = tf.shape(next(iter(values.values())))[0]
        self._constant_state = state
        self.initial_state: Any = ()
        if not self._is_plain_sgd:
            self.initial_state = tf.nest.map_structure(
                lambda s: tile_clients(tf.convert_to_tensor(s), clients), state
            )

    def copy_mutable(self, values: Values) -> Values:
        """Copies values that steps change in place, so that no other reader sees the changes."""
        if not self._is_plain_sgd:
            return values
        return {k: tf.raw_ops.DeepCopy(x=v) if k in self._tables else v for k, v in values.items()}

    def next(self, state, values, stepped, gradients, places, is_active, anchors):
        """Takes one step.

        Args:
            state: The clients' optimizer states.
            values: The moving values, (C, ...); of tables the touched rows (C, R, ...).
            stepped: The values to step: of tables the batch's rows, (T, ...) or (C, T, ...), of
                other variables as in `values`.
            gradients: Gradients with respect to `stepped`.
            places: Table name to int32 (T,) or (C, T): the indices of those rows among all clients'
                C * R touched rows.
            is_active: float32 (C,), 1 where a client takes this step; gradients are 0 elsewhere.
            anchors: The anchors of the pulled variables, (C, ...) or (1, ...); (C, ...) if
                `is_at_anchor`.

        Returns:
            The new values and the new states.
        """
        if self._is_plain_sgd:
            slopes = dict(gradients)
            for name in self._pulled_names:
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
        for name in self._pulled_names:
            dense[name] += self._pull * (values[name] - anchors[name])
        for name, correction in self._corrections.items():
            dense[name] += correction
        if self._stepping:  # Tracing a vectorised optimizer takes seconds.
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
    """Several client optimizers, each for some of the variables."""

    def __init__(self, optimizers: Sequence[ClientOptimizer]):
        self._optimizers = optimizers
        self.initial_state = tuple(optimizer.initial_state for optimizer in optimizers)

    def copy_mutable(self, values: Values) -> Values:
        """Copies values that steps change in place, so that no other reader sees the changes."""
        parts = (o.copy_mutable(_only(values, o.names)) for o in self._optimizers)
        return {k: v for part in parts for k, v in part.items()}

    def next(self, state, values, stepped, gradients, places, is_active, anchors):
        """Takes one step; arguments and results are those of `ClientOptimizer.next`."""
        new_values, new_state = {}, []
        for optimizer, part_state in zip(self._optimizers, state):
            part, rows, slopes = (
                _only(mapping, optimizer.names) for mapping in (values, stepped, gradients)
            )
            moved, part_state = optimizer.next(
                part_state, part, rows, slopes, places, is_active, anchors
            )
            new_values.update(moved)
            new_state.append(part_state)
        return {name: new_values[name] for name in values}, tuple(new_state)


def _only(values: Values, names: Collection[str]) -> Values:
    return {k: v for k, v in values.items() if k in names}


def _add_rows(tables: tf.Tensor, places: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Adds rows to tables (C, R, ...), in place.

    TensorFlow's pure scatter copies the whole table at every step. The tables must be a copy that
    only the loop uses: no other reader may run after this.
    """
    flat_rows = join_axes(rows, places.shape.rank)
    flat, places = join_axes(tables, 2), tf.reshape(places, [-1])
    total = tf.raw_ops.InplaceAdd(x=flat, i=places, v=flat_rows)
    return tf.ensure_shape(tf.reshape(total, tf.shape(tables)), tables.shape)


def _row_distance(tables: tf.Tensor, anchors: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns the distances of table rows from their anchors, by place.

    Places of the same row share its distance equally.
    """
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
