"""Made-up labelled comments whose labels are best predicted by who knows the users."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.generated.corpus import TOPICS
from fedpersonal.data.labelled_texts import LabelledTexts
from fedpersonal.data.sources import check_count
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError

# The share of comments that are about nothing but the topic of their subreddit.
CLEAR_SHARE = 0.3

# The lower, the fewer subreddits a user writes to.
_PREFERENCE_CONCENTRATION = 0.3

_OPENERS = ("", "today ", "now ", "then ", "so ", "maybe ")


def generate_subreddits(
    *,
    num_users: int = 200,
    num_labels: int = 8,
    texts_per_user: tuple[int, int] = (20, 60),
    seed: int,
) -> LabelledTexts:
    """Draws comments of users who prefer some subreddits, which many comments leave open.

    A subreddit is a topic. A share `CLEAR_SHARE` of the comments has three words of its topic, all
    others one of its topic and two of other topics, in any order. So who knows the words has an
    accuracy of 0.3 + 0.7 / 3 = 0.53. How often a user writes to each of the subreddits is drawn
    from a Dirichlet distribution: who knows that too has about 0.85.

    Args:
        num_users: How many users there are, >= 1.
        num_labels: How many subreddits there are, from 3 to 8.
        texts_per_user: The least and the most comments of a user, >= 1.
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
    # The first label up to which the shares sum to more than a draw from [0, 1).
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
    """Checks the options, and returns the generator and the users' offsets."""
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

    def draw(words: np.ndarray, place: int) -> np.ndarray:
        return words[topics[:, place], rng.integers(0, words.shape[1], len(topics))]

    opener = np.array(_OPENERS, object)[rng.integers(0, len(_OPENERS), len(topics))]
    return opener + "the " + draw(nouns, 0) + " " + draw(verbs, 1) + " a " + draw(nouns, 2) + "."
