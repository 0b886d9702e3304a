"""Hyperparameters of several methods that tables and figures compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_ROUNDS = ("total_rounds", "rounds_per_eval", "decay_rounds")


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
            scale_rounds: Factor of the rounds: all, between evaluations, and of the decay.
            **own: Options such as the seed.
        """
        changes = {**self.changes.get(algorithm, {}), **own, "algorithm": algorithm}
        options = dataclasses.replace(self.options, **changes)
        rounds = {name: getattr(options, name, 0) for name in _ROUNDS}
        scaled = {
            name: max(1, round(scale_rounds * count)) for name, count in rounds.items() if count
        }
        return dataclasses.replace(options, **scaled)
