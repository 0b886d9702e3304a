"""The base model by itself, to compare FedPerC with."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.runs import Run

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment, Kept, Trained


def test_base_model(run: Run, experiment: Experiment, trained: Trained) -> dict[str, Any]:
    """Tests the base model alone on the query sets of FedPerC's run with the same seed.

    It stands behind its own embedding of a text's first token, as FedPerC's model does when all
    personal embeddings are 1.
    """
    from fedpersonal.tasks.experiment import Trained
    from fedpersonal.tasks.report import test_summary
    from fedpersonal.tasks.utterances.base_model import NOTES

    del trained
    model, base = experiment.model, experiment.data.base

    def ones(client_ids: np.ndarray) -> Kept:
        shapes = {v.name: [len(client_ids), *v.shape] for v in model.local_variables}
        values = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        return np.ones(len(client_ids), bool), values

    untrained = Trained(model.initial_global_values(seed=run.options.seed), ones)
    evaluate = experiment.evaluation(experiment.data.test, (), brings_kept=True, with_before=False)
    results = evaluate(untrained)
    return {
        "by_samples": {"0": test_summary(results, results.overall())},
        "base": {
            "name": base.name,
            "num_parameters": sum(value.size for value in base.weights.values()),
            "num_layers": base.config.n_layer,
            "dim": base.config.n_embd,
            "num_tokens": base.config.vocab_size,
            "pretrained_here": (pathlib.Path(base.source) / NOTES).exists(),
        },
    }


def describe(base: Mapping[str, Any]) -> str:
    """Returns what a base model is, of the facts that `test_base_model` tells."""
    sizes = (
        f"{base['name']}: {base['num_parameters']:,} parameters, {base['num_layers']} layers of "
        f"{base['dim']}, {base['num_tokens']:,} tokens"
    )
    if not base["pretrained_here"]:
        return f"{sizes}."
    return (
        f"{sizes}; a small one that was pretrained here, on what users who do not take part have "
        "written. Its perplexities cannot be compared with those of the paper's DistilGPT2, of 82 "
        "million parameters and other tokens: only the order of the methods can."
    )
