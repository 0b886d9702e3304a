"""Whether what a user declares, loss and metrics, compares predictions with labels.

A term that ignores labels compares nothing: it tells what a client's model says.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from fedpersonal.audit.checks import other_labels
from fedpersonal.audit.plain_model import Arrays, Client
from fedpersonal.audit.reference import Reference
from fedpersonal.audit.subject import Subject
from fedpersonal.draws import Purpose, generator
from fedpersonal.model.metrics import Metric
from fedpersonal.model.partition import PartitionedModel

# What labels change is compared with what predictions change; less than this share is nothing.
_IGNORED = 1e-3
_HIDDEN_VALUE = (
    "the loss' value changes with predictions as its derivative does not, whatever the labels "
    "(stop_gradient, rounding): the reported loss tells what clients' models say"
)
_CLIENTS = 8
_CLASSES = 32
# Places on the way between two predictions, in two trials; how long the ways are; and examples. A
# short way meets no kink of an absolute error, a long one meets a step of what is rounded.
_STEPS = (15, 16)
_WAYS = (1.0, 0.25, 0.06)
_FEW = 4


def check_metrics(subject: Subject, reference: Reference) -> list[str]:
    """Each metric depends on labels where it depends on predictions."""
    model, leaks, random = subject.model, [], generator(Purpose.AUDIT, 0, round_number=2)
    places = range(min(_CLIENTS, subject.clients.num_clients))
    examples = [one for one in map(subject.examples, places) if len(one.labels)]
    outputs = [model.as_labels(tf.constant(reference.predict(one))).numpy() for one in examples]
    for metric in model.metrics:
        by_label = by_prediction = 0.0
        for client, output in zip(examples, outputs):
            drawn = _drawn(subject, client, output, random)
            labels = other_labels(model, client.labels, _pool(subject), random)
            if np.array_equal(labels, client.labels):
                continue
            values = [_values(metric, client.labels, given) for given in (output, drawn)]
            others = [_values(metric, labels, given) for given in (output, drawn)]
            by_prediction = max(by_prediction, np.abs(values[0] - values[1]).max())
            by_label = max(by_label, np.abs(np.subtract(values, others)).max())
        if by_prediction > 0 and by_label < _IGNORED * by_prediction:
            leaks.append(
                f"metric {metric.name!r} ignores labels: its sum tells what clients' models predict"
            )
    return leaks


def check_loss(subject: Subject, reference: Reference) -> list[str]:
    """The loss compares each number of the model's output with labels."""
    model, random = subject.model, generator(Purpose.AUDIT, 0, round_number=3)
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
    few = [labels[:_FEW] for labels in (client.labels, *variants[:4])]
    ways = [length * np.abs(random.normal(size=output[:_FEW].shape)) for length in _WAYS]
    leaks = [_HIDDEN_VALUE] if any(_hides(model, few, output[:_FEW], way) for way in ways) else []
    change = size = np.zeros(shown.shape[-1])
    axes = tuple(range(shown.ndim - 1))
    # Far from all labels, an absolute error has the same slope for each of them.
    for given in (output, _drawn(subject, client, output, random)):
        own = _slopes(model, client.labels, given).reshape(shown.shape)
        size = np.fmax(size, np.abs(own).max(axes))
        for labels in variants:
            slopes = _slopes(model, labels, given).reshape(shown.shape)
            change = np.fmax(change, np.abs(slopes - own).max(axes))
    return leaks + [
        f"the loss does not compare number {number} of the model's output with labels: its "
        "derivative tells what clients' models say"
        for number in sorted(tried)
        if size[number] > 0 and change[number] < _IGNORED * size[number]
    ]


def _drawn(
    subject: Subject, client: Client, output: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Draws other predictions, so far away that some of the labels are hit."""
    is_like_labels = output.shape == client.labels.shape
    spread = 1.0 + output.std() + (_pool(subject).std() if is_like_labels else 0)
    return output + (spread * random.normal(size=output.shape)).astype(output.dtype)


def _hides(
    model: PartitionedModel, variants: list[np.ndarray], output: np.ndarray, way: np.ndarray
) -> bool:
    """Whether the loss' value tells of predictions what its derivative does not.

    The derivative, summed up on the way from one prediction to another, should lead from one value
    to the other, but for what labels decide.
    """
    changes, gaps = [], []
    for labels in variants:
        start, end = (_loss(model, labels, output + share * way) for share in (0, 1))
        changes.append(abs(end - start))
        # Where a loss has a kink, one sum misses more than another.
        for steps in _STEPS:
            explained = 0.0
            for place, share in zip(*np.polynomial.legendre.leggauss(steps)):
                slopes = _slopes(model, labels, output + (place + 1) / 2 * way)
                explained += share / 2 * np.sum(slopes * way)
            gaps.append(end - start - explained)
    least = np.min(np.abs(gaps))
    return bool(least > _IGNORED * np.max(changes) and np.ptp(gaps) <= least / 10)


def check_added(subject: Subject, reference: Reference) -> list[str]:
    """Losses that the model adds tell no raw inputs, and of local variables sizes alone."""
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
            "loss tells what they are"
        )
    drawn = {v.name: 0.5 * random.normal(size=v.shape) for v in variables}
    local = {v.name: drawn[v.name] for v in variables if v.is_local}

    def added(values: Arrays, factor: float = 1.0) -> float:
        scaled = {name: factor * value for name, value in values.items()}
        return reference.added_losses(client, {**drawn, **scaled})

    start = added(local, 0.0)
    half, one, two, four = (added(local, factor) - start for factor in (0.5, 1.0, 2.0, 4.0))
    # Of a|v| + b v^2, whose two numbers follow from two values.
    square = (two - 2.0 * one) / 2.0
    linear = one - square
    sizes = [linear / 2.0 + square / 4.0, 4.0 * linear + 16.0 * square]
    moved = added({name: _rolled(value) for name, value in local.items()}) - start
    largest = max(map(abs, (start, half, one, two, four)))
    if not all(_same(*pair, largest) for pair in zip((half, four, moved), (*sizes, one))):
        leaks.append(
            "a loss that the model adds tells more of local variables than a sum of |v| and v^2 "
            "over their entries"
        )
    return leaks


def _rolled(value: np.ndarray) -> np.ndarray:
    """Returns a value whose entries have other places along its last axis of several."""
    axes = [axis for axis, size in enumerate(value.shape) if size > 1]
    return np.roll(value, 1, axes[-1]) if axes else value


def _same(one: float, other: float, largest: float = 0.0) -> bool:
    """Tells whether two sums are equal up to rounding; where they are no numbers, too."""
    return bool(np.isclose(one, other, rtol=1e-4, atol=1e-4 * largest + 1e-12, equal_nan=True))


def _loss(model: PartitionedModel, labels: np.ndarray, output: np.ndarray) -> float:
    """Returns the sum of the losses; NaN where the loss does not take the labels."""
    predictions = tf.constant(output.astype(np.float32))
    try:
        return float(tf.reduce_sum(model.example_losses(tf.constant(labels), predictions)))
    except tf.errors.InvalidArgumentError:
        return np.nan


def _slopes(model: PartitionedModel, labels: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Returns the loss' derivative by the output; NaN where the loss does not take the labels."""
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
    # New tensors, as metrics may keep what they have computed of one.
    value = metric.example_value(tf.constant(labels), tf.constant(output))
    return np.asarray(value, np.float64)


def _pool(subject: Subject) -> np.ndarray:
    return subject.clients.labels.astype(subject.model.label_spec.dtype.as_numpy_dtype)
