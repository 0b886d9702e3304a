"""Which way a metric gets better, told by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A word of these says what is less of: `auc_loss` and `accuracy_error` are a loss and an error.
_LOWER = frozenset(
    "loss error errors rmse mse mae mape msle nll perplexity epsilon crossentropy hinge "
    "divergence poisson logcosh brier false".split()
)
_HIGHER = frozenset(
    "accuracy auc hr ndcg mrr map precision recall f1 fbeta r2 iou sensitivity specificity "
    "similarity true bleu rouge".split()
)
# The first of these that a run has is what its clients are judged by.
_FIRST = ("rmse", "perplexity", "auc", "ndcg", "accuracy", "loss")


def lower_is_better(name: str) -> bool | None:
    """Tells which way a metric gets better.

    Args:
        name: Such as `rmse`, `eval/loss`, `hr@10_all` or `accuracy_without_oov_before`: what counts
            is a known word in its last part.

    Returns:
        Whether less of it is better; None where nobody knows.
    """
    words = _words(name)
    if words & _LOWER:
        return True
    return False if words & _HIGHER else None


def find_metric(name: str, names: Iterable[str]) -> str | None:
    """Returns which of some names is a metric, such as `hr@10_of_50` for `hr@10`; None if none."""
    return next((n for n in names if n == name or n.startswith(f"{name}_of_")), None)


def main_metric(names: list[str]) -> str | None:
    """Returns which of some metrics to judge clients by; None where nobody knows a direction."""
    for word in _FIRST:
        # The plain one, such as accuracy, comes before accuracy_without_oov.
        lower = word in _LOWER
        found = [n for n in names if word in _words(n) and lower_is_better(n) is lower]
        if found:
            return min(found, key=len)
    return next((name for name in names if lower_is_better(name) is not None), None)


def _words(name: str) -> set[str]:
    last = name.rpartition("/")[2].lower()
    # Two words that Keras and others write for one.
    for pair in ("io_u", "log_cosh", "cross_entropy"):
        last = last.replace(pair, pair.replace("_", ""))
    return {*re.split("[^a-z0-9]+", last)}
