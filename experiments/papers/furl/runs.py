"""Runs of document classification in a sweep, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers import summarized_runs
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.documents.choice import DocumentChoice
from fedpersonal.tasks.documents.experiment import EMBEDDINGS, build_experiment, run_experiment


def complete(
    runs: Sequence[SummarizedRun], choice: DocumentChoice, *, isolated: bool = True
) -> None:
    """Runs whatever is missing, one run after another.

    Args:
        runs: The runs, of `DocumentOptions`.
        choice: Their texts.
        isolated: Whether each run has a process of its own.

    Raises:
        UserError: If a folder holds another run, or training diverges.
    """
    summarized_runs.complete(runs, _run, choice, choice.describe(), isolated=isolated)


def _run(run: SummarizedRun, choice: DocumentChoice, config: Mapping[str, Any]) -> None:
    experiment = build_experiment(choice.load(seed=run.options.seed), run.options)
    run_experiment(experiment, RunFolder.open(run.path, config, ignore=()))


def validation_curve(run: SummarizedRun) -> pd.Series:
    """Returns the validation accuracy by the round after which it was measured."""
    table = pd.read_csv(run.path / "metrics.csv").set_index("round")
    return table["eval/accuracy"].dropna()


def user_embeddings(run: SummarizedRun) -> pd.DataFrame:
    """Returns the embeddings of the users who have one, a row a user, by the user's name."""
    with np.load(run.path / EMBEDDINGS) as file:
        known = file["known"]
        return pd.DataFrame(file["embeddings"][known], index=file["users"][known])
