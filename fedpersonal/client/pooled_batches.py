"""Examples of many clients in one batch.

Where clients differ in rows of lookup tables alone, each example can fetch its client's rows, and
all examples share one matrix product. Only real examples are computed, the longest sequences
first, so that each chunk can be cut to its longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fedpersonal.client.batches import example_values, zero_sums
from fedpersonal.client.values import ClientValues, Examples, align, count_clients, join_axes
from fedpersonal.model.noise import fold
from fedpersonal.model.partition import PartitionedModel, Values

# Examples computed at once. With a prediction for each place of a sequence, more examples are
# hardly faster and take more memory. With one prediction per example, fewer leave processors idle.
CHUNK, SMALL_CHUNK = 256, 64
# Places of sequences computed at once, for one prediction per example: they fit in CPU caches.
PLACES = 2**14


class Pool(NamedTuple):
    """All examples of `C` clients in one axis, with padding.

    Attributes:
        features: Input name to (E, ...).
        labels: (E, ...).
        weights: float32 (E,): each example's weight in means, 0 for padding.
        lengths: int32 (E,): the length of its sequence if sequences may be cut, else 0.
        clients: int32 (E,): its client's index.
        places: int32 (E,): its place in its batch.
        positions: Lookup table's variable name to int32 (E, ...): the index of each id's row among
            its client's touched rows.
        num_clients: C.
    """

    features: dict[str, tf.Tensor]
    labels: tf.Tensor
    weights: tf.Tensor
    lengths: tf.Tensor
    clients: tf.Tensor
    places: tf.Tensor
    positions: dict[str, tf.Tensor]
    num_clients: int | tf.Tensor


class PoolOutput(NamedTuple):
    """Predictions and losses of `M` chosen examples of a pool.

    Attributes:
        predictions: (M, ...).
        losses: float32 (M,).
        sums: Metric name, and `loss`, to float32 (C, 2): each client's sums of values and weights;
            empty without `with_metrics`.
    """

    predictions: tf.Tensor
    losses: tf.Tensor
    sums: dict[str, tf.Tensor]


def pool_examples(model: PartitionedModel, examples: Examples) -> Pool:
    """Flattens the examples of a stack of clients."""
    features = {k: join_axes(v, 3) for k, v in examples.features.items()}
    labels, mask = join_axes(examples.labels, 3), join_axes(examples.mask, 3)
    clients = count_clients(examples)
    lengths = tf.zeros_like(mask, tf.int32)
    if model.sequence_length is not None:
        lengths = tf.cast(model.sequence_length(features, labels), tf.int32)
    return Pool(
        features=features,
        labels=labels,
        weights=tf.where(mask > 0, model.example_weights(labels), 0.0),
        lengths=lengths,
        clients=tf.repeat(tf.range(clients), tf.size(examples.mask[0])),
        places=tf.range(tf.size(mask)) % tf.shape(examples.mask)[2],
        positions={k: join_axes(v, 3) for k, v in examples.positions.items()},
        num_clients=clients,
    )


def pool_batches(
    pool: Pool, examples: Examples, batches: tf.Tensor, active: tf.Tensor
) -> tuple[Pool, tf.Tensor]:
    """Finds the real examples of the active clients' batches in the pool.

    Returns:
        The pool with these examples' places in their batches; and their rows in the pool.
    """
    mask = examples.take(examples.mask, batches) * active[:, tf.newaxis]
    places = tf.cast(tf.where(mask > 0), tf.int32)
    client, slot = places[:, 0], places[:, 1]
    example_places = tf.gather_nd(examples.find_places(batches), places)
    shape = tf.shape(examples.mask)
    rows = client * shape[1] * shape[2] + example_places
    if examples.order is None:
        return pool, rows
    moved = tf.tensor_scatter_nd_update(pool.places, rows[:, tf.newaxis], slot)
    return pool._replace(places=moved), rows


def longest_first(model: PartitionedModel, pool: Pool, rows: tf.Tensor) -> tf.Tensor:
    """Orders rows of a pool by length, the longest first, if sequences may be cut."""
    if model.sequence_length is None:
        return rows
    return tf.gather(rows, tf.argsort(tf.gather(pool.lengths, rows), direction="DESCENDING"))


def sum_weights(pool: Pool, rows: tf.Tensor) -> tf.Tensor:
    """Sums the weights of a pool's rows by client, float32 (C,)."""
    weights, clients = tf.gather(pool.weights, rows), tf.gather(pool.clients, rows)
    return tf.math.unsorted_segment_sum(weights, clients, pool.num_clients)


def choose_rows(model: PartitionedModel, pool: Pool, rows: tf.Tensor) -> Pool:
    """Returns a pool of the given rows, cut to their longest sequence if the model allows."""
    chosen = tf.nest.map_structure(
        lambda column: tf.gather(column, rows), pool._replace(num_clients=())
    )._replace(num_clients=pool.num_clients)
    if model.sequence_length is None:
        return chosen
    length = tf.maximum(tf.reduce_max(chosen.lengths), 1)

    def cut(column: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        is_sequence = spec.shape.rank > 1 and spec.shape[1] is None
        return column[:, :length] if is_sequence else column

    return chosen._replace(
        features={k: cut(v, model.input_spec[k]) for k, v in chosen.features.items()},
        labels=cut(chosen.labels, model.label_spec),
        positions={
            k: cut(v, model.input_spec[model.tables[k]]) for k, v in chosen.positions.items()
        },
    )


def fetch_pool_rows(
    model: PartitionedModel, values: ClientValues, pool: Pool
) -> tuple[Values, dict[str, tf.Tensor]]:
    """Fetches the row of every id of every lookup.

    Returns:
        Table name to (T, ...), a row for each id; and, of per-client tables (C, R, ...), table name
        to int32 (T,), the indices of those rows among all clients' C * R rows.
    """
    rows, places = {}, {}
    for name, feature in model.tables.items():
        if name in values.per_client:
            table, position = values.per_client[name], pool.positions[name]
            client = align(pool.clients, position.shape.rank)
            places[name] = tf.reshape(client * tf.shape(table)[1] + position, [-1])
            rows[name] = tf.gather(join_axes(table, 2), places[name])
        else:
            rows[name] = tf.gather(values.shared[name], tf.reshape(pool.features[feature], [-1]))
    return rows, places


def predict_pool(
    model: PartitionedModel,
    values: Values,
    rows: Values,
    pool: Pool,
    *,
    training: bool,
    with_metrics: bool,
    noise: tf.Tensor | None = None,
) -> PoolOutput:
    """Applies the model to all examples of a pool at once.

    Clients share `values`; tables are replaced by the `rows` of the pool's ids. `noise`, uint64
    (C,), has the clients' noise seeds of the step, if the model has layers with noise.
    """
    features = dict(pool.features)
    for feature in set(model.tables.values()):
        ids = features[feature]
        counted = tf.reshape(tf.range(tf.size(ids)), tf.shape(ids))
        features[feature] = tf.cast(counted, ids.dtype)
    if noise is not None:
        noise = fold(tf.gather(noise, pool.clients), pool.places)
    output, added = model.predict(
        {**values, **rows}, features, training=training, noise=noise, rows_in_order=True
    )
    predictions = model.as_labels(output)
    losses = model.example_losses(pool.labels, predictions)
    for extra in added:
        if extra.shape.rank != 1 and pool.num_clients != 1:
            raise ValueError(
                "pooled execution needs one value an example from add_loss, not one a batch of "
                f"shape {extra.shape}: several clients share the batch. Use stacked execution."
            )
        losses += pool.weights * extra
    if not with_metrics:
        return PoolOutput(predictions, losses, {})
    pairs = example_values(model, pool.labels, predictions)
    pairs["loss"] = tf.stack([losses, pool.weights], axis=-1)
    sums = {
        name: tf.math.unsorted_segment_sum(pair, pool.clients, pool.num_clients)
        for name, pair in pairs.items()
    }
    return PoolOutput(predictions, losses, sums)


def chunk_end(model: PartitionedModel, pool: Pool, rows: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Returns the end of the chunk that begins at `start` of rows, which are longest first."""
    is_small = model.label_spec.shape.rank > 1
    most = SMALL_CHUNK if is_small or model.chunk_places else CHUNK
    places = model.chunk_places or (None if is_small else PLACES)
    if places is None:
        return start + most
    longest = tf.maximum(tf.gather(pool.lengths, rows[start]), 1)
    return start + tf.clip_by_value(places // longest, 1, most)


def sum_over_chunks(
    model: PartitionedModel,
    pool: Pool,
    rows: tf.Tensor,
    chunk_sums: Callable[[tf.Tensor], Any],
    zeros: Any,
    add: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Sums the results of `chunk_sums`, a function of a chunk of rows, over all chunks.

    The total starts as `zeros`, of the same structure. `add` maps a total and a chunk's result to
    the next total; by default it adds them.
    """

    def add_chunk(start: tf.Tensor, total: Any):
        end = chunk_end(model, pool, rows, start)
        part = chunk_sums(rows[start:end])
        return end, add(total, part) if add else tf.nest.map_structure(tf.add, total, part)

    _, total = tf.while_loop(
        lambda start, _: start < tf.size(rows), add_chunk, (0, zeros), parallel_iterations=1
    )
    return total


def predict_examples(
    model: PartitionedModel,
    values: ClientValues,
    examples: Examples,
    *,
    with_predictions: bool = False,
) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
    """Predicts all examples of clients that share all values except tables.

    Returns:
        Metric name, and `loss`, to float32 (C, 2), sums of values and of weights; and predictions,
        float32 (C, N, B), one number an example, or None.
    """
    pool = pool_examples(model, examples)
    is_real = tf.reshape(examples.mask, [-1]) > 0
    rows = longest_first(model, pool, tf.cast(tf.where(is_real)[:, 0], tf.int32))
    dense = without_client_axis(model, values)

    def chunk_sums(chunk: tf.Tensor) -> Any:
        chosen = choose_rows(model, pool, chunk)
        fetched, _ = fetch_pool_rows(model, values, chosen)
        output = predict_pool(model, dense, fetched, chosen, training=False, with_metrics=True)
        if not with_predictions:
            return output.sums, ()
        at = chunk[:, tf.newaxis]
        return output.sums, tf.scatter_nd(at, output.predictions, [tf.size(is_real)])

    nothing = tf.zeros([tf.size(is_real)]) if with_predictions else ()
    zeros = zero_sums(model, pool.num_clients), nothing
    sums, predictions = sum_over_chunks(model, pool, rows, chunk_sums, zeros)
    if not with_predictions:
        return sums, None
    return sums, tf.reshape(predictions, tf.shape(examples.mask))


def without_client_axis(model: PartitionedModel, values: ClientValues) -> Values:
    """Returns the values of all variables except tables, (...), without a client axis.

    Raises:
        ValueError: If there are per-client values of more than one client.
    """
    per_client = {k: v for k, v in values.per_client.items() if k not in model.tables}
    for name, value in per_client.items():
        if value.shape[0] != 1:
            raise ValueError(f"clients cannot be pooled: {name!r} differs between clients.")
    names = {*model.tables, *per_client}
    shared = {k: v for k, v in values.shared.items() if k not in names}
    # The gradient of a reshape copies nothing; that of a slice copies the whole variable.
    return {**shared, **{k: tf.squeeze(v, 0) for k, v in per_client.items()}}
