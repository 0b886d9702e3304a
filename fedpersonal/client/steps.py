"""One client's round as one pure TensorFlow function.

All tensors have a leading client axis: stacked clients take their steps together, and a single
client is a stack of one. Where clients differ in size, a step beyond a client's last one leaves its
variables and its optimizer's state unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from fedpersonal.client.batches import (
    batch_metric_sums,
    predict_batch,
    schedule_phase,
    take_batch,
    zero_sums,
)
from fedpersonal.client.choice import choose_clusters
from fedpersonal.client.neighbours import store_memory
from fedpersonal.client.optimizer import ClientOptimizer, client_optimizer, optimizer_of
from fedpersonal.client.ridge import solve_local_values
from fedpersonal.client.rows import touched_tables, whole_tables
from fedpersonal.client.states import assign_states
from fedpersonal.client.values import (
    ClientValues,
    Examples,
    align,
    constrain,
    corrections,
    count_client_batches,
    count_clients,
    model_views,
    per_client_copies,
    phase_mask,
    proximal_anchors,
    sent_copies,
    split_values,
    starting_copy,
    where_client,
)
from fedpersonal.data.splits import count_batches, find_batch
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import (
    BlendPhase,
    ChoicePhase,
    GradientPhase,
    LookAhead,
    NeighboursPhase,
    Phase,
)
from fedpersonal.model.names import CLUSTER_SHARES, SERVER_STATE
from fedpersonal.model.partition import PartitionedModel, Values

# The number that is folded into a client's noise after a phase, in place of a step's number.
PHASE_END = -1


class ClientOutput(NamedTuple):
    """The result of a round of a stack of clients.

    Attributes:
        updates: Global variable's name to final - initial value, (C, ...), except of states; of a
            lookup table, only its touched rows: (C, R, ...).
        states: Name of a server's state to the tensor that a client sends to move it, (C, ...),
            which no norm bounds: SCAFFOLD's change of its control variate, IFCA's choice, and for
            FedDyn the update of each variable of which the server keeps a state.
        weights: float32 (C,): weight in the average.
        num_examples: float32 (C,): examples processed in the last phase.
        metric_sums: Metric name, and `loss`, to float32 (C, 2): sums of those examples' values and
            weights.
        dropped: float32 (C,): 1 where the update was not finite and was set to zero.
        local_values: Local variable's name to (C, ...), which never leave the client; the values
            it started from, if its update was dropped or they are not finite.
    """

    updates: Values
    states: Values
    weights: tf.Tensor
    num_examples: tf.Tensor
    metric_sums: dict[str, tf.Tensor]
    dropped: tf.Tensor
    local_values: Values


class PhaseOutput(NamedTuple):
    """What comes of a phase.

    Attributes:
        values: The values after it.
        sums: Metric name, and `loss`, to float32 (C, 2); empty where metrics were not asked for.
        num_examples: float32 (C,): examples processed.
    """

    values: ClientValues
    sums: dict[str, tf.Tensor]
    num_examples: tf.Tensor


def train_clients(
    model: PartitionedModel, algorithm: Algorithm, start: ClientValues, examples: Examples
) -> ClientOutput:
    """Runs all phases of an algorithm on a stack of clients (FedRecon, Algorithm 1, ClientUpdate).

    `start` holds the values before the phases.
    """
    values, (examples,) = touched_tables(model, algorithm.phases, start, examples)
    phases = algorithm.phases
    for number, phase in enumerate(phases[:-1]):
        values = run_phase(model, phase, values, examples.in_phase(phases, number))
    last_examples = examples.in_phase(phases, len(phases) - 1)
    last = run_gradient_phase(model, algorithm.last_phase, values, last_examples, with_metrics=True)
    return client_output(model, algorithm, start, examples, last)


def client_output(
    model: PartitionedModel,
    algorithm: Algorithm,
    start: ClientValues,
    examples: Examples,
    last: PhaseOutput,
) -> ClientOutput:
    """Returns a round's result, by the values before all phases and the last phase's output.

    In `start` tables are whole; in `last` and `examples` they are cut down by `touched_tables`.
    """
    values, sums, num_examples = last
    values = whole_tables(model, algorithm.phases, start, values, examples)
    before = per_client_copies(model, start.shared, examples)
    values = assign_states(model, algorithm, start, values, examples)
    after = {**values.per_client, **sent_copies(model, values.per_client)}
    updates = {name: after.get(name, before[name]) - before[name] for name in before}
    states = {v.name: updates.pop(v.name) for v in model.global_variables if v.is_state}
    if CLUSTER_SHARES in states:
        states[CLUSTER_SHARES] = after[CLUSTER_SHARES]
    if algorithm.server_has_memory:
        states.update((f"{SERVER_STATE}/{k}", updates[k]) for k in model.copies.values())
    sent = [*updates.values(), *states.values()]
    finite = tf.reduce_all(
        [_all_finite(u) for u in sent] + [tf.math.is_finite(sums["loss"][:, 0])], axis=0
    )
    if algorithm.max_update_norm is not None:
        updates = _clip(updates, algorithm.max_update_norm)
    local = {name: values.per_client[name] for name in start.per_client}
    # The bound on local changes is for weights alone: states must agree with what the server has.
    weight_names = {v.name for v in model.local_variables if not v.is_state}
    weights_before, weights_after = (
        {k: v for k, v in part.items() if k in weight_names} for part in (start.per_client, local)
    )
    local.update(bound_local_values(algorithm, weights_before, weights_after))
    sane = tf.reduce_all([finite, *map(_all_finite, local.values())], axis=0)
    keep = tf.cast(finite, tf.float32)
    # A stack may be padded with clients that do not exist.
    exists = examples.exists
    weights = sums["loss"][:, 1] if algorithm.weighting == "num_examples" else exists
    return ClientOutput(
        updates={k: where_client(finite, u, tf.zeros_like(u)) for k, u in updates.items()},
        states={k: where_client(finite, s, tf.zeros_like(s)) for k, s in states.items()},
        weights=weights * keep,
        num_examples=num_examples * keep,
        metric_sums={k: tf.where(finite[:, tf.newaxis], s, 0.0) for k, s in sums.items()},
        dropped=exists * (1.0 - keep),
        local_values={k: where_client(sane, local[k], v) for k, v in start.per_client.items()},
    )


def bound_local_values(algorithm: Algorithm, start: Values, values: Values) -> Values:
    """Scales a round's change of each client's local variables, (C, ...), down to a norm."""
    bound = algorithm.max_local_update_norm
    if bound is None or not start:
        return values
    changes = {name: values[name] - value for name, value in start.items()}
    is_small = tf.sqrt(squared_norms(changes)) <= bound
    clipped = _clip(changes, bound)
    return {k: where_client(is_small, values[k], v + clipped[k]) for k, v in start.items()}


def run_phase(
    model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Runs one phase of any kind and returns the values after it."""
    if isinstance(phase, GradientPhase):
        return run_gradient_phase(model, phase, values, examples).values
    if isinstance(phase, BlendPhase):
        return _blend(model, phase, values, examples)
    if isinstance(phase, ChoicePhase):
        return choose_clusters(model, phase, values, examples)
    if isinstance(phase, NeighboursPhase):
        return store_memory(model, phase, values, examples)
    local = solve_local_values(model, phase, values, examples, phase_mask(phase.data, examples))
    return values._replace(per_client={**values.per_client, **local})


def run_gradient_phase(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    examples: Examples,
    *,
    with_metrics: bool = False,
) -> PhaseOutput:
    """Runs the steps of a gradient phase on stacked clients."""
    views = model_views(model, phase)
    differentiate = _stacked_gradient(model, views, examples, with_metrics=with_metrics)
    return take_steps(model, phase, values, examples, differentiate, with_metrics=with_metrics)


def _stacked_gradient(
    model: PartitionedModel,
    views: Sequence[PartitionedModel],
    examples: Examples,
    *,
    with_metrics: bool = False,
) -> Callable[..., tuple[Values, Values, Values, Values]]:
    """Returns the `differentiate` of `take_steps` that takes gradients of stacked clients."""

    def differentiate(values: ClientValues, moved: Values, index: tf.Tensor, active: tf.Tensor):
        batch = take_batch(model, examples, index, values)
        with tf.GradientTape() as tape:
            variables = {k: batch.id_rows.get(k, v) for k, v in moved.items()}
            tape.watch(variables)
            id_rows = {k: variables.get(k, v) for k, v in batch.id_rows.items()}
            dense = values._replace(per_client={**values.per_client, **variables})
            watched = batch._replace(id_rows=id_rows)
            output, *others = [predict_batch(m, dense, watched, training=True) for m in views]
            # Clients share no variable here, so the sum's gradient has each client's gradient.
            totals = tf.reduce_sum(output.weights, -1)
            shares = batch.mask * tf.math.divide_no_nan(active, totals)[:, tf.newaxis]
            total = tf.reduce_sum(output.losses * shares)
            for other in others:
                total += tf.reduce_sum(other.losses * shares)
        gradients = tape.gradient(
            total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        places = {k: _places(v, batch.positions[k]) for k, v in moved.items() if k in model.tables}
        sums = batch_metric_sums(model, batch, output) if with_metrics else {}
        sums = {name: pairs * active[:, tf.newaxis] for name, pairs in sums.items()}
        return variables, gradients, places, sums

    return differentiate


def _blend(
    model: PartitionedModel, phase: BlendPhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Steps the shares of a blend phase, then moves copies by those shares of their way."""
    copies = {copy: values.per_client[copy] for copy in model.blends.values()}
    ways = {k: starting_copy(model, k, values.shared, examples) - v for k, v in copies.items()}
    schedule = schedule_phase(phase, examples)
    differentiate = _stacked_gradient(model, [model.personal], examples)

    def blended(shares: Values) -> Values:
        return {c: copies[c] + shares[name] * ways[c] for name, c in model.blends.items()}

    def step(number: tf.Tensor, shares: Values) -> tuple[tf.Tensor, Values]:
        active, moved = schedule.active[number], blended(shares)
        current = values.fold_noise(number)._replace(per_client={**values.per_client, **moved})
        _, slopes, *_ = differentiate(current, moved, schedule.batches[number], active)
        new = {}
        for name, copy in model.blends.items():
            after = shares[name] - phase.rate * slopes[copy] * ways[copy]
            new[name] = where_client(active > 0, tf.clip_by_value(after, 0.0, 1.0), shares[name])
        return number + 1, new

    _, shares = tf.while_loop(
        lambda number, _: number < schedule.num_steps,
        step,
        (0, {name: values.per_client[name] for name in model.blends}),
        parallel_iterations=1,
    )
    # A client without examples keeps its copies.
    has_steps = tf.reduce_sum(schedule.active, 0) > 0
    moved = {k: where_client(has_steps, v, copies[k]) for k, v in blended(shares).items()}
    per_client = {**values.per_client, **shares, **moved}
    return values._replace(per_client=per_client).fold_noise(PHASE_END)


def take_steps(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    examples: Examples,
    differentiate: Callable[..., tuple[Values, Values, Values, Values]],
    *,
    with_metrics: bool,
) -> PhaseOutput:
    """Takes the steps of a gradient phase.

    Args:
        model: The partitioned model.
        phase: The phase.
        values: The values before it.
        examples: The clients' examples.
        differentiate: Maps a step's values, those of them that move, each client's batch number,
            (C,), and whether it takes the step, float32 (C,), to the arguments `stepped`,
            `gradients` and `places` of `ClientOptimizer.next`, and to metric sums, (C, 2).
        with_metrics: Whether to sum the metrics of each batch before its step.
    """
    frozen, moving_values = split_values(model, phase, values, examples)
    anchors = proximal_anchors(model, phase, values, moving_values, examples)
    pull, pulled_names, ahead, is_at_anchor = phase.proximal, set(anchors), None, False
    if phase.ahead is not None:
        ahead = _look_ahead(model, phase.ahead, examples, moving_values, differentiate)
        if phase.ahead.envelope:
            # Looking ahead moves the batch's rows alone, so other rows are at their anchors.
            pull, pulled_names, is_at_anchor = phase.ahead.envelope, set(moving_values), True
    optimizer = client_optimizer(
        phase,
        moving_values,
        model,
        pull=pull,
        pulled_names=pulled_names,
        is_at_anchor=is_at_anchor,
        corrections=corrections(model, phase, values, moving_values, examples.rows),
    )
    batches, active, num_steps, num_examples = schedule_phase(phase, examples)
    zeros = zero_sums(model, count_clients(examples)) if with_metrics else {}

    def step_clients(step, moved, state, sums):
        rest, there, targets = frozen.fold_noise(step), moved, anchors
        if ahead is not None:
            there = ahead(step, rest, moved, batches[step], active[step])
        current = rest._replace(per_client={**rest.per_client, **there})
        stepped, gradients, places, batch_sums = differentiate(
            current, there, batches[step], active[step]
        )
        if phase.ahead is not None:
            # The step starts at the variables, not at the copy. Changes of table rows are added.
            stepped = {k: v if k in model.tables else moved[k] for k, v in stepped.items()}
            if phase.ahead.envelope:
                targets = there
                gradients = tf.nest.map_structure(tf.zeros_like, gradients)
        moved, state = optimizer.next(
            state, moved, stepped, gradients, places, active[step], targets
        )
        moved = constrain(model, moved, active[step])
        return step + 1, moved, state, {k: sums[k] + batch_sums[k] for k in sums}

    _, moved, _, sums = tf.while_loop(
        lambda step, *_: step < num_steps,
        step_clients,
        (0, optimizer.copy_mutable(moving_values), optimizer.initial_state, zeros),
        parallel_iterations=1,
    )
    values = values._replace(per_client={**frozen.per_client, **moved}).fold_noise(PHASE_END)
    return PhaseOutput(values, sums, num_examples)


def _look_ahead(
    model: PartitionedModel,
    ahead: LookAhead,
    examples: Examples,
    moving: Values,
    differentiate: Callable[..., tuple[Values, Values, Values, Values]],
) -> Callable[..., Values]:
    """Returns a function that takes the look-ahead steps before a step of a phase.

    Args:
        model: The partitioned model.
        ahead: The look-ahead steps.
        examples: The clients' examples.
        moving: The values that the phase moves, (C, ...).
        differentiate: As of `take_steps`.

    Returns:
        A function of a step's number; the values that the phase leaves alone, with the step's
        noise; the values that it moves; each client's batch number, (C,); and whether it takes the
        step, float32 (C,). It returns a copy of the moving values after the look-ahead steps.
    """
    pulled_names = set(moving) if ahead.envelope else set()
    optimizer = ClientOptimizer(
        optimizer_of(ahead, model.variables[0]),
        moving,
        model,
        pull=ahead.envelope,
        pulled_names=pulled_names,
        is_at_anchor=True,  # The copy starts at its anchor.
    )
    num_batches = count_client_batches(examples)

    def look(
        step: tf.Tensor, rest: ClientValues, moved: Values, batch: tf.Tensor, active: tf.Tensor
    ) -> Values:
        if ahead.data is not None:
            in_part = tf.maximum(count_batches(ahead.data, num_batches), 1)
            # Where passes are shuffled, the batch is of the same pass as the step.
            first = batch - batch % tf.shape(examples.mask)[1]
            batch = first + find_batch(ahead.data, step % in_part, num_batches)

        def take(number, copy, state):
            current = rest.fold_noise(number)._replace(per_client={**rest.per_client, **copy})
            stepped, gradients, places, _ = differentiate(current, copy, batch, active)
            copy, state = optimizer.next(state, copy, stepped, gradients, places, active, moved)
            return number + 1, constrain(model, copy, active), state

        _, copy, _ = tf.while_loop(
            lambda number, *_: number < ahead.steps,
            take,
            (0, optimizer.copy_mutable(moved), optimizer.initial_state),
            parallel_iterations=1,
        )
        return copy

    return look


def _places(tables: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Turns positions (C, T) in a client's rows into indices of all clients' C * R rows."""
    shape = tf.shape(tables)
    return positions + tf.range(shape[0])[:, tf.newaxis] * shape[1]


def _clip(updates: Values, max_norm: float) -> Values:
    """Scales each client's update down to a norm, taken over all variables."""
    scale = max_norm / tf.maximum(tf.sqrt(squared_norms(updates)), max_norm)
    return {k: u * align(scale, u.shape.rank) for k, u in updates.items()}


def squared_norms(values: Values) -> tf.Tensor:
    """Returns each client's squared norm over all variables, (C,)."""
    return tf.add_n(
        [tf.reduce_sum(tf.square(v), list(range(1, v.shape.rank))) for v in values.values()]
    )


def _all_finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values), axis=list(range(1, values.shape.rank)))
