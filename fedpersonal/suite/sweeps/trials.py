"""The runs of a sweep: all are trained and validated; a few are then tested, once."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping

from fedpersonal.errors import TrainingError
from fedpersonal.evaluation.baselines import overall_metrics
from fedpersonal.files import read_json, write_json
from fedpersonal.suite.papers.jobs import Job, open_job
from fedpersonal.suite.sweeps.grid import Setting

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
        """Whether the run has been trained and validated."""
        return (self.run.path / _FILE).exists()

    @property
    def validation(self) -> Validation:
        """The result of the validation."""
        return Validation(**read_json(self.run.path / _FILE, checked=True))

    @property
    def output(self) -> pathlib.Path:
        """The file with the output of its processes."""
        return self.run.path / "output.log"


@dataclasses.dataclass(frozen=True)
class Validation:
    """The result of a run's validation.

    Attributes:
        metrics: Metrics of the validation clients after the last round.
        clients: A hash of these clients and of their labels.
        diverged: Why there are no metrics; empty if there are.
        guesses: Metrics of baselines on the same examples, by the baseline's name.
    """

    metrics: Mapping[str, float]
    clients: str = ""
    diverged: str = ""
    guesses: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)


def train(run: Job) -> None:
    """Trains a run and evaluates validation clients, never test clients."""
    from fedpersonal.suite.tasks.running import train_experiment

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
    baselines = overall_metrics(run.task.baselines(experiment, experiment.data.validation))
    query = experiment.data.validation.query
    # Options may change features, but not labels, so features do not count.
    hashed = dataclasses.replace(query, features={}).fingerprint()
    write_validation(run, Validation(metrics, hashed, guesses=baselines))


def write_validation(run: Job, validation: Validation) -> None:
    """Writes the result of a run's validation."""
    write_json(run.path / _FILE, validation, checked=True)


def test(run: Job) -> None:
    """Tests a trained run, and writes the files of a finished run."""
    from fedpersonal.suite.tasks.running import run_experiment

    experiment, opened = open_job(run)
    with opened as folder:
        run_experiment(experiment, folder, progress=False)
