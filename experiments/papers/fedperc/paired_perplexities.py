"""By how much FedPerC's rivals differ from it and from the base model, user by user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.papers import differences
from experiments.papers.result_table import Cell, Cells, ResultTable
from experiments.papers.runs import Run
from fedpersonal.evaluation.client_metric import ClientMetric

BASE, OURS = "base_model", "fedperc"
_ABOUT = (
    "By how many per cent perplexity after all samples is higher than the base model's, and than "
    f"FedPerC's. {differences.ABOUT}"
)
_LOG = ClientMetric("perplexity_after", weights="num_tokens", to_mean=np.log)


def paired_table(
    name: str, runs: Mapping[tuple[str, str], Sequence[Run]], titles: Mapping[str, str]
) -> list[str | ResultTable]:
    """Returns the differences of each method, and what they are.

    Args:
        name: The data set's.
        runs: By method, and by `seen` or `unseen` users: a run a seed.
        titles: The methods' titles; the base model's is among them.
    """
    cells: Cells = {title: {} for method, title in titles.items() if method != BASE}
    for (method, users), own in runs.items():
        for other in (BASE, OURS) if method != BASE else ():
            if other != method:
                others = _clients(other, runs[other, users])
                found = differences.difference(_clients(method, own), others, _LOG)
                column = f"{users} users, than {titles[other]}"
                cells[titles[method]][column] = _in_per_cent(found)
    return [_ABOUT, ResultTable(f"{name}_paired", cells)]


def _clients(method: str, runs: Sequence[Run]) -> list[pd.DataFrame]:
    """Returns each test user's perplexity and tokens, a table a seed."""
    if method != BASE:
        return [run.record.per_client for run in runs]
    return [
        pd.DataFrame({**run.summary["clients"], "num_tokens": run.summary["tokens"]})
        for run in runs
    ]


def _in_per_cent(found: Cell[float]) -> Cell[float]:
    """Returns by how many per cent perplexity differs, given differences of its logarithm."""
    values = tuple(float(100 * np.expm1(value)) for value in found.values)
    if found.interval is None:
        return Cell(values)
    low, high = (float(100 * np.expm1(end)) for end in found.interval)
    return Cell(values, interval=(low, high))
