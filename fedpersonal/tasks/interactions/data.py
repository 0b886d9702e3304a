"""Who trains on which interactions and negatives, and what is ranked for whom: leave-one-out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.ratings.interactions import Implicit, Interactions, Negatives, leave_one_out
from fedpersonal.data.ratings.ranking import FEWEST, as_clients, put_first, sample_unrated
from fedpersonal.errors import UserError
from fedpersonal.tasks.factorization import ItemData
from fedpersonal.tasks.task import EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.interactions.task import InteractionRun

NEGATIVES = ("unobserved_in_training", "never_held_out")
"""Of which items negatives are drawn, by `--negatives`; the second leaks what is held out."""


@dataclasses.dataclass(frozen=True, eq=False)
class InteractionData(ItemData):
    """Interactions, split for one experiment.

    Every client trains, is validated and is tested: ranked is a held-out item, the first of the
    query set, labelled 1, among items that the client has never chosen. The query set of a client
    that has left fewer than 10 is empty.
    """

    train: Implicit


def split_interactions(source: Interactions, options: InteractionRun) -> InteractionData:
    """Holds out each user's last two interactions, by time or by chance, and draws negatives.

    Raises:
        UserError: If a user has fewer than three interactions, or all have too many to leave
            negatives.
    """
    seed, num_items = options.seed, len(source.item_ids)
    everything = source.to_client_dataset()
    held_out = leave_one_out(everything, seed=seed, ordered=source.times is not None)
    if num_items - everything.counts.min() < FEWEST:
        raise UserError(
            f"{source.name}: no user has left {FEWEST} of the {num_items} items unchosen, so there "
            "is nothing to rank among."
        )
    avoided = held_out.train if options.negatives == NEGATIVES[0] else everything
    negatives = Negatives(avoided, num_items, options.num_negatives, seed)
    train = support = Implicit.of(held_out.train, negatives)
    if options.support_negatives != options.num_negatives:
        own = dataclasses.replace(negatives, per_positive=options.support_negatives or None)
        support = Implicit.of(held_out.train, own)

    def part(items: np.ndarray, seed: int) -> EvaluationSet:
        negatives = sample_unrated(everything, num_items=num_items, seed=seed)
        candidates = put_first(items, negatives)
        return EvaluationSet(support, as_clients(everything, candidates), seen=True)

    validation, test = part(held_out.validation, 2 * seed + 1), part(held_out.test, 2 * seed)
    return InteractionData(source.name, train, validation, test, source)
