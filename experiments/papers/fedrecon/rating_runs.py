"""Runs of rating prediction in a sweep, each in a folder of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpersonal.tasks.ratings.experiment import build_experiment, run_experiment

from experiments.papers import summarized_runs
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.data.ratings.movielens import load_movielens_1m, load_movielens_100k
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.simulation.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class MovieLens:
    """MovieLens-1M from a folder, or MovieLens-100K, which is installed.

    Attributes:
        folder: The folder of MovieLens-1M, or None.
    """

    folder: str | None = None

    def __call__(self) -> Ratings:
        """Loads the ratings."""
        return load_movielens_1m(self.folder) if self.folder else load_movielens_100k()


def complete(
    runs: Sequence[SummarizedRun], load: Callable[[], Ratings], *, isolated: bool = True
) -> None:
    """Runs whatever is missing, one run after another.

    Args:
        runs: The runs, of `RatingOptions`.
        load: Loads the ratings, here and in each run's process.
        isolated: Whether each run has a process of its own.

    Raises:
        UserError: If a folder holds another run, or training diverges.
    """
    about = {"dataset": load().name}
    summarized_runs.complete(runs, _run, load, about, isolated=isolated)


def _run(run: SummarizedRun, load: Callable[[], Ratings], config: Mapping[str, Any]) -> None:
    experiment = build_experiment(load(), run.options)
    run_experiment(experiment, RunFolder.open(run.path, config, ignore=()))
