"""Whose embedding is it, measured on a run of FedPerC that has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from fedpersonal.tasks.utterances.experiment import WEIGHTS

from experiments.papers.fedperc.embedding_specificity import Kept, measure_specificity
from experiments.papers.fedperc.runs import RunOptions, UtteranceSource
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.data.texts.labelled import most_frequent_labels
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.utterances.data import finetuning_sets

FOLDER = "embeddings"


def embedding_run(trained: SummarizedRun) -> SummarizedRun:
    """Returns the run that measures a trained one, in a folder within its folder."""
    title = f"whose embedding, seed {trained.options.seed}"
    return SummarizedRun(title, trained.path / FOLDER, trained.options)


def compare_embeddings(
    run: SummarizedRun, source: UtteranceSource, config: Mapping[str, Any]
) -> None:
    """Measures `Specificity` on the test utterances of known users; the work of one run.

    The query sets are those of the trained run, and nothing is fine-tuned.
    """
    options: RunOptions = run.options
    experiment = source.untrained(options, split=options.split)
    data = experiment.data
    weights, kept = read_trained(run.path.parent, data.test.client_ids)
    support, query = finetuning_sets(data.test, num_samples=1, seed=options.seed)
    evaluate = experiment.evaluation(support, query, (), with_kept=True)
    contexts = most_frequent_labels(
        dataclasses.replace(data.train, labels=data.train.features["context"])
    )
    found = measure_specificity(
        lambda start: evaluate(weights, start), kept, contexts, seed=options.seed
    )
    RunFolder.open(run.path, config, ignore=()).write_summary(
        {
            **found.shares(),
            "num_users": found.num_users,
            "num_pairs": found.num_pairs,
            "own_loss": found.own,
            "others_losses": found.others,
        }
    )


def read_trained(folder: Any, client_ids: np.ndarray) -> tuple[dict[str, np.ndarray], Kept]:
    """Reads what a run has trained.

    Args:
        folder: The run's folder.
        client_ids: (n,) names of the clients that trained, in any order.

    Returns:
        Global variable's name to value; and who of the clients has kept anything, bool (n,), with
        local variable's name to (n, ...).
    """
    with np.load(folder / WEIGHTS) as file:
        place = {name: i for i, name in enumerate(file["clients"].tolist())}
        order = [place[str(name)] for name in client_ids]
        weights, local = (
            {
                name.split("/", 1)[1]: file[name]
                for name in file.files
                if name.startswith(f"{prefix}/")
            }
            for prefix in ("global", "local")
        )
        known = file["known"][order]
    return weights, (known, {name: value[order] for name, value in local.items()})
