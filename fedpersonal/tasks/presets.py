"""Hyperparameters of several methods that tables and figures compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Preset:
    """Hyperparameters of all methods of a task.

    Attributes:
        name: Its name.
        options: What all methods share, a dataclass with `algorithm`, `total_rounds`,
            `rounds_per_eval`; the algorithm and the seed are not looked at.
        changes: By algorithm, options of its own.
    """

    name: str
    options: Any
    changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def options_of(self, algorithm: str, *, scale_rounds: float = 1.0, **own: Any) -> Any:
        """Returns the options of a method.

        Args:
            algorithm: The method.
            scale_rounds: Factor of the rounds, and of the rounds between evaluations.
            **own: Options such as the seed.
        """
        changes = {**self.changes.get(algorithm, {}), **own, "algorithm": algorithm}
        options = dataclasses.replace(self.options, **changes)
        return dataclasses.replace(
            options,
            total_rounds=max(1, round(scale_rounds * options.total_rounds)),
            rounds_per_eval=max(1, round(scale_rounds * options.rounds_per_eval)),
        )
