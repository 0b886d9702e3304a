"""Which way a metric gets better, told by its name."""

from __future__ import annotations

import re

_LOWER = {"loss", "rmse", "mse", "mae", "perplexity", "error", "epsilon"}
_HIGHER = {"accuracy", "auc", "hr", "ndcg", "mrr", "precision", "recall", "f1"}
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
    words = re.split("[^a-z0-9]+", name.rpartition("/")[2].lower())
    for word in words:
        if word in _LOWER or word in _HIGHER:
            return word in _LOWER
    return None


def main_metric(names: list[str]) -> str | None:
    """Returns which of some metrics to judge clients by; None where nobody knows a direction."""
    for word in _FIRST:
        # The plain one, such as accuracy, comes before accuracy_without_oov.
        found = sorted((n for n in names if word in re.split("[^a-z0-9]+", n)), key=len)
        if found:
            return found[0]
    return next((name for name in names if lower_is_better(name) is not None), None)
