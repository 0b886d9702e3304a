"""Differences of rows on the same test clients: intervals beside the spread over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from experiments.papers.result_table import Cell
from fedpersonal.evaluation.paired_bootstrap import client_sums, paired_bootstrap

ABOUT = """\
Differences: in brackets the 95 % interval of a paired bootstrap over the test clients that both \
rows share (a client that several seeds test counts as one), then the standard deviation over \
seeds, each with a training of its own. *Within noise*: the interval has 0 in it."""


def _same(values: np.ndarray) -> np.ndarray:
    return values


@dataclasses.dataclass(frozen=True)
class ClientMetric:
    """A metric of `per_client.csv`, and how clients' values make that of them all.

    Attributes:
        column: Its column.
        weights: The column by which clients count; None for all alike.
        to_mean: Maps a client's value to the mean that adds up by weights.
        finalize: Maps the mean over clients to the metric.
        scale: Its factor in tables.
    """

    column: str
    weights: str | None = "num_examples"
    to_mean: Callable[[np.ndarray], np.ndarray] = _same
    finalize: Callable[[np.ndarray], np.ndarray] = _same
    scale: float = 1.0

    def sums(self, clients: pd.DataFrame) -> pd.DataFrame:
        """Returns each client's sums of values and of weights, by its name."""
        weights = None if self.weights is None else clients[self.weights]
        sums = client_sums(self.to_mean(clients[self.column].to_numpy()), weights)
        return pd.DataFrame(sums, index=clients["client"].astype(str))

    def overall(self, clients: pd.DataFrame) -> float:
        """Returns the metric of all clients."""
        values, weights = self.sums(clients).to_numpy().sum(0)
        return self.scale * float(self.finalize(values / weights))


def difference(
    ours: Sequence[pd.DataFrame], others: Sequence[pd.DataFrame], metric: ClientMetric
) -> Cell[float]:
    """Returns the cell of a row minus another one.

    Args:
        ours: The row's clients, as of `RunRecord.per_client`, a table a seed.
        others: The other row's, seed by seed.
        metric: What is compared.

    Raises:
        ValueError: If a seed has no client in common, or one has other examples: rows are compared
            on the same ones.
    """
    pairs = []
    for seed, tables in enumerate(zip(ours, others)):
        first, second = (metric.sums(table) for table in tables)
        shared = first.index.intersection(second.index)
        first, second = first.loc[shared], second.loc[shared]
        if not len(shared) or not np.allclose(first[1], second[1]):
            raise ValueError(f"The rows of table {seed} are not of the same examples.")
        pairs.append((first, second))
    people = sorted(set().union(*(first.index for first, _ in pairs)))
    sums = np.array([[s.reindex(people, fill_value=0.0) for s in pair] for pair in pairs])
    found = paired_bootstrap(sums[:, 0], sums[:, 1], finalize=metric.finalize)
    totals = sums.sum(2)
    values = metric.finalize(totals[..., 0] / totals[..., 1])
    by_seed = metric.scale * (values[:, 0] - values[:, 1])
    interval = (metric.scale * found.low, metric.scale * found.high)
    return Cell(tuple(by_seed.tolist()), interval=interval)
