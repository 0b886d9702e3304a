"""Metrics that are ratios of two sums over examples, so that clients' sums add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Union

import numpy as np
import tensorflow as tf

Mean = Union[tf.Tensor, np.ndarray]


def _identity(mean: Mean) -> Mean:
    return mean


@dataclasses.dataclass(frozen=True)
class Metric:
    """A function of a weighted mean over examples.

    Attributes:
        name: Column name.
        example_value: Maps (labels, predictions) to float32 values of shape (batch,). Where an
            example counts as several, as a sentence does as its tokens, their sum.
        finalize: Maps the mean, a tensor or an array of means, to the metric by plain operators.
        example_weight: Maps labels to float32 (batch,): as how many each example counts. None
            stands for the model's own weights.
    """

    name: str
    example_value: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    finalize: Callable[[Mean], Mean] = _identity
    example_weight: Callable[[tf.Tensor], tf.Tensor] | None = None


RMSE = Metric("rmse", lambda labels, predictions: tf.square(predictions - labels), lambda m: m**0.5)
MAE = Metric("mae", lambda labels, predictions: tf.abs(predictions - labels))
HALF_STAR_ACCURACY = Metric(
    "accuracy", lambda labels, predictions: tf.cast(tf.abs(predictions - labels) <= 0.5, tf.float32)
)
RATING_METRICS = (RMSE, MAE, HALF_STAR_ACCURACY)


def class_accuracy(name: str = "accuracy") -> Metric:
    """Returns the share of examples whose most likely class is the right one.

    Labels are int32 (batch,), predictions float32 (batch, num_classes), logits or probabilities.
    """

    def is_right(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        chosen = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
        return tf.cast(tf.equal(chosen, labels), tf.float32)

    return Metric(name, is_right)


def binary_accuracy(name: str = "accuracy") -> Metric:
    """Returns the share of examples whose logit has the right sign, 0 being negative.

    Labels are (batch,) of 0 and 1 in any dtype, predictions float32 (batch,), logits.
    """

    def is_right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.equal(logits > 0, tf.cast(labels, tf.bool)), tf.float32)

    return Metric(name, is_right)


def finalize(metrics: Sequence[Metric], sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Turns sums over examples into metrics, elementwise; NaN where there was no example.

    `sums` maps a metric's name, or `loss`, to (..., 2): the sums of its example values and weights.
    """
    finalizers = {"loss": _identity, **{m.name: m.finalize for m in metrics}}
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            name: finalizers[name](np.divide(*np.moveaxis(np.asarray(total, np.float64), -1, 0)))
            for name, total in sums.items()
        }


def ranking_metrics(
    scores: np.ndarray, *, at: int, candidates: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Returns hit rate and NDCG of a single relevant item at a cut-off, for each client.

    Items of equal scores are in random order: the metrics are what that comes to on average. Where
    scores are no numbers, the relevant item comes last. A client with no more candidates than the
    cut-off has no metric, NaN: any order would have the item there.

    Args:
        scores: Floats (num_clients, width), the relevant item's first.
        at: The cut-off, such as 10.
        candidates: Which scores count, bool of the same shape, the relevant item's among them; None
            for all.

    Returns:
        `hr@10` and `ndcg@10`, float64 (num_clients,).
    """
    first, others = scores[:, :1], scores[:, 1:]
    is_other = np.ones(others.shape, bool) if candidates is None else candidates[:, 1:]
    counts = is_other.sum(1, keepdims=True)
    tied = (is_other & (others == first)).sum(1, keepdims=True)
    before = counts - tied - (is_other & (others < first)).sum(1, keepdims=True)
    places = np.arange(at)
    chances = ((before <= places) & (places <= before + tied)) / (1.0 + tied)
    chances[counts[:, 0] < at] = np.nan
    return {f"hr@{at}": chances.sum(1), f"ndcg@{at}": chances @ (1.0 / np.log2(places + 2.0))}
