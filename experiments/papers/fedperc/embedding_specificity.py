"""Whose embedding it is: whether a user's own predicts the user's text best (FedPerC, section 4).

A user's held-out utterances are predicted behind the user's own personal embedding, and behind
those of others who are most often in the same context; the utterances' context embeddings stay as
they are. A user *beats the median* if the own embedding gives a lower loss a token than the median
of those others does, and *beats the mean* if it does so than their losses' mean. A *pair* is a user
and one of the others, and is *won* if the own embedding gives the lower loss. Of embeddings that
hold nothing of their users, half of all pairs are won by chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from fedpersonal.evaluation.evaluate import ClientResults

Kept = tuple[np.ndarray, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Specificity:
    """Losses of users' texts behind embeddings of their own and of others.

    Attributes:
        own: float64 (num_users,): mean loss a token behind a user's own embedding.
        others: float64 (num_users, most): the same behind others' embeddings; NaN where a user has
            fewer others.
    """

    own: np.ndarray
    others: np.ndarray

    @property
    def num_users(self) -> int:
        """How many users have others to compare with."""
        return int(self._compared.sum())

    @property
    def num_pairs(self) -> int:
        """How many pairs of a user and another there are."""
        return int(np.isfinite(self.others[self._compared]).sum())

    def shares(self) -> dict[str, float]:
        """Returns the shares of users that beat the median and the mean, and of pairs won.

        Each is NaN where nobody has others.
        """
        own, others = self.own[self._compared], self.others[self._compared]
        if not len(own):
            return dict.fromkeys(("beats_median", "beats_mean", "pairs_won"), float("nan"))
        return {
            "beats_median": float(np.mean(own < np.nanmedian(others, axis=1))),
            "beats_mean": float(np.mean(own < np.nanmean(others, axis=1))),
            "pairs_won": float(np.mean((own[:, np.newaxis] < others)[np.isfinite(others)])),
        }

    @property
    def _compared(self) -> np.ndarray:
        return np.isfinite(self.own) & np.isfinite(self.others).any(axis=1)


def measure_specificity(
    evaluate: Callable[[Kept], ClientResults],
    kept: Kept,
    contexts: np.ndarray,
    *,
    max_others: int = 20,
    seed: int = 0,
) -> Specificity:
    """Evaluates users behind their own embeddings and behind others'.

    Args:
        evaluate: Maps what each user starts from to the results on the held-out utterances, the
            users in the same order; it is called once and then at most `max_others` times.
        kept: Who has an embedding, bool (num_users,), and variable name to (num_users, ...); only
            users with one take part.
        contexts: int (num_users,): the context that each is most often in.
        max_others: How many others a user is compared with, drawn at random, if there are more.
        seed: Seed of these draws.
    """
    known, values = kept
    known = np.asarray(known, bool)
    sources = draw_others(known, contexts, max_others=max_others, seed=seed)

    def losses(of: np.ndarray) -> np.ndarray:
        results = evaluate((known, {name: value[of] for name, value in values.items()}))
        sums = results.after["loss"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return sums[:, 0] / sums[:, 1]

    everybody = np.arange(len(known))
    own = np.where(known, losses(everybody), np.nan)
    others = np.full([len(known), sources.shape[1]], np.nan)
    for column, of in enumerate(sources.T):
        others[:, column] = np.where(
            of >= 0, losses(np.where(of >= 0, of, everybody)), others[:, column]
        )
    return Specificity(own, others)


def draw_others(
    known: np.ndarray, contexts: np.ndarray, *, max_others: int, seed: int
) -> np.ndarray:
    """Draws for each user others with an embedding and the same context.

    Args:
        known: bool (num_users,): who has an embedding.
        contexts: int (num_users,).
        max_others: The most that are drawn for a user.
        seed: Seed of the draws.

    Returns:
        int64 (num_users, most others of any): indices of users, all different in a row, -1 where
        there are fewer.
    """
    rng = np.random.default_rng(seed)
    groups = [np.flatnonzero(known & (contexts == c)) for c in np.unique(contexts[known])]
    most = min(max_others, max((len(group) - 1 for group in groups), default=0))
    sources = np.full([len(known), most], -1, np.int64)
    for group in groups:
        # Everybody in a group moves on by as many places, so that each is as often another's.
        shifts = 1 + rng.permutation(len(group) - 1)[:most] if len(group) > 1 else []
        for column, shift in enumerate(shifts):
            sources[group, column] = np.roll(group, -shift)
    return sources
