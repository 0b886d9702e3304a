"""Made-up sentences that are best predicted by who knows the speaker and the place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.data.utterances import Utterances
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError

# By context: people, what they do, to what, and where or when; no word is in both contexts.
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

# Habits that have nothing to do with where the speaker is; the empty one is to have none.
OPENERS = ("", "well, ", "listen, ", "honestly, ", "my friend, ", "ha, ", "I fear ", "they say ")
ENDINGS = ("", ", you know", ", I swear", ", mark my words", ", as always", ", or so I heard")
MARKS = (".", "!", "...", "?")

# The lower, the fewer of the words of each kind a speaker uses.
_HABIT_CONCENTRATION = 0.3

# The higher, the more alike the speakers are in how much they say.
_SHARE_CONCENTRATION = 8.0


@dataclasses.dataclass(frozen=True)
class GeneratedDialogues:
    """Sentences of two places.

    Attributes:
        named: Of the users whom a model is made for.
        others: Of further users, to train a model on before; none of them is among the `named`.
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
    """Draws sentences of a harbour town and of a mountain court.

    A sentence is "the", a person, a verb, "the", an object, and a place or time, each of the
    context's own words, with an opener, an ending and a mark that are common to both contexts.
    Every speaker is in one context, and has own shares of all of these, drawn from Dirichlet
    distributions; so who knows the context predicts better than who does not, and who knows the
    speaker better still.

    Args:
        users_per_context: How many named users each of the two contexts has, >= 1.
        num_utterances: How many sentences all named users have together, >= 3 a user.
        others_per_context: How many other users each of the two contexts has, >= 1.
        num_other_utterances: How many sentences they have together, >= 3 a user.
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
        _draw(rng, "generated_dialogues", "speaker", users_per_context, num_utterances),
        _draw(rng, "generated_others", "passer-by", others_per_context, num_other_utterances),
    )


def _draw(
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
        texts=np.concatenate([_say(rng, contexts[c], n) for c, n in zip(user_contexts, counts)]),
        labels=np.repeat(user_contexts, counts),
        label_names=np.array(list(CONTEXTS), object),
    )


def _say(rng: np.random.Generator, context: tuple, count: int) -> np.ndarray:
    """Returns sentences of a new speaker, (count,) str objects."""

    def pick(choices: Sequence[str]) -> np.ndarray:
        shares = rng.dirichlet(np.full(len(choices), _HABIT_CONCENTRATION))
        return rng.choice(np.array(choices, object), count, p=shares)

    people, verbs, objects, places = context
    start = pick(OPENERS) + "the " + pick(people.split()) + " " + pick(verbs.split())
    return (
        start + " the " + pick(objects.split()) + " " + pick(places) + pick(ENDINGS) + pick(MARKS)
    )
