"""A run in which nothing is learned, or not from all clients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tqdm

from fedpersonal.errors import TrainingError, listed
from fedpersonal.simulation.callbacks.callback import Callback, Run

# So many rounds without a usable update, and so many updates after others were usable, are enough
# to know.
_ENOUGH = 10


class LearningCheck(Callback):
    """Ends a run that learns nothing: no update is finite, or nobody reports any.

    Attributes:
        has_learned: Whether a client's update was used in any round so far.
        rounds_lost: The rounds so far that lost updates and used none.
        updates_lost: The updates that were dropped since one was used.
        has_warned: Whether the user knows that updates are dropped.
        dropped: The first clients whose updates were dropped, where they are known.
    """

    remembers = ("has_learned", "rounds_lost", "updates_lost", "has_warned")
    has_learned = False
    rounds_lost = 0
    updates_lost = 0
    has_warned = False
    dropped: Sequence[str] = ()

    def on_round_end(self, run: Run) -> None:
        """Counts, warns of the first updates that are dropped, and complains when it is time.

        Raises:
            TrainingError: Weights are not finite, nothing was learned in 10 rounds or until the
                end, or 10 updates in a row were dropped after others were used.
        """
        dropped = run.metrics.get("train/num_dropped_updates", 0)
        used = run.metrics.get("train/num_examples", 1)
        self.has_learned = bool(self.has_learned or used > 0)
        self.updates_lost = 0 if used else self.updates_lost + int(dropped)
        nobody = bool(run.metrics.get("num_drawn")) and not run.metrics["num_reported"]
        self.rounds_lost += bool((dropped > 0 or nobody) and not used)
        is_last = run.round_number == run.total_rounds
        is_broken = (is_last or self.updates_lost) and not _is_finite(run.state)
        if self.has_learned and (is_broken or self.updates_lost >= _ENOUGH):
            what = "shared weights are" if is_broken else "all clients' updates are"
            raise TrainingError(
                f"The training has diverged: {what} infinite or NaN in round {run.round_number}; "
                "start a new run with a lower learning rate."
            )
        if self.rounds_lost and not self.has_learned and (self.rounds_lost >= _ENOUGH or is_last):
            raise TrainingError(_nothing_learned(run.round_number, nobody=nobody))
        if dropped and not self.has_warned:
            self.has_warned = True
            names = f", such as {listed(self.dropped)}" if len(self.dropped) else ""
            tqdm.tqdm.write(
                f"warning: in round {run.round_number}, {int(dropped)} of the clients' updates are "
                f"infinite or NaN, and left out{names}: look for NaN and huge numbers in the data, "
                "or lower the learning rates. Later rounds count them in num_dropped_updates alone",
                file=sys.stderr,
            )


def _nothing_learned(round_number: int, *, nobody: bool) -> str:
    start = f"Nothing was learned in rounds 1 to {round_number}: "
    if nobody:
        return start + (
            "no client reported. Raise round_time_limit, or drop fewer clients, and start a new "
            "run."
        )
    return start + (
        "every client's update was infinite or NaN, and was dropped. Lower the learning rates, or "
        "look for NaN and huge numbers in the data, and start a new run."
    )


def _is_finite(state: Any) -> bool:
    """Tells whether the weights of TFF's states are; of other states nothing is known."""
    weights = getattr(getattr(state, "global_model_weights", None), "trainable", {})
    return all(np.isfinite(value).all() for value in dict(weights).values())
