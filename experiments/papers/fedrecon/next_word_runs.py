"""Training runs of next word prediction, each evaluated with the methods that train like it.

A run's folder keeps `training.json`, written when training has ended, and a file
`test_<algorithm>.json` for each method; what is there is not done again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from fedpersonal.tasks.next_word.choice import TextChoice
from fedpersonal.tasks.next_word.experiment import (
    NextWordExperiment,
    NextWordOptions,
    build_experiment,
    train,
)
from fedpersonal.tasks.next_word.methods import LOCAL_LAYER, build_personalization
from fedpersonal.tasks.run_report import test_summary

from experiments.papers.communication import Communication, measure_communication
from experiments.papers.sweep import check_config, run_missing
from fedpersonal.atomic_files import write_json
from fedpersonal.errors import UserError
from fedpersonal.simulation.run_folder import RunFolder

METRIC = "accuracy_without_oov_or_eos"
METRIC_AMONG_KNOWN = "accuracy_among_known"
# These say nothing of training, the latter if nothing is rebuilt in it.
_FINETUNING = ("finetuning_learning_rate", "finetuning_epochs", "max_finetuning_steps")
_RECONSTRUCTION = (
    "reconstruction_learning_rate",
    "reconstruction_epochs",
    "max_reconstruction_steps",
)


@dataclasses.dataclass(frozen=True)
class NextWordRun:
    """A training run and its evaluations.

    Attributes:
        title: For people.
        path: Its folder.
        options: What it trains, settled.
        evaluations: Options of the methods to evaluate on the test clients.
    """

    title: str
    path: pathlib.Path
    options: NextWordOptions
    evaluations: tuple[NextWordOptions, ...] = ()

    def __post_init__(self):
        own = _training_options(self.options)
        for other in self.evaluations:
            differing = [k for k, v in _training_options(other).items() if own[k] != v]
            if differing:
                raise ValueError(
                    f"{other.algorithm} cannot be evaluated from a run of {self.options.algorithm}:"
                    f" they train differently, by {', '.join(differing)}."
                )

    @property
    def may_differ(self) -> tuple[str, ...]:
        """Options that may change between its sessions: those that it does not read."""
        own = _read_by_evaluation(self.options)
        return tuple(name for name in _ignored_by_training(self.options) if name not in own)

    def training(self) -> dict[str, Any]:
        """Returns what `training.json` holds."""
        return json.loads((self.path / "training.json").read_text(encoding="utf-8"))

    def communication(self) -> Communication:
        """Returns what a client receives and sends in a round."""
        return Communication(**self.training()["communication"])

    def test(self, algorithm: str) -> dict[str, Any]:
        """Returns a method's results on the test clients."""
        return json.loads(self._test_path(algorithm).read_text(encoding="utf-8"))["test"]

    def curve(self) -> pd.DataFrame:
        """Returns the evaluated rounds with columns `round` and `accuracy`, of validation."""
        table = pd.read_csv(self.path / "metrics.csv")
        table = table[["round", f"eval/{METRIC}"]].dropna()
        return table.rename(columns={f"eval/{METRIC}": "accuracy"})

    def is_trained(self) -> bool:
        """Whether training has ended."""
        return (self.path / "training.json").exists()

    def missing(self) -> list[NextWordOptions]:
        """Returns the evaluations that are not there, or were made with other options."""
        return [options for options in self.evaluations if not self._is_evaluated(options)]

    def write_test(self, options: NextWordOptions, test: Mapping[str, Any]) -> None:
        """Keeps a method's results."""
        write_json(
            self._test_path(options.algorithm), {"options": _evaluated(options), "test": test}
        )

    def _test_path(self, algorithm: str) -> pathlib.Path:
        return self.path / f"test_{algorithm}.json"

    def _is_evaluated(self, options: NextWordOptions) -> bool:
        path = self._test_path(options.algorithm)
        if not path.exists():
            return False
        return json.loads(path.read_text(encoding="utf-8"))["options"] == _evaluated(options)


def complete(runs: Sequence[NextWordRun], choice: TextChoice, *, isolated: bool = True) -> None:
    """Trains and evaluates whatever is missing, one run after another.

    Args:
        runs: The runs.
        choice: Their sentences.
        isolated: Whether each has a process of its own, so that its memory comes back.

    Raises:
        UserError: If a folder holds another run, or training diverges.
    """
    about = choice.describe()
    configs = [{**dataclasses.asdict(run.options), **about} for run in runs]
    for run, config in zip(runs, configs):
        check_config(run.path, config, ignore=run.may_differ)
    for number, (run, config) in enumerate(zip(runs, configs), start=1):
        run_missing(
            run.title,
            number,
            len(runs),
            is_done=lambda run=run: run.is_trained() and not run.missing(),
            work=_complete_run,
            arguments=(run, choice, config),
            isolated=isolated,
        )


def _complete_run(run: NextWordRun, choice: TextChoice, config: Mapping[str, Any]) -> None:
    experiment = build_experiment(choice.load(run.options), run.options)
    folder = RunFolder.open(run.path, config, ignore=run.may_differ)
    result = train(experiment, folder)
    communication = measure_communication(
        experiment.model, experiment.training.crossings, local_layer=LOCAL_LAYER
    )
    write_json(
        run.path / "training.json",
        {
            "rounds": run.options.total_rounds,
            "clients_per_round": min(
                run.options.clients_per_round, experiment.data.train.num_clients
            ),
            "communication": dataclasses.asdict(communication),
            "vocabulary_coverage": experiment.data.coverage,
            "train_wall_seconds": result.train_wall_seconds,
            "median_round_seconds": result.median_round_seconds,
        },
    )
    weights = result.state.global_model_weights.trainable
    for options in run.missing():
        print(f"evaluating {options.algorithm} on the test users", flush=True)
        run.write_test(options, _evaluate(experiment, weights, options))


def _evaluate(
    experiment: NextWordExperiment, weights: Mapping[str, Any], options: NextWordOptions
) -> dict[str, Any]:
    results = experiment.evaluation("test", build_personalization(options.method, options))(weights)
    overall = results.overall()
    if results.num_examples.sum() == 0:
        raise UserError("no test user has enough sentences for a query set.")
    if not math.isfinite(overall["loss"]):
        raise UserError(f"the test loss of {options.algorithm} is not finite; lower its rates.")
    return test_summary(results, overall)


def _training_options(options: NextWordOptions) -> dict[str, Any]:
    """The options, and the kind of training in place of the algorithm's name."""
    values = {**dataclasses.asdict(options), "algorithm": options.method.rebuilds}
    return {k: v for k, v in values.items() if k not in _ignored_by_training(options)}


def _evaluated(options: NextWordOptions) -> dict[str, Any]:
    """The options that only evaluation reads; the others are the run's."""
    return {name: getattr(options, name) for name in _read_by_evaluation(options)}


def _ignored_by_training(options: NextWordOptions) -> tuple[str, ...]:
    return _FINETUNING if options.method.rebuilds else (*_FINETUNING, *_RECONSTRUCTION)


def _read_by_evaluation(options: NextWordOptions) -> tuple[str, ...]:
    """What `build_personalization` reads beside the options of training."""
    fine_tunes = options.method.fine_tunes
    if fine_tunes is None:
        return ()
    return _RECONSTRUCTION if fine_tunes == (LOCAL_LAYER,) else _FINETUNING
