"""Clients that drop out, lose their updates or come too late: what a run asks for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.simulation.clock import ClientClock

if TYPE_CHECKING:
    from fedpersonal.data.client_dataset import ClientDataset
    from fedpersonal.simulation.clients import ReadWhenDrawn


@dataclasses.dataclass(frozen=True)
class Participation:
    """What becomes of the clients of a round.

    Attributes:
        dropout_rate: The chance of each client drawn to drop out before it begins; see
            `ClientSampler`.
        lost_update_rate: The chance of each client that has done its work that its update is lost.
        over_selection: So many more clients are drawn, as a share of those wanted; the first ones
            that report are used.
        round_time_limit: Seconds after which a round ends: who reports later is late, and dropped.
            None for no limit.
        min_examples: Clients with fewer examples are never drawn.
        lost_clients_keep: Whether clients that have done their work, but whose update is not used,
            keep the local variables that they have trained, or those that they had.
        clock: How long a client's round takes.
    """

    dropout_rate: float = 0.0
    lost_update_rate: float = 0.0
    over_selection: float = 0.0
    round_time_limit: float | None = None
    min_examples: int = 0
    lost_clients_keep: bool = False
    clock: ClientClock = dataclasses.field(default_factory=ClientClock)

    def __post_init__(self):
        is_in_range = {
            "dropout_rate": 0 <= self.dropout_rate < 1,
            "lost_update_rate": 0 <= self.lost_update_rate < 1,
            "over_selection": 0 <= self.over_selection < math.inf,
            "round_time_limit": self.round_time_limit is None or self.round_time_limit > 0,
            "min_examples": self.min_examples >= 0,
        }
        for name, is_right in is_in_range.items():
            if not is_right:
                raise UserError(f"Participation: {name}={getattr(self, name)} is out of range.")
        limit = self.round_time_limit
        if limit is not None and limit <= self.clock.overhead_seconds:
            raise UserError(
                f"round_time_limit is {limit}: nobody reports so early, as the overhead alone is "
                f"{self.clock.overhead_seconds} seconds."
            )
        is_used = self.lost_update_rate or self.over_selection or limit is not None
        if self.lost_clients_keep and not is_used:
            raise UserError(
                "lost_clients_keep is of clients whose update is not used, of which there are none "
                "without lost_update_rate, over_selection or round_time_limit."
            )

    def check_draw(self, sampling: str, *, is_private: bool) -> None:
        """Raises a `UserError` if the draw of clients, or its accounting, does not allow it."""
        if self.over_selection and is_private:
            raise UserError(
                "over_selection uses the fastest clients, which is no random draw: leave it out, "
                "as the epsilon of differential privacy counts on one."
            )
        if self.over_selection and sampling != "fixed":
            raise UserError(
                "over_selection draws more clients than are wanted, and Poisson sampling wants no "
                "fixed number: sample with a fixed size, or leave it out."
            )

    def eligible(self, train: ClientDataset | ReadWhenDrawn) -> np.ndarray:
        """Returns the indices of the clients that may be drawn.

        Raises:
            UserError: If there are none, or how much they have is not known.
        """
        if not self.min_examples:
            return np.arange(train.num_clients)
        counts = count_examples(train)
        if counts is None:
            raise UserError(
                f"min_examples is {self.min_examples}, but these clients are read when they are "
                "drawn: how many examples they have is not known before."
            )
        found = np.flatnonzero(counts >= self.min_examples)
        if not found.size:
            raise UserError(
                f"min_examples is {self.min_examples}, but no client has more than {counts.max()}."
            )
        return found


def count_examples(train: ClientDataset | ReadWhenDrawn) -> np.ndarray | None:
    """Returns how many examples each client has, or None where they are read when drawn."""
    return getattr(train, "counts", None)
