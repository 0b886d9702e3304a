"""The runs of a sweep: each is trained and validated; some are tested, once, when that is done."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping

from experiments.papers.jobs import Job, open_job
from experiments.sweeping.grid import Setting
from fedpersonal.errors import TrainingError
from fedpersonal.evaluation.guess import overall
from fedpersonal.files import read_json, write_json

_FILE = "validation.json"
_EVAL = "eval/"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A setting with a seed.

    Attributes:
        setting: The setting.
        seed: The seed.
        run: Its run.
    """

    setting: Setting
    seed: int
    run: Job

    @property
    def is_validated(self) -> bool:
        """Whether it has been trained and validated."""
        return (self.run.path / _FILE).exists()

    @property
    def validation(self) -> Validation:
        """What came of that."""
        return Validation(**read_json(self.run.path / _FILE, checked=True))

    @property
    def output(self) -> pathlib.Path:
        """The file with what its processes have printed."""
        return self.run.path / "output.log"


@dataclasses.dataclass(frozen=True)
class Validation:
    """What the validation of a run came to.

    Attributes:
        metrics: Metrics of the validation clients after the last round.
        clients: A hash of these clients and of what is predicted of them.
        diverged: Why there are none; empty where there are.
        guesses: What they must beat, by the guess' name, on the same examples.
    """

    metrics: Mapping[str, float]
    clients: str = ""
    diverged: str = ""
    guesses: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)


def train(run: Job) -> None:
    """Trains a run and evaluates validation clients, never test clients."""
    from fedpersonal.tasks.running import train_experiment

    experiment, folder = open_job(run)
    try:
        with folder, train_experiment(experiment, folder, progress=False) as trained:
            if experiment.method.trains:
                last = folder.metrics.iloc[-1]
                named = {n: last[n] for n in last.index if n.startswith(_EVAL)}
                metrics = {n.removeprefix(_EVAL): float(v) for n, v in named.items()}
            else:
                metrics = run.task.validate(experiment)(trained).overall()
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise TrainingError(f"{name} of validation clients is {value}.")
    except TrainingError as error:
        write_validation(run, Validation({}, diverged=str(error)))
        return
    guesses = overall(run.task.guesses(experiment, experiment.data.validation))
    query = experiment.data.validation.query
    # Features may be what options make of them; what is predicted must be the same.
    hashed = dataclasses.replace(query, features={}).fingerprint()
    write_validation(run, Validation(metrics, hashed, guesses=guesses))


def write_validation(run: Job, validation: Validation) -> None:
    """Writes what the validation of a run came to."""
    write_json(run.path / _FILE, validation, checked=True)


def test(run: Job) -> None:
    """Tests a run that was trained, and writes what any run has in the end."""
    from fedpersonal.tasks.running import run_experiment

    experiment, opened = open_job(run)
    with opened as folder:
        run_experiment(experiment, folder, progress=False)
