"""A small synthetic corpus in which the meaning of a word depends on the client."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.sentences import TextCorpus

# Nouns, verbs and endings by topic; no word is in two places.
TOPICS = {
    "kitchen": (
        "soup bread pot spoon oven sauce apple cheese",
        "cooks bakes stirs tastes peels slices",
        "deliciously hotly crisply sweetly saltily freshly",
    ),
    "music": (
        "song piano drum choir violin tune band chord",
        "sings plays hums composes tunes conducts",
        "loudly softly rhythmically offkey melodically twice",
    ),
    "sport": (
        "ball goal team racket referee coach match medal",
        "kicks throws catches defends scores races",
        "fairly quickly bravely breathlessly strongly narrowly",
    ),
    "sea": (
        "boat harbour wave anchor sail fish reef captain",
        "sails rows dives floats sinks steers",
        "offshore deeply stormily ashore windward calmly",
    ),
    "garden": (
        "rose tree seed hedge lawn bee spade tulip",
        "plants waters digs prunes grows blooms",
        "outdoors slowly greenly sunnily early wildly",
    ),
    "money": (
        "bank coin loan stock budget price invoice market",
        "pays saves lends invests counts earns",
        "cheaply monthly profitably yearly dearly frugally",
    ),
    "computers": (
        "server program keyboard screen network bug file chip",
        "compiles crashes loads prints downloads encrypts",
        "digitally remotely automatically online silently recursively",
    ),
    "travel": (
        "train ticket hotel map border suitcase bridge road",
        "drives flies departs arrives packs wanders",
        "abroad northward overnight late westward nearby",
    ),
}
FUNCTION_WORDS = ("the", "a", ".", "today", "now", "then", "so", "maybe")
_OPENERS = ("today", "now", "then", "so", "maybe")

# The share of a topic's first verb and of its first ending; the others share the rest evenly.
FAVOURITE_SHARE = 0.6

_SYLLABLES = [c + v for c in ("b", "dr", "f", "gl", "k", "m", "pl", "r", "v", "z") for v in "aiou"]


def base_words() -> list[str]:
    """Returns the words with one meaning for all clients: 8 function words, 160 of topics."""
    return [
        *FUNCTION_WORDS,
        *(w for parts in TOPICS.values() for part in parts for w in part.split()),
    ]


def generate_corpus(
    *,
    num_clients: int = 200,
    seed: int,
    min_sentences: int = 40,
    max_sentences: int = 80,
    words_per_client: int = 24,
    num_personal_words: int = 1000,
    personal_share: float = 0.7,
) -> TextCorpus:
    """Generates sentences whose prediction depends on the meaning of a client's personal words.

    There are eight topics. Each client has personal words, sampled from a large pool of invented
    words that all clients share. The topic of each personal word is sampled uniformly and
    independently of its topic for other clients. A client uses its first words more than its last.
    With two personal words P and Q, a personal sentence, with an opener in half of the cases, is

        [opener] P verb(P) the Q ending(Q) .

    with a verb of P's topic and an ending of Q's topic. All other sentences are plain, with a
    single topic:

        [opener] the noun verb a noun ending .

    Only verb(P) and ending(Q) depend on the client: about 18% of all predictions, `EOS` included.
    On these, a model with the client's topics reaches an accuracy of at most 0.6. For unseen
    clients, a model without their topics reaches 0.6 / 8, and a cross-entropy higher by
    log(8) = 2.08. So the best possible gain over all predictions is 0.09 in accuracy and 0.37 in
    cross-entropy. One earlier sentence with a word reveals its topic.

    Args:
        num_clients: The number of clients, >= 1.
        seed: >= 0.
        min_sentences: The minimum number of sentences of a client, >= 2.
        max_sentences: The maximum number of sentences of a client, >= `min_sentences`.
        words_per_client: The number of personal words of a client, >= 2.
        num_personal_words: The size of the pool of personal words, at least `words_per_client`. In
            a small pool, personal words are as frequent as those of the topics.
        personal_share: The share of personal sentences, in [0, 1].

    Returns:
        The corpus, named "generated". Its lexicon is `base_words()`, then the pool.
    """
    check_count("num_clients", num_clients, minimum=1)
    check_counts(2, min_sentences=min_sentences, words_per_client=words_per_client)
    check_count("max_sentences", max_sentences, minimum=min_sentences)
    check_count("num_personal_words", num_personal_words, minimum=words_per_client)
    most = len(_SYLLABLES) ** 3
    if num_personal_words > most:
        raise UserError(f"num_personal_words must be at most {most}, got {num_personal_words}")
    if not 0.0 <= personal_share <= 1.0:
        raise UserError(f"personal_share must be in [0, 1], got {personal_share!r}")
    rng = generator(Purpose.GENERATED_CORPUS, check_count("seed", seed))

    counts = rng.integers(min_sentences, max_sentences + 1, num_clients)
    clients = np.repeat(np.arange(num_clients), counts)
    client_words = np.argsort(rng.random((num_clients, num_personal_words)), axis=1)
    client_words = client_words[:, :words_per_client]
    client_topics = rng.integers(0, len(TOPICS), client_words.shape)
    sentences = _sample_sentences(rng, clients, client_words, client_topics, personal_share)

    lexicon = [*base_words(), *_invented_words(rng, num_personal_words)]
    written = sentences >= 0
    return TextCorpus(
        name="generated",
        client_ids=np.array([f"writer{i}" for i in range(num_clients)], object),
        client_offsets=np.append(0, np.cumsum(counts)),
        sentence_offsets=np.append(0, np.cumsum(written.sum(axis=1))),
        words=sentences[written],
        lexicon=np.array(lexicon, object),
    )


def _sample_sentences(
    rng: np.random.Generator,
    clients: np.ndarray,
    client_words: np.ndarray,
    client_topics: np.ndarray,
    personal_share: float,
) -> np.ndarray:
    """Returns a sentence for each of the `clients`, (n, 8) words, -1 for no word."""
    number = {word: i for i, word in enumerate(base_words())}
    # The words of each topic, (topics, words) for nouns, verbs and endings.
    nouns, verbs, endings = (
        np.array([[number[word] for word in part.split()] for part in parts])
        for parts in zip(*TOPICS.values())
    )
    n = clients.size

    def sample(
        words: np.ndarray, topic: np.ndarray, first_share: float | None = None
    ) -> np.ndarray:
        others = words.shape[1] - 1
        first_share = 1 / (others + 1) if first_share is None else first_share
        shares = [first_share, *[(1 - first_share) / others] * others]
        return words[topic, rng.choice(others + 1, n, p=shares)]

    usage = 1.0 / (6.0 + np.arange(client_words.shape[1]))
    # The two largest keys sample two words without replacement, weighted by usage.
    keys = np.log(rng.random((n, usage.size))) / usage
    first, second = np.argsort(-keys, axis=1)[:, :2].T
    pool = len(number)
    openers = np.array([number[word] for word in _OPENERS])
    opener = np.where(rng.random(n) < 0.5, openers[rng.integers(0, openers.size, n)], -1)
    the, end = np.full(n, number["the"]), np.full(n, number["."])
    personal = [
        opener,
        pool + client_words[clients, first],
        sample(verbs, client_topics[clients, first], FAVOURITE_SHARE),
        the,
        pool + client_words[clients, second],
        sample(endings, client_topics[clients, second], FAVOURITE_SHARE),
        end,
        np.full(n, -1),
    ]
    topic = rng.integers(0, len(TOPICS), n)
    plain = [
        opener,
        the,
        sample(nouns, topic),
        sample(verbs, topic, FAVOURITE_SHARE),
        np.full(n, number["a"]),
        sample(nouns, topic),
        sample(endings, topic, FAVOURITE_SHARE),
        end,
    ]
    is_personal = rng.random((n, 1)) < personal_share
    return np.where(is_personal, np.stack(personal, axis=1), np.stack(plain, axis=1))


def _invented_words(rng: np.random.Generator, count: int) -> list[str]:
    """Returns distinct words of three syllables, none of them a word of the topics."""
    codes = rng.choice(len(_SYLLABLES) ** 3, count, replace=False)
    syllables = np.array(_SYLLABLES, object)
    return list(syllables[np.array(np.unravel_index(codes, [len(_SYLLABLES)] * 3))].sum(axis=0))
