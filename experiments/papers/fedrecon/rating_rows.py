"""What tables of ratings share: cells of runs, and rows of guesses without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.papers.reproduction import Reproduction
from experiments.papers.result_table import Cell, Cells, Column, over_seeds
from experiments.papers.runs import Run
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.evaluation.client_metric import ClientMetric
from fedpersonal.options import Value
from fedpersonal.tasks.ratings.guesses import guess_ratings, score_guess
from fedpersonal.tasks.ratings.task import TASK

RMSE, ACCURACY = "RMSE", "accuracy %"
METRICS = {
    RMSE: ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt),
    ACCURACY: ClientMetric("accuracy_after", scale=100.0),
}


def rating_cells(
    runs: Sequence[Run], published: Mapping[str, float] | None = None
) -> dict[Column, Cell]:
    """Returns the figures of a row's runs, and the paper's by column."""
    known = published or {}
    return {
        RMSE: over_seeds(runs, "test", "rmse", published=known.get(RMSE)),
        ACCURACY: over_seeds(runs, "test", "accuracy", scale=100, published=known.get(ACCURACY)),
    }


def add_guesses(
    cells: Cells, asked: Reproduction, source: Ratings, preset: str, *, note: str = "", **own: Value
) -> dict[str, list[pd.DataFrame]]:
    """Adds rows of guesses.

    Args:
        cells: The table's, to which they are added.
        asked: What is asked.
        source: The ratings.
        preset: The preset that splits them.
        note: Follows the columns' names.
        **own: Options of the split.

    Returns:
        Their clients by the row's name, as of `RunRecord.per_client`, a table a seed.
    """
    tables: dict[str, list[pd.DataFrame]] = {}
    for seed in asked.seeds:
        values = asked.values(TASK, preset, **own, seed=seed)
        data = TASK.split(source, TASK.options(**values))
        query = data.test.query
        for name, predictions in guess_ratings(data, data.test).items():
            found = score_guess(query, predictions).clients
            table = {"client": query.client_ids, "num_examples": query.counts}
            clients = pd.DataFrame({**table, **{f"{n}_after": v for n, v in found.items()}})
            tables.setdefault(f"Guess: {name}", []).append(clients)
    for name, of_seeds in tables.items():
        row = cells.setdefault(name, {})
        for column, metric in METRICS.items():
            row[f"{column}{note}"] = Cell(tuple(metric.overall(t) for t in of_seeds))
    return tables
