"""The batch that each client takes at a step, and its model's output for that batch."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, NamedTuple

import tensorflow as tf

from fedpersonal.client.values import (
    ClientValues,
    Examples,
    count_client_batches,
    join_axes,
    over_clients,
    over_real_examples,
    tile_clients,
)
from fedpersonal.data.splits import count_batches, find_batch
from fedpersonal.methods.phases import BlendPhase, ChoicePhase, GradientPhase
from fedpersonal.model.keras import notes_of, with_notes
from fedpersonal.model.lookups import count_ids, fetch_rows
from fedpersonal.model.mixing import Mixing, find_mixing
from fedpersonal.model.noise import fold
from fedpersonal.model.partition import PartitionedModel, Values


class Schedule(NamedTuple):
    """The steps of a phase, for `C` clients.

    Attributes:
        batches: int32 (S, C): each client's batch at each step; numbers run through passes if these
            are shuffled.
        active: float32 (S, C): 1 where the client takes the step, 0 beyond its last one.
        num_steps: int32: the most steps that a client takes, at most S.
        num_examples: float32 (C,): examples that all steps of a client process.
    """

    batches: tf.Tensor
    active: tf.Tensor
    num_steps: tf.Tensor
    num_examples: tf.Tensor


def schedule_phase(phase: GradientPhase | BlendPhase | ChoicePhase, examples: Examples) -> Schedule:
    """Lays out the steps of a phase for a stack of clients."""
    num_batches = count_client_batches(examples)
    in_part = count_batches(phase.data, num_batches)
    steps = (phase.epochs if phase.passes is None else phase.passes) * in_part
    if phase.max_steps is not None:
        steps = tf.minimum(steps, phase.max_steps)
    # The bound follows from shapes alone: XLA would compile again for each number of steps. It is
    # at least 1: XLA cannot take a row of an empty tensor, even in a loop that is never entered.
    bound = max(phase.epochs, 1) * tf.shape(examples.mask)[1]
    if phase.max_steps is not None:
        bound = tf.minimum(bound, max(phase.max_steps, 1))
    step = tf.range(bound)[:, tf.newaxis]
    active = step < steps
    batches = find_batch(phase.data, step % tf.maximum(in_part, 1), num_batches)
    batches, active = tf.where(active, batches, 0), tf.cast(active, tf.float32)
    sizes = tf.gather(tf.reduce_sum(examples.mask, -1), tf.transpose(batches), batch_dims=1)
    num_examples = tf.reduce_sum(sizes * tf.transpose(active), axis=1)
    if examples.order is not None:
        passes = tf.cast(active, tf.int32) * (step // tf.maximum(in_part, 1))
        batches += passes * tf.shape(examples.mask)[1]
    return Schedule(batches, active, tf.reduce_max(steps), num_examples)


class Batch(NamedTuple):
    """One batch of each client, with `T` ids of each lookup.

    Attributes:
        features: Input name to (C, B, ...).
        labels: (C, B, ...).
        mask: (C, B).
        id_rows: Lookup table's variable name to (C, T, ...): the row of each id of the batch.
        positions: Lookup table's variable name to int32 (C, T): the indices of those rows among
            the touched ones.
    """

    features: dict[str, tf.Tensor]
    labels: tf.Tensor
    mask: tf.Tensor
    id_rows: Values
    positions: dict[str, tf.Tensor]


def take_batch(
    model: PartitionedModel, examples: Examples, index: tf.Tensor, values: ClientValues
) -> Batch:
    """Takes batch `index[c]` of each client `c`, and fetches the lookups' rows for it."""
    per_client = {k: v for k, v in examples.positions.items() if k in values.per_client}
    features, labels, mask, positions = examples.take(
        (examples.features, examples.labels, examples.mask, per_client), index
    )
    id_rows = fetch_rows(model, values.shared, values.per_client, features, positions)
    flat = {k: tf.reshape(v, [tf.shape(v)[0], -1]) for k, v in positions.items()}
    return Batch(features, labels, mask, id_rows, flat)


class BatchOutput(NamedTuple):
    """Predictions and losses of a stack of clients' models, for one batch of each client.

    Attributes:
        predictions: (C, B, ...).
        losses: float32 (C, B), with the losses that the model adds.
        weights: float32 (C, B): each example's weight in means, 0 for padding.
        mixing: The parts of the model that depend on a batch's other examples.
    """

    predictions: tf.Tensor
    losses: tf.Tensor
    weights: tf.Tensor
    mixing: Mixing


def predict_batch(
    model: PartitionedModel, values: ClientValues, batch: Batch, *, training: bool
) -> BatchOutput:
    """Applies each client's model to its batch.

    Lookups use the batch's rows instead of the tables in `values`. The noise is that of the step.
    """
    predictions, added, mixing = apply_to_batch(model, values, batch, training=training)
    losses, weights = _map_examples(
        lambda *pair: (model.example_losses(*pair), model.example_weights(pair[0])),
        batch,
        predictions,
        mixing,
    )
    for extra in added:
        losses += weights * (extra if extra.shape.rank == 2 else extra[:, tf.newaxis])
    return BatchOutput(predictions, losses, tf.where(batch.mask > 0, weights, 0.0), mixing)


def apply_to_batch(
    model: PartitionedModel, values: ClientValues, batch: Batch, *, training: bool
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], Mixing]:
    """Applies each client's model to its batch, without the loss and metrics.

    Returns:
        The output, (C, B, ...); the losses that the model adds, each (C, B) or (C,); and the parts
        of the model that depend on a batch's other examples.
    """
    per_client = {**_without(values.per_client, model.tables), **batch.id_rows}
    shared = _without(values.shared, per_client)
    # Values that are equal for all clients stay out of the vectorised arguments.
    counted = {k: v[0] for k, v in count_ids(model, batch.features).items()}
    features = _without(batch.features, counted)
    if not per_client and not features:
        raise ValueError("a model needs a local variable, a moving variable or an input.")
    noise = (values.noise,) if training and values.noise is not None else ()
    shape = tf.shape(batch.mask)
    places = tf.range(shape[1])

    def client_output(client_values, noise, features, places, **options):
        output, added = model.predict(
            {**shared, **client_values},
            features,
            training=training,
            noise=fold(noise[0], places) if noise else None,
            **options,
        )
        output = model.as_labels(output)
        return output, tuple(added), notes_of(output)

    mixing = find_mixing(model.base, training=training)
    if mixing.rows:
        # Real examples are a subset of a batch's, so ids no longer count 0, 1, 2...
        every = {k: tile_clients(v, shape[0]) for k, v in counted.items()}
        predictions, added, notes = over_real_examples(
            lambda element, examples: client_output(*element, *examples),
            (per_client, noise),
            ({**features, **every}, tile_clients(places, shape[0])),
            batch.mask,
        )
    else:
        predictions, added, notes = over_clients(
            lambda element: client_output(
                element[0], element[1], {**element[2], **counted}, places, rows_in_order=True
            ),
            (per_client, noise, features),
        )
    return with_notes(predictions, notes), added, mixing


def _map_examples(
    fn: Callable[[tf.Tensor, tf.Tensor], Any],
    batch: Batch,
    predictions: tf.Tensor,
    mixing: Mixing,
) -> Any:
    """Maps labels and predictions (n, ...) to tensors (n, ...); returns them as (C, B, ...)."""
    notes = notes_of(predictions)
    if mixing.rows or mixing.functions:
        return over_real_examples(
            lambda _, columns: fn(columns[0], with_notes(*columns[1:])),
            (),
            (batch.labels, predictions, notes),
            batch.mask,
        )
    # Examples do not affect each other: those of all clients are mapped at once.
    shape = tf.shape(batch.mask)
    flat = {name: join_axes(note, 2) for name, note in notes.items()}
    results = fn(join_axes(batch.labels, 2), with_notes(join_axes(predictions, 2), flat))
    return tf.nest.map_structure(
        lambda t: tf.reshape(t, tf.concat([shape, tf.shape(t)[1:]], 0)), results
    )


def batch_metric_sums(
    model: PartitionedModel, batch: Batch, output: BatchOutput
) -> dict[str, tf.Tensor]:
    """Sums values and weights of the loss and of every metric: name to float32 (C, 2)."""
    pairs = _map_examples(
        lambda *pair: example_values(model, *pair), batch, output.predictions, output.mixing
    )
    pairs["loss"] = tf.stack([output.losses, output.weights], axis=-1)
    # Not a product with the mask: the prediction for padding may be anything, even NaN.
    real = batch.mask[..., tf.newaxis] > 0
    return {k: tf.reduce_sum(tf.where(real, pair, 0.0), 1) for k, pair in pairs.items()}


def example_values(
    model: PartitionedModel, labels: tf.Tensor, predictions: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns each metric's value and weight of each example: name to float32 (batch, 2)."""
    values = {m.name: model.metric_values(m, labels, predictions) for m in model.metrics}
    return {name: tf.stack(pair, axis=-1) for name, pair in values.items()}


def zero_sums(model: PartitionedModel, num_clients: int | tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns metric sums over no examples: name to zeros, float32 (C, 2)."""
    names = ["loss", *(metric.name for metric in model.metrics)]
    return {name: tf.zeros([num_clients, 2]) for name in names}


def _without(values: Values, names: Container[str]) -> Values:
    return {k: v for k, v in values.items() if k not in names}
