"""Runs on utterances in a sweep, each in a folder of its own, all around one base model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.papers import summarized_runs
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.language_models.base_model import BaseModel, load_base_model
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.run_report import test_summary
from fedpersonal.tasks.utterances.choice import UtteranceChoice
from fedpersonal.tasks.utterances.data import UtteranceData, finetuning_sets
from fedpersonal.tasks.utterances.experiment import (
    UtteranceExperiment,
    UtteranceOptions,
    build_experiment,
    encode_with,
    run_experiment,
)
from fedpersonal.tasks.utterances.methods import build_model, freeze

SPLITS = ("known", "withheld")


@dataclasses.dataclass(frozen=True)
class RunOptions(UtteranceOptions):
    """The options of one run.

    Attributes:
        split: `known` or `withheld`, as of the data.
    """

    split: str = "known"


def run_options(options: UtteranceOptions, *, split: str) -> RunOptions:
    """Returns the options of one run.

    Args:
        options: Those of the experiment.
        split: One of `SPLITS`.
    """
    return RunOptions(**dataclasses.asdict(options), split=split)


@dataclasses.dataclass(frozen=True)
class UntrainedOptions:
    """What the base model by itself is tested on.

    Attributes:
        split: `known` or `withheld`.
        seed: Seed of the split and of the query sets, as of the runs that it is compared with.
    """

    split: str
    seed: int


@dataclasses.dataclass(frozen=True)
class UtteranceSource:
    """Which utterances and which base model, as something that can be handed to another process.

    Attributes:
        choice: The utterances.
        base_model: The base model's folder, or its name on the hub.
        frozen_folder: Where its weights are put for the workers of all runs.
        text_length: Tokens of an utterance.
        too_long: What becomes of utterances with more: `cut` or `error`.
    """

    choice: UtteranceChoice
    base_model: str
    frozen_folder: str
    text_length: int = 32
    too_long: str = "cut"

    def describe(self, base: BaseModel) -> dict[str, Any]:
        """Returns what tells the data and the base model from others."""
        return {
            **self.choice.describe(),
            "base_model": base.name,
            "text_length": self.text_length,
            "too_long": self.too_long,
        }

    def load_base(self) -> BaseModel:
        """Loads the base model."""
        return load_base_model(self.base_model)

    def load_data(self, base: BaseModel, *, split: str, seed: int) -> UtteranceData:
        """Loads and splits the utterances.

        Args:
            base: The base model, whose tokens they become.
            split: One of `SPLITS`.
            seed: Seed of the split.
        """
        return self.choice.load(
            encode_with(base),
            withheld=split == "withheld",
            length=self.text_length,
            padding=0,
            end=base.config.eos_token_id,
            too_long=self.too_long,
            seed=seed,
        )

    def experiment(self, options: UtteranceOptions, *, split: str) -> UtteranceExperiment:
        """Loads all and builds the experiment.

        Args:
            options: Its options; their seed is that of the split, too.
            split: One of `SPLITS`.
        """
        data, base = self._load(split, options.seed)
        return build_experiment(data, base, options, frozen_folder=self.frozen_folder)

    def untrained(self, options: UtteranceOptions, *, split: str) -> UtteranceExperiment:
        """Loads all for evaluations alone: the experiment has no training process.

        Args:
            options: Its options; their seed is that of the split, too.
            split: One of `SPLITS`.
        """
        data, base = self._load(split, options.seed)
        model = build_model(
            options.algorithm,
            base,
            freeze(base, self.frozen_folder),
            num_contexts=data.num_contexts,
            history_length=options.history_length,
        )
        return UtteranceExperiment(options, data, base, model, training=None)

    def _load(self, split: str, seed: int) -> tuple[UtteranceData, BaseModel]:
        base = self.load_base()
        return self.load_data(base, split=split, seed=seed), base


def train(run: SummarizedRun, source: UtteranceSource, config: Mapping[str, Any]) -> None:
    """Does the work of one run with `RunOptions`."""
    experiment = source.experiment(run.options, split=run.options.split)
    run_experiment(experiment, RunFolder.open(run.path, config, ignore=()))


def evaluate_untrained(
    run: SummarizedRun, source: UtteranceSource, config: Mapping[str, Any]
) -> None:
    """Tests the base model by itself; the work of one run with `UntrainedOptions`.

    It stands behind its own embedding of a text's first token, as FedPerC's model does when all
    personal embeddings are 1. The query sets are those of the runs with the same seed.
    """
    options = UtteranceOptions(algorithm="fedperc", seed=run.options.seed)
    experiment = source.untrained(options, split=run.options.split)
    model, test = experiment.model, experiment.data.test
    support, query = finetuning_sets(test, num_samples=1, seed=options.seed)
    evaluate = experiment.evaluation(support, query, (), with_kept=True)
    ones = {
        v.name: np.ones([test.num_clients, *v.shape], np.float32) for v in model.local_variables
    }
    results = evaluate(
        model.initial_global_values(seed=options.seed), (np.ones(test.num_clients, bool), ones)
    )
    RunFolder.open(run.path, config, ignore=()).write_summary(
        {"by_samples": {"0": test_summary(results, results.overall())}}
    )


def complete(
    runs: Sequence[SummarizedRun],
    source: UtteranceSource,
    work: Callable[[SummarizedRun, Any, Mapping[str, Any]], None],
    *,
    isolated: bool = True,
) -> None:
    """Runs whatever is missing, one run after another.

    Args:
        runs: The runs.
        source: Their utterances and base model.
        work: `train`, `evaluate_untrained` or another function of a module that ends a run with its
            summary.
        isolated: Whether each run has a process of its own.

    Raises:
        UserError: If a folder holds another run, the data or the base model cannot be read, or
            training diverges.
    """
    about = source.describe(source.load_base())
    summarized_runs.complete(runs, work, source, about, isolated=isolated)
