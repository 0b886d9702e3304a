"""Nested metrics as named numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedpersonal.errors import UserError


def flatten(metrics: Mapping[str, Any], *, prefix: str) -> dict[str, Any]:
    """Returns the numbers of a nested mapping, named by their path: 'train/accuracy'.

    Args:
        metrics: A nesting of mappings around numbers. Empty tuples, with which TFF stands for
            'nothing', are left out.
        prefix: The first part of each name.

    Raises:
        TypeError: Something is neither a mapping nor a number.
    """
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        path = f"{prefix}/{name}"
        shape = getattr(value, "shape", ())
        if isinstance(value, Mapping):
            flat.update(flatten(value, prefix=path))
        elif shape == () and hasattr(value, "__float__"):
            flat[path] = value.numpy() if hasattr(value, "numpy") else value
        elif not isinstance(value, (list, tuple)) or value:
            kind = type(value).__name__ + (f" of shape {shape}" if shape else "")
            raise TypeError(f"The metric {path} is a {kind}; a number is needed.")
    return flat


def check_finite_loss(metrics: Mapping[str, float], round_number: int) -> None:
    """Raises a UserError if a loss, by the last part of its name, is infinite or not a number."""
    for name, value in metrics.items():
        if "loss" in name.rpartition("/")[2] and not math.isfinite(value):
            raise UserError(
                f"The training has diverged: {name} is {value} in round {round_number}; start a "
                "new run with a lower learning rate."
            )
