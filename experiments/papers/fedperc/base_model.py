"""The base model by itself, to compare FedPerC with."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.runs import Run
from fedpersonal.tasks.utterances.task import the_same_for_all

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import TrainedModel


def test_base_model(run: Run, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Tests the base model alone on the query sets of FedPerC's run with the same seed.

    It stands behind its own embedding of a text's first token, as FedPerC's model does when all
    personal embeddings are 1.
    """
    from fedpersonal.language_models.pretraining import NOTES
    from fedpersonal.tasks.report import test_summary

    data = experiment.data
    evaluate = experiment.evaluation(data.test, (), brings_kept=True, with_before=False)
    results = evaluate(alone(experiment, trained, seed=run.options.seed))
    clients, tokens = results.per_client(), results.after["perplexity"][:, 1]
    num_parameters = sum(value.size for value in data.base.weights.values())
    config = data.base.config
    return {
        "by_samples": {"0": test_summary(results, results.overall())},
        "clients": {name: clients[name] for name in ("client", "perplexity_after")},
        "tokens": tokens,
        "base": f"{data.base.name}: {num_parameters:,} parameters, {config.n_layer} layers of "
        f"{config.n_embd}, {config.vocab_size:,} tokens",
        "pretrained_here": (pathlib.Path(data.base.source) / NOTES).exists(),
    }


def alone(experiment: Experiment, trained: TrainedModel, *, seed: int) -> TrainedModel:
    """Returns the base by itself in place of what FedPerC has trained."""
    local = experiment.model.local_variables
    return dataclasses.replace(
        trained,
        weights=experiment.model.initial_global_values(seed=seed),
        kept_by=the_same_for_all({v.name: np.ones(v.shape, np.float32) for v in local}),
    )


def describe(summary: Mapping[str, Any]) -> str:
    """Returns what a base model is, of the summary that `test_base_model` gives."""
    if not summary["pretrained_here"]:
        return f"{summary['base']}."
    return (
        f"{summary['base']}; a small one that was pretrained here, on what users who do not take "
        "part have written. Its perplexities cannot be compared with those of the paper's "
        "DistilGPT2, of 82 million parameters and other tokens: only the order of the methods can."
    )
