"""The base model by itself, to compare FedPerC with."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.papers.runs import Run

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import TrainedModel


def test_base_model(run: Run, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Tests the base model alone on the query sets of FedPerC's run with the same seed.

    See `evaluate_alone`.
    """
    from fedpersonal.language_models.pretraining import NOTES
    from fedpersonal.tasks.report import test_summary
    from fedpersonal.tasks.utterances.base_model import evaluate_alone

    data = experiment.data
    results = evaluate_alone(
        data.base, experiment.model.frozen, data.test.query, experiment.evaluator
    )
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


def describe(summary: Mapping[str, Any]) -> str:
    """Returns what a base model is, of the summary that `test_base_model` gives."""
    if not summary["pretrained_here"]:
        return f"{summary['base']}."
    return (
        f"{summary['base']}; a small one that was pretrained here, on what users who do not take "
        "part have written. Its perplexities cannot be compared with those of the paper's "
        "DistilGPT2, of 82 million parameters and other tokens: only the order of the methods can."
    )
