"""What a run tells of its clients beside its metrics, so that no figure hides them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.algorithm import Algorithm
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.parts import QUERY_PARTS
from fedpersonal.data.splits import check_query_sets, count_query_examples
from fedpersonal.errors import UserError
from fedpersonal.options import Options
from fedpersonal.tasks.task import Data

if TYPE_CHECKING:
    from fedpersonal.evaluation.evaluate import ClientResults
    from fedpersonal.trained import TrainedModel

# Local state so many times as large as the median client's has blown up.
_OUTLIER = 100.0


def check_clients(data: Data, algorithm: Algorithm, options: Options) -> dict[str, Any]:
    """Makes sure, before anything slow, that there is something to train and to test on.

    Returns:
        `num_clients_without_query`, the training clients that train on nothing because all that
        they have is one batch; nothing for algorithms without query sets.

    Raises:
        UserError: If nobody has a query set.
    """
    if not data.test.query.num_examples:
        raise UserError(
            "no test client has anything to predict: each has too few examples for a query set. "
            "Lower --client_batch_size, or keep only clients with more examples."
        )
    has_query = algorithm.phases[-1].data in QUERY_PARTS
    if not has_query or not isinstance(data.train, ClientDataset):
        return {}
    sets = {"batch_size": options.client_batch_size, "split": options.support_query_split}
    check_query_sets(data.name, data.train, **sets)
    without = int((count_query_examples(data.train, **sets) == 0).sum())
    if without:
        print(
            f"{without:,} of {data.train.num_clients:,} training clients have a single batch of "
            f"{options.client_batch_size} and no query set: they train on nothing",
            file=sys.stderr,
            flush=True,
        )
    return {"num_clients_without_query": without}


def tell_never_drawn(
    results: ClientResults, rounds_of: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Counts clients that no round has drawn apart from those that took part.

    Args:
        results: Of clients that are among those who train.
        rounds_of: In how many rounds each training client took part, by name.

    Returns:
        A column `rounds`; and `never_drawn`: None, or how many they are, with their metrics.
    """
    rounds = np.array([rounds_of.get(client, 0) for client in results.client_ids], np.int64)
    chosen = (rounds == 0) & (results.num_examples > 0)
    told = None
    if chosen.any():
        some = results.some(chosen)
        told = {"num_clients": int(chosen.sum()), **some.overall()}
    return {"rounds": rounds}, {"never_drawn": told}


def tell_outliers(trained: TrainedModel, client_ids: np.ndarray) -> dict[str, Any]:
    """Counts clients whose local state is far larger than others', and warns of them."""
    known, values = trained.kept_by(client_ids)
    if not known.any():
        return {"num_outliers": 0}
    squares = sum(
        np.square(v[known].astype(np.float64)).reshape(known.sum(), -1).sum(1)
        for v in values.values()
    )
    norms = np.sqrt(squares)
    count = int((norms > _OUTLIER * max(np.median(norms), 1e-12)).sum())
    if count:
        print(
            f"{count:,} of {known.sum():,} clients keep local variables over {_OUTLIER:.0f} times "
            "as large as the median client's: lower --local_learning_rate or "
            "--max_local_update_norm",
            file=sys.stderr,
            flush=True,
        )
    return {"num_outliers": count}
