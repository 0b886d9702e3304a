"""Whether what a user declares, loss and metrics, compares predictions with labels.

A term that ignores labels compares nothing: it tells what a client's model says.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from fedpersonal.audit.reference import Reference
from fedpersonal.audit.severed import other_labels
from fedpersonal.audit.subject import Subject
from fedpersonal.model.metrics import Metric
from fedpersonal.model.partition import PartitionedModel

# What labels change is compared with what predictions change; less than this share is nothing.
_IGNORED = 1e-3
_CLIENTS = 8
_CLASSES = 32


def check_metrics(subject: Subject, reference: Reference) -> list[str]:
    """Each metric depends on labels where it depends on predictions."""
    model, found, random = subject.model, [], np.random.default_rng(2)
    places = range(min(_CLIENTS, subject.clients.num_clients))
    examples = [one for one in map(subject.examples, places) if len(one.labels)]
    outputs = [model.as_labels(tf.constant(reference.predict(one))).numpy() for one in examples]
    for metric in model.metrics:
        by_label = by_prediction = 0.0
        for client, output in zip(examples, outputs):
            pool = _pool(subject)
            # Far enough that some of the labels are hit.
            spread = 1.0 + output.std() + (pool.std() if output.shape == client.labels.shape else 0)
            drawn = output + (spread * random.normal(size=output.shape)).astype(output.dtype)
            labels = other_labels(model, client.labels, pool, random)
            values = [_values(metric, client.labels, given) for given in (output, drawn)]
            others = [_values(metric, labels, given) for given in (output, drawn)]
            by_prediction = max(by_prediction, np.abs(values[0] - values[1]).max())
            by_label = max(by_label, np.abs(np.subtract(values, others)).max())
        if by_prediction > 0 and by_label < _IGNORED * by_prediction:
            found.append(
                f"metric {metric.name!r} ignores labels: its sum tells what clients' models predict"
            )
    return found


def check_loss(subject: Subject, reference: Reference) -> list[str]:
    """The loss compares each number of the model's output with labels."""
    model, random = subject.model, np.random.default_rng(3)
    client = subject.examples(0)
    output = model.as_labels(tf.constant(reference.predict(client))).numpy()
    # Each number has an axis of its own, the last.
    shown = output if output.ndim > 1 else output[:, np.newaxis]
    has_classes = output.ndim > client.labels.ndim and client.labels.dtype.kind in "iu"
    tried = np.arange(shown.shape[-1])
    if has_classes and tried.size > _CLASSES:
        tried = np.append(random.choice(tried[:-1], _CLASSES - 1, replace=False), tried[-1])
    variants = [other_labels(model, client.labels, _pool(subject), random) for _ in range(4)]
    if has_classes:
        ones = np.where(client.labels < 0, client.labels, 1)
        variants += [(ones * number).astype(client.labels.dtype) for number in tried]
    if all(np.array_equal(labels, client.labels) for labels in variants):
        return []
    own = _slopes(model, client.labels, output).reshape(shown.shape)
    change = np.zeros(shown.shape[-1])
    axes = tuple(range(shown.ndim - 1))
    for labels in variants:
        slopes = _slopes(model, labels, output).reshape(shown.shape)
        change = np.fmax(change, np.abs(slopes - own).max(axes))
    size = np.abs(own).max(axes)
    return [
        f"the loss does not compare number {number} of the model's output with labels: its "
        "derivative tells what clients' models say"
        for number in sorted(tried)
        if size[number] > 0 and change[number] < _IGNORED * size[number]
    ]


def _slopes(model: PartitionedModel, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Returns the loss' derivative by the output; NaN where the loss does not take the labels."""
    predictions = tf.constant(output)
    try:
        with tf.GradientTape() as tape:
            tape.watch(predictions)
            loss = tf.reduce_sum(model.example_losses(tf.constant(labels), predictions))
    except tf.errors.InvalidArgumentError:
        return np.full(output.shape, np.nan)
    slopes = tape.gradient(loss, predictions, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.convert_to_tensor(slopes).numpy()


def _values(metric: Metric, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
    # New tensors, as metrics may keep what they have computed of one.
    value = metric.example_value(tf.constant(labels), tf.constant(output))
    return np.asarray(value, np.float64)


def _pool(subject: Subject) -> np.ndarray:
    return subject.clients.labels.astype(subject.model.label_spec.dtype.as_numpy_dtype)
