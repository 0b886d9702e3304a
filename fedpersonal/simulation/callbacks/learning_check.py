"""A run in which nothing is learned."""

from __future__ import annotations

from fedpersonal.errors import UserError
from fedpersonal.simulation.callbacks.callback import Callback, Run

# So many rounds without a usable update are enough to know.
_ENOUGH = 10


class LearningCheck(Callback):
    """Ends a run that has learned nothing, as no update of any client was finite.

    Attributes:
        has_learned: Whether a client's update was used in any round so far.
        rounds_lost: The rounds so far that dropped updates and used none.
    """

    remembers = ("has_learned", "rounds_lost")
    has_learned = False
    rounds_lost = 0

    def on_round_end(self, run: Run) -> None:
        """Counts, and complains after 10 rounds or at the end.

        Raises:
            UserError: All updates of all rounds so far were dropped.
        """
        dropped = run.metrics.get("train/num_dropped_updates", 0)
        used = run.metrics.get("train/num_examples", 1)
        self.has_learned = bool(self.has_learned or used > 0)
        self.rounds_lost += bool(dropped > 0 and not used)
        is_time = self.rounds_lost >= _ENOUGH or run.round_number == run.total_rounds
        if self.rounds_lost and is_time and not self.has_learned:
            raise UserError(
                f"Nothing was learned in rounds 1 to {run.round_number}: every client's update was "
                "infinite or NaN, and was dropped. Lower the learning rates, or look for NaN and "
                "huge numbers in the data, and start a new run."
            )
