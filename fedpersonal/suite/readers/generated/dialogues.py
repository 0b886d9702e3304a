"""Synthetic dialogues whose prediction depends on the speaker and the place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.utterances import Utterances

# Context to persons, verbs, objects, and places or times; no word is in both contexts.
CONTEXTS = {
    "harbour town": (
        "captain fisherman sailor pilot smuggler widow cook lighthouse-keeper",
        "mended sold stole painted sank hid salted hauled",
        "net barrel rowboat lantern anchor herring rope sail",
        ("on the pier", "before high tide", "in the fog", "behind the fish market", "off the reef"),
    ),
    "mountain court": (
        "queen marshal jester envoy falconer chancellor duchess page",
        "crowned pardoned betrayed knighted banished honoured summoned toasted",
        "heir traitor herald abbot rebel minstrel swordsmith cousin",
        ("in the great hall", "at the frozen gate", "under oath", "during the feast", "by candle"),
    ),
}

# Habits of speakers that are independent of the context; "" is no habit.
OPENERS = ("", "well, ", "listen, ", "honestly, ", "my friend, ", "ha, ", "I fear ", "they say ")
ENDINGS = ("", ", you know", ", I swear", ", mark my words", ", as always", ", or so I heard")
MARKS = (".", "!", "...", "?")

# A lower number restricts a speaker to fewer words of each kind.
_HABIT_CONCENTRATION = 0.3

# A higher number makes the speakers' numbers of sentences more alike.
_SHARE_CONCENTRATION = 8.0


@dataclasses.dataclass(frozen=True)
class GeneratedDialogues:
    """Sentences of two places.

    Attributes:
        named: The sentences of the users that a model is made for.
        others: The sentences of other users, to pretrain a model; disjoint from the `named` users.
    """

    named: Utterances
    others: Utterances


def generate_dialogues(
    *,
    users_per_context: Sequence[int] = (6, 8),
    num_utterances: int = 6000,
    others_per_context: Sequence[int] = (15, 15),
    num_other_utterances: int = 6000,
    seed: int,
) -> GeneratedDialogues:
    """Generates sentences of a harbour town and of a mountain court.

    A sentence is "the", a person, a verb, "the", an object, and a place or time, all words of the
    context, with an opener, an ending and a mark that are common to both contexts. Each speaker is
    in one context and has individual frequencies of all of these, sampled from Dirichlet
    distributions. So knowledge of the context improves predictions, and knowledge of the speaker
    improves them further.

    Args:
        users_per_context: The number of named users of each of the two contexts, >= 1.
        num_utterances: The number of sentences of all named users, >= 3 a user.
        others_per_context: The number of other users of each of the two contexts, >= 1.
        num_other_utterances: The number of sentences of all other users, >= 3 a user.
        seed: >= 0.

    Returns:
        The sentences, named "generated_dialogues" and "generated_others".
    """
    groups = {"users_per_context": users_per_context, "others_per_context": others_per_context}
    for name, numbers in groups.items():
        if not isinstance(numbers, Sequence) or len(numbers) != len(CONTEXTS):
            raise UserError(f"{name} must be a number for each of 2 contexts, got {numbers!r}")
        check_counts(1, **{f"{name}[{i}]": number for i, number in enumerate(numbers)})
    check_count("num_utterances", num_utterances, minimum=3 * sum(users_per_context))
    check_count("num_other_utterances", num_other_utterances, minimum=3 * sum(others_per_context))
    rng = generator(Purpose.GENERATED_DIALOGUES, check_count("seed", seed))
    return GeneratedDialogues(
        _generate_utterances(
            rng, "generated_dialogues", "speaker", users_per_context, num_utterances
        ),
        _generate_utterances(
            rng, "generated_others", "passer-by", others_per_context, num_other_utterances
        ),
    )


def _generate_utterances(
    rng: np.random.Generator, name: str, role: str, numbers: Sequence[int], num_utterances: int
) -> Utterances:
    user_contexts = np.repeat(np.arange(len(numbers)), numbers)
    shares = rng.dirichlet(np.full(user_contexts.size, _SHARE_CONCENTRATION))
    counts = 3 + rng.multinomial(num_utterances - 3 * user_contexts.size, shares)
    contexts = list(CONTEXTS.values())
    return Utterances(
        name=name,
        client_ids=np.array([f"{role} {i:02}" for i in range(user_contexts.size)], object),
        offsets=np.append(0, np.cumsum(counts)),
        texts=np.concatenate(
            [_generate_sentences(rng, contexts[c], n) for c, n in zip(user_contexts, counts)]
        ),
        labels=np.repeat(user_contexts, counts),
        label_names=np.array(list(CONTEXTS), object),
    )


def _generate_sentences(rng: np.random.Generator, context: tuple, count: int) -> np.ndarray:
    """Returns sentences of a new speaker, (count,) str objects."""

    def pick(choices: Sequence[str]) -> np.ndarray:
        shares = rng.dirichlet(np.full(len(choices), _HABIT_CONCENTRATION))
        return rng.choice(np.array(choices, object), count, p=shares)

    people, verbs, objects, places = context
    start = pick(OPENERS) + "the " + pick(people.split()) + " " + pick(verbs.split())
    return (
        start + " the " + pick(objects.split()) + " " + pick(places) + pick(ENDINGS) + pick(MARKS)
    )
