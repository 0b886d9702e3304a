"""Checks that a user's loss and metrics compare predictions with labels.

A term that ignores labels compares nothing: it reveals the predictions of a client's model.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from fedpersonal.audit.checks import other_labels
from fedpersonal.audit.plain_model import Arrays, Client
from fedpersonal.audit.reference import Reference
from fedpersonal.audit.subject import Subject
from fedpersonal.model.metrics import Metric
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.randomness import Purpose, generator

# The least effect of labels, as a share of the effect of predictions, that counts as an effect.
_IGNORED = 1e-3
_HIDDEN_VALUE = (
    "the loss' value changes with predictions in a way that its derivative does not show, whatever "
    "the labels (stop_gradient, rounding): the reported loss reveals clients' predictions"
)
_CLIENTS = 8
_CLASSES = 32
# Places on the way between two predictions, in two trials; the lengths of ways; and examples. A
# short way has no kink of an absolute error; a long way has a step of a rounded value.
_STEPS = (15, 16)
_WAYS = (1.0, 0.25, 0.06)
_EXAMPLES = 4


def check_metrics(subject: Subject, reference: Reference) -> list[str]:
    """Checks that each metric that depends on predictions depends on labels, too."""
    model, leaks, random = subject.model, [], generator(Purpose.AUDIT, 0, round_number=2)
    places = range(min(_CLIENTS, subject.clients.num_clients))
    examples = [one for one in map(subject.examples, places) if len(one.labels)]
    outputs = [model.as_labels(tf.constant(reference.predict(one))).numpy() for one in examples]
    for metric in model.metrics:
        by_label = by_prediction = 0.0
        for client, output in zip(examples, outputs):
            sampled = _sample_predictions(subject, client, output, random)
            labels = other_labels(model, client.labels, _label_pool(subject), random)
            if np.array_equal(labels, client.labels):
                continue
            predictions = output, sampled
            values = [_values(metric, client.labels, one) for one in predictions]
            others = [_values(metric, labels, one) for one in predictions]
            by_prediction = max(by_prediction, np.abs(values[0] - values[1]).max())
            by_label = max(by_label, np.abs(np.subtract(values, others)).max())
        if by_prediction > 0 and by_label < _IGNORED * by_prediction:
            leaks.append(
                f"metric {metric.name!r} ignores labels: its sum reveals clients' predictions"
            )
    return leaks


def check_loss(subject: Subject, reference: Reference) -> list[str]:
    """Checks that the loss compares each number of the model's output with labels."""
    model, random = subject.model, generator(Purpose.AUDIT, 0, round_number=3)
    client = subject.examples(0)
    output = model.as_labels(tf.constant(reference.predict(client))).numpy()
    # The last axis of `columns` has the numbers of an output.
    columns = output if output.ndim > 1 else output[:, np.newaxis]
    has_classes = output.ndim > client.labels.ndim and client.labels.dtype.kind in "iu"
    chosen = np.arange(columns.shape[-1])
    if has_classes and chosen.size > _CLASSES:
        chosen = np.append(random.choice(chosen[:-1], _CLASSES - 1, replace=False), chosen[-1])
    variants = [other_labels(model, client.labels, _label_pool(subject), random) for _ in range(4)]
    if has_classes:
        ones = np.where(client.labels < 0, client.labels, 1)
        variants += [(ones * number).astype(client.labels.dtype) for number in chosen]
    if all(np.array_equal(labels, client.labels) for labels in variants):
        return []
    first, first_output = slice(_EXAMPLES), output[:_EXAMPLES]
    first_labels = [labels[first] for labels in (client.labels, *variants[:4])]
    ways = [length * np.abs(random.normal(size=first_output.shape)) for length in _WAYS]
    is_hidden = any(_hides_value(model, first_labels, first_output, way) for way in ways)
    leaks = [_HIDDEN_VALUE] if is_hidden else []
    change = size = np.zeros(columns.shape[-1])
    axes = tuple(range(columns.ndim - 1))
    # Far from all labels, an absolute error has the same slope for each of them.
    for predictions in (output, _sample_predictions(subject, client, output, random)):
        slopes = _slopes(model, client.labels, predictions).reshape(columns.shape)
        size = np.fmax(size, np.abs(slopes).max(axes))
        for labels in variants:
            others = _slopes(model, labels, predictions).reshape(columns.shape)
            change = np.fmax(change, np.abs(others - slopes).max(axes))
    return leaks + [
        f"the loss does not compare number {number} of the model's output with labels: its "
        "derivative reveals clients' predictions"
        for number in sorted(chosen)
        if size[number] > 0 and change[number] < _IGNORED * size[number]
    ]


def _sample_predictions(
    subject: Subject, client: Client, output: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Samples other predictions, far enough from `output` that some of them match labels."""
    is_like_labels = output.shape == client.labels.shape
    spread = 1.0 + output.std() + (_label_pool(subject).std() if is_like_labels else 0)
    return output + (spread * random.normal(size=output.shape)).astype(output.dtype)


def _hides_value(
    model: PartitionedModel, variants: list[np.ndarray], output: np.ndarray, way: np.ndarray
) -> bool:
    """Returns whether the loss' value depends on predictions in a way its derivative does not.

    The derivative's integral on the way from one prediction to another should equal the difference
    of the values; a gap that depends on labels is no leak.
    """
    changes, gaps = [], []
    for labels in variants:
        start, end = (_loss(model, labels, output + share * way) for share in (0, 1))
        changes.append(abs(end - start))
        # At a kink of the loss, the errors of the sums differ.
        for steps in _STEPS:
            explained = 0.0
            for place, share in zip(*np.polynomial.legendre.leggauss(steps)):
                slopes = _slopes(model, labels, output + (place + 1) / 2 * way)
                explained += share / 2 * np.sum(slopes * way)
            gaps.append(end - start - explained)
    least = np.min(np.abs(gaps))
    return bool(least > _IGNORED * np.max(changes) and np.ptp(gaps) <= least / 10)


def check_added(subject: Subject, reference: Reference) -> list[str]:
    """Checks that losses that the model adds reveal no inputs and only sizes of local variables."""
    model, random = subject.model, generator(Purpose.AUDIT, 0, round_number=5)
    leaks: list[str] = []
    if not reference.adds_losses:
        return leaks
    client = subject.examples(0)
    count = len(client.labels)
    other = Client(
        {k: v[random.integers(0, count, count)] for k, v in client.features.items()}, client.labels
    )
    variables = [v for v in model.variables if not v.is_personal]
    zeros = {v.name: np.zeros(v.shape, np.float32) for v in variables}
    if not _same(*(reference.added_losses(one, zeros) for one in (client, other))):
        leaks.append(
            "a loss that the model adds depends on inputs where all variables are 0: the reported "
            "loss reveals the inputs"
        )
    sampled = {v.name: 0.5 * random.normal(size=v.shape) for v in variables}
    local = {v.name: sampled[v.name] for v in variables if v.is_local}

    def added_loss(values: Arrays, factor: float = 1.0) -> float:
        scaled = {name: factor * value for name, value in values.items()}
        return reference.added_losses(client, {**sampled, **scaled})

    start = added_loss(local, 0.0)
    half, one, two, four = (added_loss(local, factor) - start for factor in (0.5, 1.0, 2.0, 4.0))
    # The numbers a and b of a|v| + b v^2 follow from two values.
    square = (two - 2.0 * one) / 2.0
    linear = one - square
    sizes = [linear / 2.0 + square / 4.0, 4.0 * linear + 16.0 * square]
    moved = added_loss({name: _roll(value) for name, value in local.items()}) - start
    largest = max(map(abs, (start, half, one, two, four)))
    if not all(_same(*pair, largest) for pair in zip((half, four, moved), (*sizes, one))):
        leaks.append(
            "a loss that the model adds reveals more of local variables than a sum of |v| and v^2 "
            "over their entries"
        )
    return leaks


def _roll(value: np.ndarray) -> np.ndarray:
    """Rolls a value's entries along its last axis with more than one entry."""
    axes = [axis for axis, size in enumerate(value.shape) if size > 1]
    return np.roll(value, 1, axes[-1]) if axes else value


def _same(one: float, other: float, largest: float = 0.0) -> bool:
    """Returns whether two sums are equal up to rounding; NaN equals NaN."""
    return bool(np.isclose(one, other, rtol=1e-4, atol=1e-4 * largest + 1e-12, equal_nan=True))


def _loss(model: PartitionedModel, labels: np.ndarray, output: np.ndarray) -> float:
    """Returns the sum of the losses; NaN if the loss does not accept the labels."""
    predictions = tf.constant(output.astype(np.float32))
    try:
        return float(tf.reduce_sum(model.example_losses(tf.constant(labels), predictions)))
    except tf.errors.InvalidArgumentError:
        return np.nan


def _slopes(model: PartitionedModel, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Returns the loss' derivative by the output; NaN if the loss does not accept the labels."""
    predictions = tf.constant(output.astype(np.float32))
    try:
        with tf.GradientTape() as tape:
            tape.watch(predictions)
            loss = tf.reduce_sum(model.example_losses(tf.constant(labels), predictions))
    except tf.errors.InvalidArgumentError:
        return np.full(output.shape, np.nan)
    slopes = tape.gradient(loss, predictions, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.convert_to_tensor(slopes).numpy()


def _values(metric: Metric, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
    # New tensors are passed, since metrics may cache results of a tensor.
    value = metric.example_value(tf.constant(labels), tf.constant(output))
    return np.asarray(value, np.float64)


def _label_pool(subject: Subject) -> np.ndarray:
    return subject.clients.labels.astype(subject.model.label_spec.dtype.as_numpy_dtype)
