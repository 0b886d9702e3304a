"""Differences of rows on the same test clients: intervals beside the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from experiments.papers.result_table import Cell
from fedpersonal.evaluation.client_metric import ClientMetric, paired_difference

ABOUT = """\
Differences: in brackets the 95 % interval of a paired bootstrap over the test clients that both \
rows share (a client that several seeds test counts as one), then the standard deviation over \
seeds, each with a training of its own. *Within noise*: the interval has 0 in it."""


def difference(
    ours: Sequence[pd.DataFrame], others: Sequence[pd.DataFrame], metric: ClientMetric
) -> Cell[float]:
    """Returns the cell of a row minus another one.

    Args:
        ours: The row's clients, as of `RunRecord.per_client`, a table a seed.
        others: The other row's, seed by seed.
        metric: What is compared.

    Raises:
        ValueError: As `paired_difference`.
    """
    by_seed, found = paired_difference(ours, others, metric)
    interval = (found.low, found.high) if found.has_interval else None
    return Cell(tuple(by_seed.tolist()), interval=interval)
