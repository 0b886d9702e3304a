"""Runs of rating prediction in a sweep, each in a folder of its own."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedpersonal.datasets.movielens import load_movielens_1m, load_movielens_100k
from fedpersonal.datasets.ratings import Ratings
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.rating_experiment import RatingOptions, build_experiment, run_experiment
from fedpersonal.tasks.sweep import check_config, run_missing


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


@dataclasses.dataclass(frozen=True)
class RatingRun:
    """A run.

    Attributes:
        title: For people.
        path: Its folder.
        options: What it trains.
    """

    title: str
    path: pathlib.Path
    options: RatingOptions

    def is_done(self) -> bool:
        """Whether its summary is there."""
        return (self.path / "summary.json").exists()

    def test(self) -> dict[str, Any]:
        """Returns its results on the test users."""
        return json.loads((self.path / "summary.json").read_text(encoding="utf-8"))["test"]


def complete(
    runs: Sequence[RatingRun], load: Callable[[], Ratings], *, isolated: bool = True
) -> None:
    """Runs whatever is missing, one run after another.

    Args:
        runs: The runs.
        load: Loads the ratings, here and in each run's process.
        isolated: Whether each run has a process of its own, so that its memory comes back.

    Raises:
        UserError: If a folder holds another run, or training diverges.
    """
    name = load().name
    configs = [{**dataclasses.asdict(run.options), "dataset": name} for run in runs]
    for run, config in zip(runs, configs):
        check_config(run.path, config)
    for number, (run, config) in enumerate(zip(runs, configs), start=1):
        run_missing(
            run.title,
            number,
            len(runs),
            is_done=run.is_done,
            work=_run,
            arguments=(run, load, config),
            isolated=isolated,
        )


def _run(run: RatingRun, load: Callable[[], Ratings], config: Mapping[str, Any]) -> None:
    experiment = build_experiment(load(), run.options)
    run_experiment(experiment, RunFolder.open(run.path, config, ignore=()))
