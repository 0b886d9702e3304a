"""A run in which nothing is learned."""

from __future__ import annotations

from fedpersonal.errors import TrainingError
from fedpersonal.simulation.callbacks.callback import Callback, Run

# So many rounds without a usable update are enough to know.
_ENOUGH = 10


class LearningCheck(Callback):
    """Ends a run that has learned nothing: no update was finite, or nobody reported any.

    Attributes:
        has_learned: Whether a client's update was used in any round so far.
        rounds_lost: The rounds so far that lost updates and used none.
    """

    remembers = ("has_learned", "rounds_lost")
    has_learned = False
    rounds_lost = 0

    def on_round_end(self, run: Run) -> None:
        """Counts, and complains after 10 rounds or at the end.

        Raises:
            TrainingError: All updates of all rounds so far were dropped or lost.
        """
        dropped = run.metrics.get("train/num_dropped_updates", 0)
        used = run.metrics.get("train/num_examples", 1)
        self.has_learned = bool(self.has_learned or used > 0)
        nobody = bool(run.metrics.get("num_drawn")) and not run.metrics["num_reported"]
        self.rounds_lost += bool((dropped > 0 or nobody) and not used)
        is_time = self.rounds_lost >= _ENOUGH or run.round_number == run.total_rounds
        if not self.rounds_lost or not is_time or self.has_learned:
            return
        if nobody:
            raise TrainingError(
                f"Nothing was learned in rounds 1 to {run.round_number}: no client reported. Raise "
                "round_time_limit, or drop fewer clients, and start a new run."
            )
        raise TrainingError(
            f"Nothing was learned in rounds 1 to {run.round_number}: every client's update was "
            "infinite or NaN, and was dropped. Lower the learning rates, or look for NaN and huge "
            "numbers in the data, and start a new run."
        )
