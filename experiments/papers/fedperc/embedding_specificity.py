"""Whose embedding it is: whether a user's own predicts the user's text best (FedPerC, section 4).

A user's held-out utterances are predicted behind the user's own personal embedding, and behind
those of others who are most often in the same context; the utterances' context embeddings stay as
they are, and nothing is fine-tuned. A user *beats the median* if the own embedding gives a lower
loss a token than the median of those others does, and *beats the mean* if it does so than their
losses' mean. A *pair* is a user and one of the others, and is *won* if the own embedding gives the
lower loss. Of embeddings that hold nothing of their users, half of all pairs are won by chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.papers.runs import Run
from fedpersonal.data.texts.labelled import most_frequent_labels
from fedpersonal.draws import Purpose, generator

if TYPE_CHECKING:
    from fedpersonal.evaluation.client_results import ClientResults
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.trained import Kept, TrainedModel

SHARES = ("beats_median", "beats_mean", "pairs_won")


def measure_specificity(run: Run, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns losses and shares of the test utterances of seen users."""
    data = experiment.data
    assert trained.kept_by  # Users keep their embeddings.
    kept = trained.kept_by(data.test.query.client_ids.tolist())
    evaluate = experiment.evaluation(data.test, (), brings_kept=True, with_before=False)
    contexts = most_frequent_labels(
        dataclasses.replace(data.train, labels=data.train.features["context"])
    )
    own, others = compare_embeddings(
        lambda start: evaluate(dataclasses.replace(trained, kept_by=lambda _: start)),
        kept,
        contexts,
        seed=run.options.seed,
    )
    return {**shares(own, others), "own_loss": own, "others_losses": others}


def compare_embeddings(
    evaluate: Callable[[Kept], ClientResults],
    kept: Kept,
    contexts: np.ndarray,
    *,
    max_others: int = 20,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Evaluates users behind their own embeddings and behind others'.

    Args:
        evaluate: Maps what each user starts from to the results on the held-out utterances, the
            users in the same order; it is called once and then at most `max_others` times.
        kept: Who has an embedding, bool (num_users,), and variable name to (num_users, ...); only
            users with one take part.
        contexts: int (num_users,): the context that each is most often in.
        max_others: How many others a user is compared with, drawn at random, if there are more.
        seed: Seed of these draws.

    Returns:
        The loss a token behind a user's own embedding, float64 (num_users,), and behind others',
        (num_users, most); NaN where there are fewer.
    """
    known, values = kept
    sources = draw_others(known, contexts, max_others=max_others, seed=seed)

    def losses(of: np.ndarray) -> np.ndarray:
        results = evaluate((known, {name: value[of] for name, value in values.items()}))
        sums = results.after["loss"]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(known, sums[:, 0] / sums[:, 1], np.nan)

    everybody = np.arange(len(known))
    own, others = losses(everybody), np.full(sources.shape, np.nan)
    for column, of in enumerate(sources.T):
        others[:, column] = np.where(of >= 0, losses(np.where(of >= 0, of, everybody)), np.nan)
    return own, others


def shares(own: np.ndarray, others: np.ndarray) -> dict[str, float]:
    """Returns the shares of users that beat the median and the mean, and of pairs won.

    Beside them `num_users` and `num_pairs` that there are to compare; without any, shares are NaN.
    Losses are those of `compare_embeddings`.
    """
    compared = np.isfinite(own) & np.isfinite(others).any(axis=1)
    own, others = own[compared], others[compared]
    pairs = np.isfinite(others)
    found = dict.fromkeys(SHARES, float("nan"))
    if len(own):
        values = (
            np.mean(own < np.nanmedian(others, axis=1)),
            np.mean(own < np.nanmean(others, axis=1)),
            np.mean((own[:, np.newaxis] < others)[pairs]),
        )
        found = dict(zip(SHARES, map(float, values)))
    return {"num_users": len(own), "num_pairs": int(pairs.sum()), **found}


def draw_others(
    known: np.ndarray, contexts: np.ndarray, *, max_others: int, seed: int
) -> np.ndarray:
    """Draws for each user others with an embedding and the same context.

    Arguments are those of `compare_embeddings`.

    Returns:
        int64 (num_users, most others of any): indices of users, all different in a row, -1 where
        there are fewer.
    """
    rng = generator(Purpose.OTHER_USERS, seed)
    groups = [np.flatnonzero(known & (contexts == c)) for c in np.unique(contexts[known])]
    most = min(max_others, max((len(group) - 1 for group in groups), default=0))
    sources = np.full([len(known), most], -1, np.int64)
    for group in groups:
        # Everybody in a group moves on by as many places, so that each is as often another's.
        for column, shift in enumerate(1 + rng.permutation(len(group) - 1)[:most]):
            sources[group, column] = np.roll(group, -shift)
    return sources
