"""The split of utterances and users, as in FedPerC's section 4.1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import check_count
from fedpersonal.data.splits import check_num_clients, split_examples
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.labelled_texts import most_frequent_labels
from fedpersonal.suite.readers.utterances import Utterances
from fedpersonal.suite.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.suite.models.gpt2 import BaseModel
    from fedpersonal.suite.tasks.utterances.source import UtteranceRun

# The label of places without a prediction.
NO_LABEL = -1

# Shares of training, validation and test: of a user's utterances, or of the users.
SEEN_FRACTIONS = (0.6, 0.2, 0.2)
UNSEEN_FRACTIONS = (0.7, 0.15, 0.15)

# The number of a client's utterances that personalise its model before validation.
VALIDATION_SAMPLES = 15

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


@dataclasses.dataclass(frozen=True, eq=False)
class UtteranceData(Data):
    """Tokenised utterances, split for one experiment.

    The features are "text", (n, length) int32, the tokens' ids, then the end of the text, then
    padding by id 0; "user", (n,) int32, the user's index among training users, 0 for unseen users;
    "context", (n,) int32; and, if users have vectors, "vector", (n, numbers) float32. There is no
    token before the text: a model starts from its prefix. Labels, (n, length) int32, are the ids to
    predict at each place, the same as in the text, and `NO_LABEL` for padding.

    `validation` and `test` are other utterances of training users, or utterances of unseen users.
    The support sets have 15 utterances for validation, and all but the query set for the test.

    Attributes:
        context_names: (num_contexts,) str objects.
        test_clients: All utterances of `test`, for support sets of other sizes.
        base: The base model whose tokens the texts have, or None.
    """

    train: ClientDataset
    context_names: np.ndarray
    test_clients: ClientDataset
    base: BaseModel | None = None


def split_utterances(
    utterances: Utterances,
    encode: Encode,
    options: UtteranceRun,
    *,
    end: int,
    vectors: np.ndarray | None = None,
) -> UtteranceData:
    """Splits the utterances of each user 60/20/20 % at random; or the users, 70/15/15 %.

    The latter is for evaluation on `unseen` users. Training users then have all contexts. Each part
    has at least one user, and about the same shares of users by their most frequent context.

    Args:
        utterances: The utterances.
        encode: A function from a list of texts to a list of ids, each >= 0, for each text.
        options: The places for the tokens of an utterance; whether longer ones are `cut`, without
            an end, or an `error`; whether to evaluate seen or unseen users; and the seed.
        end: The id after the last token of an utterance, >= 0.
        vectors: A vector for each user, float32 (users, numbers), or None.

    Raises:
        UserError: If an utterance is too long, or training would lack a context. For seen users, if
            none has the 3 utterances that holding one out needs; for unseen users, if there are
            fewer than 3 users.
    """
    seed, seen = options.seed, options.evaluate_on == "seen"
    dataset = _encode(utterances, encode, end, options)
    if vectors is not None:
        features = {**dataset.features, "vector": vectors[dataset.example_clients]}
        dataset = dataclasses.replace(dataset, features=features)
    if not seen:
        parts = [dataset.subset(np.sort(users)) for users in _split_users(utterances, seed)]
        return _as_data(utterances, *parts, seen=False, seed=seed)
    train, *others = split_examples(dataset, fractions=SEEN_FRACTIONS, seed=seed, ordered=False)
    if not others[-1].num_examples:
        raise UserError(f"no user of {utterances.name} has 3 utterances, so none can be held out")
    counts = np.bincount(train.features["context"], minlength=utterances.num_labels)
    if not counts.all():
        raise UserError(
            f"no utterance for training has the context"
            f" {utterances.label_names[counts.argmin()]!r}; keep only contexts with more utterances"
        )
    return _as_data(utterances, train, *others, seen=True, seed=seed)


def _as_data(utterances: Utterances, *parts: ClientDataset, seen: bool, seed: int) -> UtteranceData:
    def samples(part: ClientDataset, count: int | None) -> EvaluationSet:
        return EvaluationSet(*finetuning_sets(part, num_samples=count, seed=seed), seen=seen)

    numbered: list[ClientDataset] = []
    for part in parts:
        # Unseen users have the index 0.
        users = part.example_clients * (seen or not numbered)
        features = {**part.features, "user": users.astype(np.int32)}
        numbered.append(dataclasses.replace(part, features=features))
    train, validation, test = numbered
    return UtteranceData(
        utterances.name,
        train,
        samples(validation, VALIDATION_SAMPLES),
        samples(test, None),
        utterances.label_names,
        test,
    )


def finetuning_sets(
    part: ClientDataset, *, num_samples: int | None, seed: int
) -> tuple[ClientDataset, ClientDataset]:
    """Splits each client's examples into a support set to fine-tune on and a query set.

    A client's examples are shuffled. The first half, rounded up, is the query set for any
    `num_samples`. The support set has the next `num_samples` examples, so larger support sets
    include the smaller ones. A client's only example is in the query set.

    Args:
        part: The examples.
        num_samples: The maximal number of examples in a support set, >= 0; None for all that are
            not in the query set.
        seed: A whole number >= 0; the same seed gives the same sets.

    Returns:
        The support and the query sets, both with all clients, and with examples in their order.

    Raises:
        UserError: If an option is out of range.
    """
    if num_samples is not None:
        check_count("num_samples", num_samples)
    rng = generator(Purpose.FINETUNING, check_count("seed", seed))
    counts = part.counts
    num_query = (counts + 1) // 2
    places = np.empty(part.num_examples, np.int64)
    places[np.lexsort((rng.random(part.num_examples), part.example_clients))] = (
        part.example_positions
    )
    sample = places - np.repeat(num_query, counts)
    most = part.num_examples if num_samples is None else num_samples
    return part.filter_examples((sample >= 0) & (sample < most)), part.filter_examples(sample < 0)


def _encode(
    utterances: Utterances, encode: Encode, end: int, options: UtteranceRun
) -> ClientDataset:
    """Encodes the texts as ids and labels."""
    dataset, texts = utterances.to_client_dataset(), utterances.texts.tolist()
    length, encoded = options.text_length, encode(texts)
    lengths = np.fromiter((len(tokens) + 1 for tokens in encoded), np.int64, len(texts))
    if options.too_long == "error" and (lengths > length).any():
        row = int(np.argmax(lengths > length))
        shown = texts[row] if len(texts[row]) <= 60 else texts[row][:57] + "..."
        raise UserError(
            f"an utterance of {dataset.client_ids[dataset.example_clients[row]]!r} has"
            f" {lengths[row]} tokens with its end, and the model only {length} positions: {shown!r}"
        )
    ids = np.zeros((len(texts), length), np.int32)
    for row, tokens in enumerate(encoded):
        tokens = [*tokens[:length], end][:length]
        ids[row, : len(tokens)] = tokens
    is_token = np.arange(length) < lengths[:, None]
    return dataclasses.replace(
        dataset,
        features={"text": ids, "context": utterances.labels},
        labels=np.where(is_token, ids, np.int32(NO_LABEL)),
    )


def _split_users(utterances: Utterances, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the indices of the users for training, validation and test."""
    rng = generator(Purpose.SPLIT, check_count("seed", seed))
    dataset, num_contexts = utterances.to_client_dataset(), utterances.num_labels
    check_num_clients(utterances.name, dataset.num_clients, minimum=3)
    main_contexts = most_frequent_labels(dataset)
    _, validation, test = UNSEEN_FRACTIONS
    num_validation, num_test = (
        max(1, int(np.floor(dataset.num_clients * share + 0.5))) for share in (validation, test)
    )
    num_train = dataset.num_clients - num_validation - num_test

    cells = np.unique(dataset.example_clients * num_contexts + dataset.labels)
    cell_users, cell_contexts = np.divmod(cells, num_contexts)
    order = _stratified_order(rng, main_contexts)
    ranks = np.argsort(order)
    needed = np.zeros(dataset.num_clients, bool)
    while True:
        # Users needed for a context come first, then the others in random order.
        order = np.lexsort((ranks, ~needed))
        in_train = np.zeros(dataset.num_clients, bool)
        in_train[order[:num_train]] = True
        seen = np.bincount(cell_contexts[in_train[cell_users]], minlength=num_contexts)
        if seen.all():
            break
        missing = int(seen.argmin())
        candidates = cell_users[cell_contexts == missing]
        if not candidates.size or needed.sum() == num_train:
            raise UserError(
                f"the {num_train} users for training of {utterances.name} cannot have all of its"
                f" {num_contexts} contexts: none has {utterances.label_names[missing]!r}; keep"
                " only contexts with more utterances, or more users"
            )
        needed[candidates[ranks[candidates].argmin()]] = True
    held_out = np.flatnonzero(~in_train)
    held_out = held_out[_stratified_order(rng, main_contexts[held_out])]
    return np.flatnonzero(in_train), held_out[:num_validation], held_out[num_validation:]


def _stratified_order(rng: np.random.Generator, strata: np.ndarray) -> np.ndarray:
    """Returns a random order, (n,), of which each first part has its share of each stratum."""
    by_stratum = np.lexsort((rng.random(strata.size), strata))
    sizes = np.bincount(strata)
    places = np.arange(strata.size) - (np.cumsum(sizes) - sizes)[strata[by_stratum]]
    quantiles = (places + 0.5) / sizes[strata[by_stratum]]
    return by_stratum[np.lexsort((rng.random(strata.size), quantiles))]


NO_TOKEN = -1


def add_sampled_history(
    dataset: ClientDataset, *, length: int, num_samples: Sequence[int], seed: int
) -> ClientDataset:
    """Adds the feature "history" to each utterance: a sample of the client's other utterances.

    Args:
        dataset: Utterances, with labels as of `models.utterance_prediction`.
        length: Tokens of a history, >= 1; longer ones are cut.
        num_samples: The possible numbers of utterances in a history, with equal probability.
        seed: Seed of the samples.

    Returns:
        The data set with "history", int32 (n, length), padded by `NO_TOKEN`.
    """
    rng = generator(Purpose.HISTORY, seed)
    history = np.full([dataset.num_examples, length], NO_TOKEN, np.int32)
    numbers = rng.choice(np.asarray(num_samples), dataset.num_examples)
    for client in range(dataset.num_clients):
        rows = np.arange(dataset.offsets[client], dataset.offsets[client + 1])
        if len(rows) < 2:
            continue
        for row in rows:
            places = rng.integers(0, len(rows) - 1, numbers[row])
            others = rows[places + (rows[places] >= row)]
            history[row] = _join(dataset.labels, others, length)
    return _with_history(dataset, history)


def add_support_history(
    dataset: ClientDataset, support: ClientDataset, *, length: int
) -> ClientDataset:
    """Adds the feature "history" to each utterance: the client's support set.

    The format is that of `add_sampled_history`.
    """
    rows = [np.arange(*support.offsets[i : i + 2]) for i in range(support.num_clients)]
    histories = np.stack([_join(support.labels, places, length) for places in rows])
    return _with_history(dataset, histories[dataset.example_clients])


def _join(labels: np.ndarray, rows: np.ndarray, length: int) -> np.ndarray:
    """Joins the tokens of utterances, int32 (length,)."""
    joined = np.full(length, NO_TOKEN, np.int32)
    # Each utterance has a token, so utterances beyond the length cannot be part of it.
    tokens = labels[rows[:length]]
    tokens = tokens[tokens >= 0][:length]
    joined[: len(tokens)] = tokens
    return joined


def _with_history(dataset: ClientDataset, history: np.ndarray) -> ClientDataset:
    return dataclasses.replace(dataset, features={**dataset.features, "history": history})
