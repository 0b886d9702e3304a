"""One client's round as one pure TensorFlow function.

The function carries a leading client axis throughout: clients stacked on it take their steps
together, and a single client is a stack of one. Where clients of different sizes meet, a step
beyond a client's last one leaves its variables and its optimizer's state alone.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from fedpersonal.algorithm import Algorithm, GradientPhase, Phase
from fedpersonal.client_batches import batch_metric_sums, predict_batch, take_batch
from fedpersonal.client_optimizer import ClientOptimizer
from fedpersonal.client_values import (
    ClientValues,
    Examples,
    own_copies,
    phase_mask,
    starting_values,
    where_client,
)
from fedpersonal.partition import PartitionedModel, Values
from fedpersonal.ridge import solve_local_values


class ClientOutput(NamedTuple):
    """What a stack of clients hands to aggregation; no local variable is among it.

    Attributes:
        updates: Global variable's name to final - initial value, of shape (C, ...); of a lookup
            table, of its touched rows: (C, R, ...).
        weights: float32 (C,): weight in the average.
        num_examples: float32 (C,): examples processed in the last phase.
        metric_sums: Metric name, and `loss`, to float32 (C,): sums over those examples.
        dropped: float32 (C,): 1 where the update was not finite and was set to zero.
    """

    updates: Values
    weights: tf.Tensor
    num_examples: tf.Tensor
    metric_sums: dict[str, tf.Tensor]
    dropped: tf.Tensor


def train_clients(
    model: PartitionedModel,
    algorithm: Algorithm,
    global_values: Values,
    examples: Examples,
    seed: tf.Tensor,
) -> ClientOutput:
    """Runs all phases of an algorithm on a stack of clients (FedRecon, Algorithm 1, ClientUpdate).

    Args:
        model: The partitioned model.
        algorithm: The phases.
        global_values: Global variable's name to the value that the server broadcast.
        examples: The clients' examples.
        seed: int32 of shape (2,), from which local variables start.

    Returns:
        The clients' output.
    """
    values = starting_values(model, global_values, examples, seed)
    for phase in algorithm.phases[:-1]:
        values = run_phase(model, phase, values, examples)
    values, sums, num_examples = run_gradient_phase(
        model, algorithm.phases[-1], values, examples, with_metrics=True
    )
    start = own_copies(model, global_values, examples)
    updates = {name: values.own.get(name, start[name]) - start[name] for name in start}
    finite = tf.reduce_all(
        [_all_finite(u) for u in updates.values()] + [tf.math.is_finite(sums["loss"])], axis=0
    )
    if algorithm.max_update_norm is not None:
        updates = _clip(updates, algorithm.max_update_norm)
    keep = tf.cast(finite, tf.float32)
    # A stack may be filled up with clients that do not exist.
    exists = tf.reduce_max(examples.mask, [1, 2])
    weights = num_examples if algorithm.weighting == "num_examples" else exists
    return ClientOutput(
        updates={k: where_client(finite, u, tf.zeros_like(u)) for k, u in updates.items()},
        weights=weights * keep,
        num_examples=num_examples * keep,
        metric_sums={k: tf.where(finite, s, 0.0) for k, s in sums.items()},
        dropped=exists * (1.0 - keep),
    )


def run_phase(model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples):
    """Runs one phase of either kind and returns the values after it."""
    if isinstance(phase, GradientPhase):
        return run_gradient_phase(model, phase, values, examples, with_metrics=False)[0]
    local = solve_local_values(model, phase, values, examples, phase_mask(phase.data, examples))
    return ClientValues(values.shared, {**values.own, **local})


def run_gradient_phase(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    examples: Examples,
    *,
    with_metrics: bool,
) -> tuple[ClientValues, dict[str, tf.Tensor], tf.Tensor]:
    """Runs the steps of a gradient phase.

    Args:
        model: The partitioned model.
        phase: The phase.
        values: The values before it.
        examples: The clients' examples.
        with_metrics: Whether to sum metrics, each batch taken before its step.

    Returns:
        The values after it, metric name to sums of shape (C,), and the number of examples
        processed, float32 (C,).
    """
    moving = {
        "global": [v.name for v in model.global_variables],
        "local": [v.name for v in model.local_variables],
        "all": [v.name for v in model.variables],
    }[phase.variables]
    lent = {k: v for k, v in values.shared.items() if k in moving and k not in values.own}
    own = {**values.own, **own_copies(model, lent, examples)}
    frozen = ClientValues(
        {k: v for k, v in values.shared.items() if k not in own},
        {k: v for k, v in own.items() if k not in moving},
    )
    moving_values = {name: own[name] for name in moving}
    optimizer = ClientOptimizer(phase.optimizer, moving_values, model)
    batches, active = _schedule(phase, examples.mask)
    num_examples = tf.reduce_sum(
        tf.gather(tf.reduce_sum(examples.mask, -1), tf.transpose(batches), batch_dims=1)
        * tf.transpose(active),
        axis=1,
    )
    names = ["loss"] + [m.name for m in model.metrics] if with_metrics else []
    sums = {name: tf.zeros_like(num_examples) for name in names}

    def step_clients(step, moved, state, sums):
        current = ClientValues(frozen.shared, {**frozen.own, **moved})
        batch = take_batch(model, examples, batches[step], current)
        is_active = active[step]
        with tf.GradientTape() as tape:
            variables = {k: batch.minis.get(k, v) for k, v in moved.items()}
            tape.watch(variables)
            minis = {k: variables.get(k, v) for k, v in batch.minis.items()}
            dense = ClientValues(frozen.shared, {**frozen.own, **variables})
            outcome = predict_batch(model, dense, batch._replace(minis=minis), training=True)
            # Clients share no variable here, so the sum's gradient is each client's own.
            shares = (
                batch.mask * (is_active / tf.maximum(tf.reduce_sum(batch.mask, -1), 1.0))[:, None]
            )
            total = tf.reduce_sum(outcome.losses * shares)
        gradients = tape.gradient(
            total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        moved, state = optimizer.next(
            state, moved, variables, gradients, batch.positions, is_active
        )
        if with_metrics:
            batch_sums = batch_metric_sums(model, batch, outcome)
            sums = {k: sums[k] + batch_sums[k] * is_active for k in sums}
        return step + 1, moved, state, sums

    _, moved, _, sums = tf.while_loop(
        lambda step, *_: step < tf.shape(active)[0],
        step_clients,
        (0, optimizer.private_copies(moving_values), optimizer.initial_state, sums),
        parallel_iterations=1,
    )
    return ClientValues(values.shared, {**own, **moved}), sums, num_examples


def _schedule(phase: GradientPhase, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each client's batch at each step, int32 (S, C), and where it is active."""
    num_batches = tf.reduce_sum(tf.cast(tf.reduce_any(mask > 0, -1), tf.int32), -1)
    in_set = {"support": (num_batches + 1) // 2, "query": num_batches // 2, "all": num_batches}
    count = in_set[phase.data]
    steps = phase.epochs * count
    if phase.max_steps is not None:
        steps = tf.minimum(steps, phase.max_steps)
    step = tf.range(tf.reduce_max(steps))[:, tf.newaxis]
    active = step < steps
    place = step % tf.maximum(count, 1)
    batch = place if phase.data == "all" else 2 * place + (phase.data == "query")
    return tf.where(active, batch, 0), tf.cast(active, tf.float32)


def _clip(updates: Values, max_norm: float) -> Values:
    """Scales each client's update, all variables together, down to a norm."""
    squares = [tf.reduce_sum(tf.square(u), list(range(1, u.shape.rank))) for u in updates.values()]
    scale = max_norm / tf.maximum(tf.sqrt(tf.add_n(squares)), max_norm)
    return {k: u * tf.reshape(scale, [-1] + [1] * (u.shape.rank - 1)) for k, u in updates.items()}


def _all_finite(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(values), axis=list(range(1, values.shape.rank)))
