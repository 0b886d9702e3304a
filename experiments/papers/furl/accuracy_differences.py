"""How far the rows of Table 3 are from Personalized FL, user by user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.papers import differences
from experiments.papers.differences import ClientMetric
from experiments.papers.result_table import Cells, ResultTable
from experiments.papers.runs import Run
from fedpersonal.data.texts.labelled import LabelledTexts, most_frequent_labels
from fedpersonal.tasks.documents.data import DocumentData
from fedpersonal.tasks.documents.task import TASK

GUESS = "A user's most frequent label"
_METRIC = ClientMetric("accuracy_after", scale=100)
_CAPTION = "{}: accuracy minus that of {}, in points, on the same texts of the users who train:"


def difference_table(
    source: LabelledTexts, runs: Mapping[str, Sequence[Run]], reference: str
) -> list[ResultTable]:
    """Returns the differences of accuracy from one row, with intervals.

    An AUC is of all users' texts together, and no sum over users: accuracy takes its place.

    Args:
        source: The texts.
        runs: The runs of each row, by its name, which have clients.
        reference: The row that the others are compared with; nothing is if it is missing.
    """
    if reference not in runs:
        return []
    tables = {name: [run.record.per_client for run in own] for name, own in runs.items()}
    tables[GUESS] = [
        guess_by_client(TASK.split(source, TASK.options(**run.options.values())))
        for run in runs[reference]
    ]
    cells: Cells = {
        name: {"accuracy": differences.difference(own, tables[reference], _METRIC)}
        for name, own in tables.items()
        if name != reference
    }
    caption = _CAPTION.format(source.name, reference)
    return [ResultTable(f"{source.name}_differences", cells, caption)]


def guess_by_client(data: DocumentData) -> pd.DataFrame:
    """Returns each test user's accuracy, in [0, 1], of naming their most frequent label."""
    query, whose = data.test.query, data.test.query.example_clients
    is_right = query.labels == most_frequent_labels(data.test.support)[whose]
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(whose, is_right, query.num_clients) / query.counts
    table = {"client": query.client_ids, "num_examples": query.counts, "accuracy_after": accuracy}
    return pd.DataFrame(table)[query.counts > 0]
