"""Synthetic labelled comments whose prediction depends on the user."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.sources import check_count
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.generated.corpus import TOPICS
from fedpersonal.suite.readers.labelled_texts import LabelledTexts

# The share of comments with words of a single topic, that of their subreddit.
CLEAR_SHARE = 0.3

# A lower number restricts a user to fewer subreddits.
_PREFERENCE_CONCENTRATION = 0.3

_OPENERS = ("", "today ", "now ", "then ", "so ", "maybe ")


def generate_subreddits(
    *,
    num_users: int = 200,
    num_labels: int = 8,
    texts_per_user: tuple[int, int] = (20, 60),
    seed: int,
) -> LabelledTexts:
    """Generates ambiguous comments of users who prefer certain subreddits.

    A subreddit is a topic. A share `CLEAR_SHARE` of the comments has three words of its topic. All
    others have one word of their topic and two words of other topics, in random order. So a model
    of the words reaches an accuracy of 0.3 + 0.7 / 3 = 0.53. Each user's frequencies of subreddits
    are sampled from a Dirichlet distribution; a model that knows them, too, reaches about 0.85.

    Args:
        num_users: The number of users, >= 1.
        num_labels: The number of subreddits, from 3 to 8.
        texts_per_user: The minimum and maximum number of comments of a user, >= 1.
        seed: >= 0.

    Returns:
        The comments, named "generated_subreddits"; the labels' names are those of the topics.
    """
    check_count("num_labels", num_labels, minimum=3)
    if num_labels > len(TOPICS):
        raise UserError(f"num_labels must be at most {len(TOPICS)}, got {num_labels}")
    rng, offsets = _start(num_users, texts_per_user, seed)
    users = np.repeat(np.arange(num_users), np.diff(offsets))
    preferences = rng.dirichlet(np.full(num_labels, _PREFERENCE_CONCENTRATION), num_users)
    # The first label at which the cumulative share exceeds a random number in [0, 1).
    passed = np.cumsum(preferences, axis=1)[users] <= rng.random((users.size, 1))
    labels = np.minimum(passed.sum(axis=1), num_labels - 1)

    order = rng.random((users.size, num_labels))
    order[np.arange(users.size), labels] = -1.0  # The comment's own topic is among the first.
    topics = rng.permuted(np.argsort(order, axis=1)[:, :3], axis=1)
    clear = rng.random((users.size, 1)) < CLEAR_SHARE
    texts = _write(rng, np.where(clear, labels[:, None], topics))
    names = np.array([f"user{i}" for i in range(num_users)], object)
    label_names = np.array(list(TOPICS)[:num_labels], object)
    return LabelledTexts("generated_subreddits", names, offsets, texts, labels, label_names)


def _start(
    num_users: int, texts_per_user: tuple[int, int], seed: int
) -> tuple[np.random.Generator, np.ndarray]:
    """Checks options; returns the random generator and the users' offsets."""
    check_count("num_users", num_users, minimum=1)
    try:
        least, most = texts_per_user
    except (TypeError, ValueError):
        raise UserError(f"texts_per_user must be (least, most), got {texts_per_user!r}") from None
    check_count("texts_per_user[0]", least, minimum=1)
    check_count("texts_per_user[1]", most, minimum=least)
    rng = generator(Purpose.GENERATED_DOCUMENTS, check_count("seed", seed))
    return rng, np.append(0, np.cumsum(rng.integers(least, most + 1, num_users)))


def _write(rng: np.random.Generator, topics: np.ndarray) -> np.ndarray:
    """Returns texts, (n,) str objects, with a noun, a verb and a noun of the topics (n, 3)."""
    nouns, verbs, _ = (
        np.array([part.split() for part in parts], object) for parts in zip(*TOPICS.values())
    )

    def sample(words: np.ndarray, place: int) -> np.ndarray:
        return words[topics[:, place], rng.integers(0, words.shape[1], len(topics))]

    opener = np.array(_OPENERS, object)[rng.integers(0, len(_OPENERS), len(topics))]
    return (
        opener + "the " + sample(nouns, 0) + " " + sample(verbs, 1) + " a " + sample(nouns, 2) + "."
    )
