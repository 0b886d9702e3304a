"""Checks and statistics of clients that a run reports besides its metrics."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import check_query_sets, count_query_examples, is_query
from fedpersonal.errors import UserError
from fedpersonal.evaluation import PERCENTILES
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.runs.kept import kept_in_parts
from fedpersonal.suite.tasks.options import RunOptions
from fedpersonal.suite.tasks.task import Data
from fedpersonal.training.clients import LazyClients
from fedpersonal.training.tested import hash_labels
from fedpersonal.training.trained import TrainedModel

# Local state is an outlier if its norm exceeds the median client's by this factor.
_OUTLIER = 100.0


def check_clients(data: Data, algorithm: Algorithm, options: RunOptions) -> dict[str, Any]:
    """Checks, before anything slow, that there are examples to train and to test on.

    Returns:
        `test_labels`, a hash of the labels to predict, which distinguishes runs on other test
        examples; and for algorithms with query sets `num_clients_without_query`, the number of
        training clients with a single batch, which train on nothing.

    Raises:
        UserError: If no client has a query set.
    """
    query = data.test.query
    if not query.num_examples:
        lower = "" if data.test.seen else "Lower --client_batch_size, or keep"
        raise UserError(
            "no test client has anything to predict: each has too few examples for a query set. "
            f"{lower or 'Keep'} only clients with more examples."
        )
    if not data.validation.query.num_examples:
        warn("no validation client has anything to predict: there will be no eval/ metrics")
    facts = {"test_labels": hash_labels(query)}
    has_query = is_query(algorithm.phases[-1].data)
    if not has_query or not isinstance(data.train, ClientDataset):
        return facts
    batch_size, parts = options.client_batch_size, options.split_options()
    check_query_sets(data.name, data.train, batch_size=batch_size, **parts)
    counts = count_query_examples(data.train, batch_size=batch_size, **parts)
    without = int((counts == 0).sum())
    if without:
        warn(
            f"{without:,} of {data.train.num_clients:,} training clients have a single batch of "
            f"{batch_size} and no query set: they train on nothing"
        )
    return {**facts, "num_clients_without_query": without}


def attendance_summary(
    results: ClientResults, attended: Mapping[str, Sequence[int]], rounds: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns how often and how recently clients took part, with metrics of those never sampled.

    Args:
        results: Results of clients that are among the training clients.
        attended: Client's name to the rounds in which it took part.
        rounds: The number of rounds that were run.

    Returns:
        Columns with a value for each client: `rounds`, the number of rounds in which it took part,
        and `rounds_since`, the number of rounds after the last of these, NaN if there is none. And
        entries of the test: `never_drawn`, the number of clients never sampled and their metrics,
        or None; and `rounds_since`, percentiles over the other clients.
    """
    attendance = [attended.get(client, ()) for client in results.client_ids]
    counts = np.array([len(numbers) for numbers in attendance], np.int64)
    since = np.array(
        [rounds - max(numbers, default=math.nan) for numbers in attendance], np.float64
    )
    entries: dict[str, Any] = {"never_drawn": None}
    is_tested = results.num_examples > 0
    never, others = is_tested & (counts == 0), is_tested & (counts > 0)
    if never.any():
        overall = results.select_clients(never).overall()
        entries["never_drawn"] = {"num_clients": int(never.sum()), **overall}
    if others.any():
        values = np.percentile(since[others], PERCENTILES)
        entries["rounds_since"] = {f"p{p}": float(value) for p, value in zip(PERCENTILES, values)}
    return {"rounds": counts, "rounds_since": since}, entries


def count_outliers(trained: TrainedModel, clients: ClientDataset | LazyClients) -> dict[str, int]:
    """Counts clients whose kept local state is far larger than the median, and warns of them."""
    if trained.kept_by is None:
        return {}
    parts = kept_in_parts(trained.kept_by, clients.client_ids)
    norms = np.concatenate([_norms(values)[has_kept] for has_kept, values in parts])
    if not len(norms):
        return {"num_outliers": 0}
    count = int((norms > _OUTLIER * max(np.median(norms), 1e-12)).sum())
    if count:
        warn(
            f"{count:,} of {len(norms):,} clients keep local variables over {_OUTLIER:.0f} times "
            "as large as the median client's: lower --local_learning_rate or "
            "--max_local_update_norm"
        )
    return {"num_outliers": count}


def _norms(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns each client's norm over all variables, (n,), from values (n, ...)."""
    flat = [v.reshape(len(v), -1) for v in values.values()]
    return np.sqrt(sum(np.einsum("ij,ij->i", v, v, dtype=np.float64) for v in flat))


def warn(line: str) -> None:
    """Prints a one-line warning to stderr."""
    print(f"warning: {line}", file=sys.stderr, flush=True)
