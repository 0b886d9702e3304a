"""A round of many clients that share their weights where they can and take turns where not.

For models bound by arithmetic, such as recurrent ones: stacking clients' weights, as
`fedpersonal.client.steps` does, gains nothing there, but one product over the examples of many
clients does. A phase in which clients differ in rows of lookup tables alone (FedRecon's
reconstruction of embeddings, FedPerC's training) runs on all of them together; in the others
clients take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.client.batches import zero_sums
from fedpersonal.client.choice import choose_least
from fedpersonal.client.neighbours import predicting
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
    moving_names,
    phase_mask,
    readings,
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

    Clients without examples come last. `summarize` maps clients' examples and output to a structure
    of tensors; `merge` makes one of two of them, by default their sum; `empty` maps zeros to that
    of no clients, by default the zeros.

    Returns:
        The structure of all clients; and, where they are kept, local variable's name to (C, ...)
        after the round.
    """
    values, (examples,) = touched_tables(model, algorithm.phases, start, examples)
    every = algorithm.phases
    phases = list(enumerate(every[:-1]))
    while phases and shares_weights(model, phases[0][1], values):
        number, phase = phases.pop(0)
        values = _run_pooled(model, phase, values, examples.in_phase(every, number))

    def finish(start: ClientValues, values: ClientValues, examples: Examples) -> tuple[Any, Values]:
        for number, phase in phases:
            values = _run_pooled(model, phase, values, examples.in_phase(every, number))
        of_last = examples.in_phase(every, len(every) - 1)
        last = run_pooled_phase(model, algorithm.last_phase, values, of_last, with_metrics=True)
        output = client_output(model, algorithm, start, examples, last)
        return summarize(examples, output), output.local_values if algorithm.keeps else {}

    if not phases and shares_weights(model, algorithm.last_phase, values):
        return finish(start, values, examples)

    def client_summary(client: tf.Tensor) -> Any:
        own_examples, own_values = _only(client, examples, values)
        own_start = _one_of(client, start)
        total, local_values = finish(own_start, own_values, own_examples)
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
        own_total, own_local = summary(client)
        arrays = {name: array.write(client, own_local[name]) for name, array in arrays.items()}
        both = merge(total, own_total) if merge else tf.nest.map_structure(tf.add, total, own_total)
        return client + 1, both, arrays

    first = empty(zeros) if empty else zeros
    _, total, arrays = tf.while_loop(
        lambda client, *_: client < present, add_client, (0, first, arrays), parallel_iterations=1
    )
    # Clients without examples had no turn: theirs are what they were.
    has_turn = tf.range(num_clients) < present
    local = {k: where_client(has_turn, v.stack(), start.own[k]) for k, v in arrays.items()}
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
        Metric name, and `loss`, to float32 (C, 2); and predictions, float32 (C, N, B), where asked
        for, else None.
    """
    rest = list(phases)
    while rest and shares_weights(model, rest[0], values):
        values = _run_pooled(model, rest.pop(0), values, support)
    if not rest and set(values.own) <= set(model.tables):
        return predict_examples(model.personal, values, query, with_predictions=with_predictions)

    predictor = predicting(model, phases)

    def predict_client(client: tf.Tensor) -> Any:
        own_support, own_values = _only(client, support, values)
        for phase in rest:
            own_values = _run_pooled(model, phase, own_values, own_support)
        own_query, _ = _only(client, query, values)
        sums, predictions = predict_examples(
            predictor, own_values, own_query, with_predictions=with_predictions
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
    """Tells whether clients differ in rows of lookup tables alone, during and after a phase."""
    own = {*values.own, *moving_names(model, phase)}
    return isinstance(phase, GradientPhase) and own <= set(model.tables)


def run_pooled_phase(
    model: PartitionedModel,
    phase: GradientPhase,
    values: ClientValues,
    examples: Examples,
    *,
    with_metrics: bool = False,
) -> PhaseOutput:
    """Does the work of `run_gradient_phase` on the pooled examples of clients that share weights.

    A single client shares all of its weights with itself, whichever they are.
    """
    pool, read = pool_examples(model, examples), readings(model, phase)
    take_gradient = _whole_gradient if pool.num_clients == 1 else _chunked_gradient

    def differentiate(values: ClientValues, moved: Values, index: tf.Tensor, active: tf.Tensor):
        taken, rows = pool_batches(pool, examples, index, active)
        rows = longest_first(model, taken, rows)
        totals = sum_weights(taken, rows)
        return take_gradient(read, values, list(moved), taken, rows, totals, with_metrics)

    return take_steps(model, phase, values, examples, differentiate, with_metrics=with_metrics)


def _run_pooled(
    model: PartitionedModel, phase: Phase, values: ClientValues, examples: Examples
) -> ClientValues:
    if isinstance(phase, GradientPhase):
        return run_pooled_phase(model, phase, values, examples).values
    if isinstance(phase, ChoicePhase) and not phase.mixes:
        part, losses = examples._replace(mask=phase_mask(phase.data, examples)), []
        for one in np.eye(phase.clusters, dtype=np.float32):
            tried = values._replace(own={**values.own, CLUSTER: tf.constant(one[np.newaxis])})
            losses.append(predict_examples(model, tried, part)[0]["loss"][:, 0])
        return choose_least(phase, values, examples, tf.stack(losses, 1))
    return run_phase(model, phase, values, examples)


def _only(
    client: tf.Tensor, examples: Examples, values: ClientValues
) -> tuple[Examples, ClientValues]:
    """Returns one client of a stack, as a stack of one, with no more rows of tables than its own.

    The values are those that go with the examples, after `touched_tables`.
    """
    own_examples, own_values = _one_of(client, examples), _one_of(client, values)
    # Rows go up, and what fills them up is row 0. There may be none.
    ends = {
        k: tf.argmax(tf.pad(r[0], [[0, 1]], constant_values=-1)) + 1
        for k, r in own_examples.rows.items()
    }
    rows = {name: own_examples.rows[name][:, :end] for name, end in ends.items()}
    own = {k: v[:, : ends[k]] if k in ends else v for k, v in own_values.own.items()}
    return own_examples._replace(rows=rows), own_values._replace(own=own)


def _one_of(client: tf.Tensor, stack: Any) -> Any:
    """Returns one client of a stack of examples, or of values, as a stack of one."""
    if isinstance(stack, ClientValues):
        own, noise = _one_of(client, (stack.own, stack.noise))
        return stack._replace(own=own, noise=noise)
    return tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, [client]), stack)


def _whole_gradient(read, values, moving, pool, rows, totals, with_metrics):
    """Differentiates every client's mean loss over its rows, as `take_steps` wants.

    `read` are the model's `readings`.
    """
    model, *others = read
    chosen = choose_rows(model, pool, rows)
    fetched, places = fetch_pool_rows(model, values, chosen)
    dense = {k: v for k, v in values.own.items() if k in moving and k not in model.tables}
    variables = {**dense, **{k: v for k, v in fetched.items() if k in moving}}
    with tf.GradientTape() as tape:
        tape.watch(variables)
        own = {**values.own, **{k: variables[k] for k in dense}}
        whole = without_client_axis(model, ClientValues(values.shared, own))
        mine = {k: variables.get(k, v) for k, v in fetched.items()}
        outcome, *further = [
            predict_pool(
                one,
                whole,
                mine,
                chosen,
                training=True,
                with_metrics=with_metrics and one is model,
                noise=values.noise,
            )
            for one in (model, *others)
        ]
        # Clients share no moving variable here, so the sum's gradient is each client's own.
        losses = outcome.losses
        for other in further:
            losses += other.losses
        total = tf.reduce_sum(tf.math.divide_no_nan(losses, tf.gather(totals, chosen.clients)))
    gradients = tape.gradient(total, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return variables, gradients, {k: places[k] for k in variables if k in places}, outcome.sums


def _chunked_gradient(read, values, moving, pool: Pool, rows, totals, with_metrics):
    """Does the same for many clients, chunk by chunk; all that moves are tables."""
    model = read[0]

    def arrays(dtype):
        return {
            name: tf.TensorArray(dtype, 0, dynamic_size=True, infer_shape=False) for name in moving
        }

    def add_chunk(chunk, start, stepped, gradients, places, sums):
        end = chunk_end(model, pool, rows, start)
        *parts, chunk_sums = _whole_gradient(
            read, values, moving, pool, rows[start:end], totals, with_metrics
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

    def joined(array, shape=lambda name: [None, *values.own[name].shape[2:]]):
        return {name: tf.ensure_shape(array[name].concat(), shape(name)) for name in moving}

    return joined(stepped), joined(gradients), joined(places, lambda _: [None]), sums
