"""A round of many clients that share weights in phases that allow it, and else take turns.

This suits models bound by arithmetic, such as recurrent ones. Stacking clients' weights, as
`fedpersonal.client.steps` does, gains nothing there, but one product over the examples of many
clients does. A phase in which clients differ in rows of lookup tables alone (FedRecon's
reconstruction of embeddings, FedPerC's training) runs on all clients at once. In other phases
clients take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.client.batches import zero_sums
from fedpersonal.client.choice import choose_least_loss
from fedpersonal.client.neighbours import make_predictor
from fedpersonal.client.pooled_batches import (
    Pool,
    choose_rows,
    chunk_end,
    fetch_pool_rows,
    longest_first,
    pool_batches,
    pool_examples,
    predict_examples,
    predict_pool,
    sum_weights,
    without_client_axis,
)
from fedpersonal.client.rows import touched_tables
from fedpersonal.client.steps import (
    ClientOutput,
    PhaseOutput,
    client_output,
    run_phase,
    take_steps,
)
from fedpersonal.client.values import (
    ClientValues,
    Examples,
    model_views,
    moving_names,
    phase_mask,
    where_client,
)
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import ChoicePhase, GradientPhase, Phase
from fedpersonal.model.names import CLUSTER
from fedpersonal.model.partition import PartitionedModel, Values

PACKINGS = ("stacked", "pooled")


def train_in_turn(
    model: PartitionedModel,
    algorithm: Algorithm,
    start: ClientValues,
    examples: Examples,
    summarize: Callable[[Examples, ClientOutput], Any],
    *,
    merge: Callable[[Any, Any], Any] | None = None,
    empty: Callable[[Any], Any] | None = None,
) -> tuple[Any, Values]:
    """Does the work of `train_clients` without stacking clients' weights.

    Args:
        model: The partitioned model.
        algorithm: The phases.
        start: The values before the phases.
        examples: The clients' examples; clients without any come last.
        summarize: Maps clients' examples and output to a summary, a structure of tensors.
        merge: Merges two summaries; by default it adds them.
        empty: Maps zeros to the summary of no clients; by default it returns the zeros.

    Returns:
        The summary of all clients; and local variable's name to (C, ...) after the round, empty if
        the algorithm keeps no local variables.
    """
    values, (examples,) = touched_tables(model, algorithm.phases, start, examples)
    phases = algorithm.phases
    remaining = list(enumerate(phases[:-1]))
    while remaining and shares_weights(model, remaining[0][1], values):
        number, phase = remaining.pop(0)
        values = _run_pooled(model, phase, values, examples.in_phase(phases, number))

    def finish(start: ClientValues, values: ClientValues, examples: Examples) -> tuple[Any, Values]:
        for number, phase in remaining:
            values = _run_pooled(model, phase, values, examples.in_phase(phases, number))
        last_examples = examples.in_phase(phases, len(phases) - 1)
        last = run_pooled_phase(
            model, algorithm.last_phase, values, last_examples, with_metrics=True
        )
        output = client_output(model, algorithm, start, examples, last)
        return summarize(examples, output), output.local_values if algorithm.keeps else {}

    if not remaining and shares_weights(model, algorithm.last_phase, values):
        return finish(start, values, examples)

    def client_summary(client: tf.Tensor) -> Any:
        client_examples, client_values = _take_client(client, examples, values)
        client_start = _slice_client(client, start)
        total, local_values = finish(client_start, client_values, client_examples)
        return total, {k: v[0] for k, v in local_values.items()}

    summary = tf.function(client_summary, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32)
    )
    total_spec, local_spec = summary.structured_outputs
    zeros = tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), total_spec)
    num_clients = tf.shape(examples.mask)[0]
    arrays = {
        name: tf.TensorArray(spec.dtype, num_clients, element_shape=spec.shape)
        for name, spec in local_spec.items()
    }
    present = tf.reduce_sum(tf.cast(tf.reduce_any(examples.mask > 0, [1, 2]), tf.int32))

    def add_client(client: tf.Tensor, total: Any, arrays: Any):
        client_total, client_local = summary(client)
        arrays = {name: array.write(client, client_local[name]) for name, array in arrays.items()}
        if merge:
            total = merge(total, client_total)
        else:
            total = tf.nest.map_structure(tf.add, total, client_total)
        return client + 1, total, arrays

    first = empty(zeros) if empty else zeros
    _, total, arrays = tf.while_loop(
        lambda client, *_: client < present, add_client, (0, first, arrays), parallel_iterations=1
    )
    # Clients without examples had no turn; their values are unchanged.
    has_turn = tf.range(num_clients) < present
    local = {k: where_client(has_turn, v.stack(), start.per_client[k]) for k, v in arrays.items()}
    return total, local


def predict_in_turn(
    model: PartitionedModel,
    phases: Sequence[Phase],
    values: ClientValues,
    support: Examples,
    query: Examples,
    *,
    with_predictions: bool = False,
) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
    """Predicts the query sets after phases on the support sets.

    Returns:
        Metric name, and `loss`, to float32 (C, 2); and predictions, float32 (C, N, B), or None
        without `with_predictions`.
    """
    remaining = list(phases)
    while remaining and shares_weights(model, remaining[0], values):
        values = _run_pooled(model, remaining.pop(0), values, support)
    if not remaining and set(values.per_client) <= set(model.tables):
        return predict_examples(model.personal, values, query, with_predictions=with_predictions)

    predictor = make_predictor(model, phases)

    def predict_client(client: tf.Tensor) -> Any:
        client_support, client_values = _take_client(client, support, values)
        for phase in remaining:
            client_values = _run_pooled(model, phase, client_values, client_support)
        client_query, _ = _take_client(client, query, values)
        sums, predictions = predict_examples(
            predictor, client_values, client_query, with_predictions=with_predictions
        )
        return {k: v[0] for k, v in sums.items()}, () if predictions is None else predictions[0]

    sums, predictions = tf.map_fn(
        predict_client,
        tf.range(tf.shape(support.mask)[0]),
        fn_output_signature=(
            {k: tf.TensorSpec([2], tf.float32) for k in zero_sums(model, 1)},
            tf.TensorSpec(query.mask.shape[1:], tf.float32) if with_predictions else (),
        ),
        parallel_iterations=1,
    )
    return sums, predictions if with_predictions else None


def shares_weights(model: PartitionedModel, phase: Phase, values: ClientValues) -> bool:
    """Returns whether clients differ in rows of lookup tables alone, during and after a phase."""
    per_client = {*values.per_client, *moving_names(model, phase)}
    return isinstance(phase, GradientPhase) and per_client <= set(model.tables)


def run_pooled_phase(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    examples: Examples,
    *,
    with_metrics: bool = False,
) -> PhaseOutput:
    """Does the work of `run_gradient_phase` on the pooled examples of clients that share weights.

    A stack of one client always qualifies.
    """
    pool, views = pool_examples(model, examples), model_views(model, phase)
    take_gradient = _whole_gradient if pool.num_clients == 1 else _chunked_gradient

    def differentiate(values: ClientValues, moved: Values, index: tf.Tensor, active: tf.Tensor):
        batches, rows = pool_batches(pool, examples, index, active)
        rows = longest_first(model, batches, rows)
        totals = sum_weights(batches, rows)
        return take_gradient(views, values, list(moved), batches, rows, totals, with_metrics)

    return take_steps(model, phase, values, examples, differentiate, with_metrics=with_metrics)


def _run_pooled(
    model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples
) -> ClientValues:
    if isinstance(phase, GradientPhase):
        return run_pooled_phase(model, phase, values, examples).values
    if isinstance(phase, ChoicePhase) and not phase.mixes:
        part, losses = examples._replace(mask=phase_mask(phase.data, examples)), []
        for one in np.eye(phase.clusters, dtype=np.float32):
            tried = values._replace(
                per_client={**values.per_client, CLUSTER: tf.constant(one[np.newaxis])}
            )
            losses.append(predict_examples(model, tried, part)[0]["loss"][:, 0])
        return choose_least_loss(phase, values, examples, tf.stack(losses, 1))
    return run_phase(model, phase, values, examples)


def _take_client(
    client: tf.Tensor, examples: Examples, values: ClientValues
) -> tuple[Examples, ClientValues]:
    """Returns one client of a stack, as a stack of one, with only the table rows it touches.

    Examples and values are those after `touched_tables`.
    """
    client_examples, client_values = _slice_client(client, examples), _slice_client(client, values)
    # Rows ascend, and row 0 pads them. There may be none.
    ends = {
        k: tf.argmax(tf.pad(r[0], [[0, 1]], constant_values=-1)) + 1
        for k, r in client_examples.rows.items()
    }
    rows = {name: client_examples.rows[name][:, :end] for name, end in ends.items()}
    per_client = {
        k: v[:, : ends[k]] if k in ends else v for k, v in client_values.per_client.items()
    }
    return client_examples._replace(rows=rows), client_values._replace(per_client=per_client)


def _slice_client(client: tf.Tensor, stack: Any) -> Any:
    """Returns one client of a stack of examples or values, as a stack of one."""
    if isinstance(stack, ClientValues):
        per_client, noise = _slice_client(client, (stack.per_client, stack.noise))
        return stack._replace(per_client=per_client, noise=noise)
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, [client]), stack)


def _whole_gradient(views, values, moving, pool, rows, totals, with_metrics):
    """Differentiates every client's mean loss over its rows of the pool.

    `views` are the model's `model_views`; results are those of `differentiate` of `take_steps`.
    """
    model, *others = views
    chosen = choose_rows(model, pool, rows)
    fetched, places = fetch_pool_rows(model, values, chosen)
    dense = {k: v for k, v in values.per_client.items() if k in moving and k not in model.tables}
    variables = {**dense, **{k: v for k, v in fetched.items() if k in moving}}
    with tf.GradientTape() as tape:
        tape.watch(variables)
        per_client = {**values.per_client, **{k: variables[k] for k in dense}}
        plain_values = without_client_axis(model, ClientValues(values.shared, per_client))
        watched_rows = {k: variables.get(k, v) for k, v in fetched.items()}
        output, *other_outputs = [
            predict_pool(
                one,
                plain_values,
                watched_rows,
                chosen,
                training=True,
                with_metrics=with_metrics and one is model,
                noise=values.noise,
            )
            for one in (model, *others)
        ]
        # Clients share no moving variable here, so the sum's gradient has each client's gradient.
        losses = output.losses
        for other in other_outputs:
            losses += other.losses
        total = tf.reduce_sum(tf.math.divide_no_nan(losses, tf.gather(totals, chosen.clients)))
    gradients = tape.gradient(total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return variables, gradients, {k: places[k] for k in variables if k in places}, output.sums


def _chunked_gradient(views, values, moving, pool: Pool, rows, totals, with_metrics):
    """Does the work of `_whole_gradient` chunk by chunk, for moving variables that are tables."""
    model = views[0]

    def arrays(dtype):
        return {
            name: tf.TensorArray(dtype, 0, dynamic_size=True, infer_shape=False) for name in moving
        }

    def add_chunk(chunk, start, stepped, gradients, places, sums):
        end = chunk_end(model, pool, rows, start)
        *parts, chunk_sums = _whole_gradient(
            views, values, moving, pool, rows[start:end], totals, with_metrics
        )
        written = [
            {name: array[name].write(chunk, part[name]) for name in moving}
            for array, part in zip((stepped, gradients, places), parts)
        ]
        return (chunk + 1, end, *written, {k: sums[k] + chunk_sums[k] for k in sums})

    zeros = zero_sums(model, pool.num_clients) if with_metrics else {}
    *_, stepped, gradients, places, sums = tf.while_loop(
        lambda chunk, start, *_: start < tf.size(rows),
        add_chunk,
        (0, 0, *map(arrays, (tf.float32, tf.float32, tf.int32)), zeros),
        parallel_iterations=1,
    )

    def joined(array, shape=lambda name: [None, *values.per_client[name].shape[2:]]):
        return {name: tf.ensure_shape(array[name].concat(), shape(name)) for name in moving}

    return joined(stepped), joined(gradients), joined(places, lambda _: [None]), sums
