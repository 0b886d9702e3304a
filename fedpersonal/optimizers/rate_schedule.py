"""Learning rates that change from round to round.

Constant rates leave every client's local variables where its last step threw them; rates that
shrink let them settle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

# A schedule is told in options, before anything slow is imported.
if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff

    from fedpersonal.optimizers.keras import AnyOptimizer

    Values = Mapping[str, tf.Tensor]
    Specs = Mapping[str, tf.TensorSpec]
    State = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class LinearDecay:
    """Learning rates that fall in a straight line, from the first round to the last.

    Attributes:
        total_rounds: Rounds until they reach `end`; from there on they stay.
        end: Their share at the end, in [0, 1].
    """

    total_rounds: int
    end: float = 0.0

    def __post_init__(self):
        if self.total_rounds < 1:
            raise ValueError(
                f"LinearDecay: total_rounds must be at least 1, not {self.total_rounds}."
            )
        if not 0.0 <= self.end <= 1.0:
            raise ValueError(f"LinearDecay: end must be in [0, 1], not {self.end}.")

    def __call__(self, round_number: tf.Tensor) -> tf.Tensor:
        """Maps a round's number, from 0, to the share of the learning rates, float32."""
        import tensorflow as tf

        past = tf.minimum(tf.cast(round_number, tf.float32) / self.total_rounds, 1.0)
        return 1.0 - (1.0 - self.end) * past


@dataclasses.dataclass(frozen=True)
class ScheduledOptimizer:
    """An optimizer of a phase, whose learning rate depends on the round.

    Outside a round, in evaluation, it has its full rate.

    Attributes:
        optimizer: One of TFF's, whose state holds its learning rate, or of Keras'.
        schedule: Maps the round's number, from 0, to the share of the rate, such as `LinearDecay`.
        share: That of a round, which `at_round` gives it.
    """

    optimizer: AnyOptimizer
    schedule: Callable[[tf.Tensor], tf.Tensor]
    share: tf.Tensor | None = dataclasses.field(default=None, compare=False)

    def at_round(self, round_number: tf.Tensor) -> ScheduledOptimizer:
        """Returns the optimizer with the rate of a round, an int32 tensor."""
        return dataclasses.replace(self, share=self.schedule(round_number))

    def initialize(self, specs: Specs) -> State:
        """As the optimizer's own."""
        state = self._at_full_rate.initialize(specs)
        if self.share is None:
            return state
        if "learning_rate" not in state:
            raise ValueError(f"{self.optimizer} has no learning rate that can be scheduled.")
        return {**state, "learning_rate": state["learning_rate"] * self.share}

    def next(self, state: State, weights: Values, gradients: Values) -> tuple[State, Values]:
        """As the optimizer's own."""
        return self._at_full_rate.next(state, weights, gradients)

    @property
    def _at_full_rate(self) -> tff.learning.optimizers.Optimizer:
        from fedpersonal.optimizers.keras import as_tff_optimizer

        return as_tff_optimizer(self.optimizer)
