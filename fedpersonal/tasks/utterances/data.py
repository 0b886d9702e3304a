"""Who trains on which utterances, and is tested on which, as in FedPerC's section 4.1."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.labelled_texts import most_frequent_labels
from fedpersonal.data.sources import check_count
from fedpersonal.data.splits import check_num_clients, split_examples
from fedpersonal.data.utterances import Utterances
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.models.gpt2 import BaseModel
    from fedpersonal.tasks.utterances.source import UtteranceRun

# What a label is where there is nothing to predict.
NO_LABEL = -1

# Shares of train, validation and test: of a user's utterances, and of the users.
SEEN_FRACTIONS = (0.6, 0.2, 0.2)
UNSEEN_FRACTIONS = (0.7, 0.15, 0.15)

# Utterances of a client that personalise before it is validated.
VALIDATION_SAMPLES = 15

Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


@dataclasses.dataclass(frozen=True, eq=False)
class UtteranceData(Data):
    """Tokenised utterances, split for one experiment.

    The features are "text", the tokens' ids with the end of the text after them and padding after
    that, id 0, (n, length) int32; "user", the user's index among those who train, (n,) int32, 0 for
    unseen ones; "context", (n,) int32; and "vector", (n, numbers) float32, the user's vector, if
    there are such. There is no token before the text: a model starts from
    its prefix. Labels are what to predict at each place, the same ids, (n, length) int32, and
    `NO_LABEL` where there is padding.

    `validation` and `test` are other utterances of those who train, or those of other users: 15 of
    a client's personalise for validation, and all but its query for the test.

    Attributes:
        context_names: (num_contexts,) str objects.
        test_clients: All utterances of `test`, for other numbers that personalise.
        base: The base model that they are tokenised for, or None.
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

    Evaluated on `unseen` users, those for training have all contexts. Each part has about the same
    shares of the contexts that users are most often in, and at least one user.

    Args:
        utterances: The utterances.
        encode: Makes a list of ids, each >= 0, of each of a list of texts.
        options: The places for the tokens of an utterance; whether longer ones are `cut`, which
            have no end then, or an `error`; whom to evaluate on; and the seed.
        end: The id after the last token of an utterance, >= 0.
        vectors: A vector of each user, float32 (users, numbers), or None.

    Raises:
        UserError: If an utterance is too long, or those for training would lack a context. Of seen
            users, if none has the 3 utterances of which one can be held out; of unseen ones, if
            there are fewer than 3.
    """
    seed, seen = options.seed, options.evaluate_on == "seen"
    dataset = _encode(utterances, encode, end, options)
    if vectors is not None:
        features = {**dataset.features, "vector": vectors[dataset.example_clients]}
        dataset = dataclasses.replace(dataset, features=features)
    if not seen:
        parts = [dataset.subset(np.sort(users)) for users in _deal_users(utterances, seed)]
        return _as_data(utterances, *parts, seen=False, seed=seed)
    train, *others = split_examples(dataset, fractions=SEEN_FRACTIONS, seed=seed, ordered=False)
    if not others[-1].num_examples:
        raise UserError(f"no user of {utterances.name} has 3 utterances, so none can be held out")
    there = np.bincount(train.features["context"], minlength=utterances.num_labels)
    if not there.all():
        raise UserError(
            f"all utterances for training are of other contexts than"
            f" {utterances.label_names[there.argmin()]!r}; keep only contexts with more utterances"
        )
    return _as_data(utterances, train, *others, seen=True, seed=seed)


def _as_data(utterances: Utterances, *parts: ClientDataset, seen: bool, seed: int) -> UtteranceData:
    def samples(part: ClientDataset, count: int | None) -> EvaluationSet:
        return EvaluationSet(*finetuning_sets(part, num_samples=count, seed=seed), seen=seen)

    numbered: list[ClientDataset] = []
    for part in parts:
        # Unseen users are number 0.
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
    """Splits each client's examples into some to fine-tune on and others to test on.

    A client's examples are shuffled. The first half, rounded up, is its query set, whatever
    `num_samples` is; its support set are the `num_samples` next ones, so that more samples include
    the fewer. The only example of a client is its query.

    Args:
        part: The examples.
        num_samples: A client's examples to fine-tune on, >= 0, or fewer if it has fewer; None for
            all that are not its query.
        seed: A whole number >= 0; the same seed gives the same sets.

    Returns:
        The support and the query sets, with all clients in both; within each a client's examples
        keep their order.

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
    """Makes ids and labels of the texts."""
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


def _deal_users(utterances: Utterances, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the users of the three parts, as indices."""
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
        # Users needed for a context come first, and then the others by chance.
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
    """Orders things (n,) by chance, so that any first part has its share of each stratum."""
    by_stratum = np.lexsort((rng.random(strata.size), strata))
    sizes = np.bincount(strata)
    places = np.arange(strata.size) - (np.cumsum(sizes) - sizes)[strata[by_stratum]]
    quantiles = (places + 0.5) / sizes[strata[by_stratum]]
    return by_stratum[np.lexsort((rng.random(strata.size), quantiles))]


NO_TOKEN = -1


def add_own_history(
    dataset: ClientDataset, *, length: int, num_samples: Sequence[int], seed: int
) -> ClientDataset:
    """Gives each utterance others of the same client, drawn at random, as feature "history".

    Args:
        dataset: Utterances, their labels as of `models.utterance_prediction`.
        length: Tokens of a history, >= 1; a longer one is cut.
        num_samples: Of how many utterances a history may be: each number is as likely.
        seed: Seed of the draws.

    Returns:
        The same with "history", int32 (n, length), `NO_TOKEN` where it ends before.
    """
    rng = generator(Purpose.HISTORY, seed)
    history = np.full([dataset.num_examples, length], NO_TOKEN, np.int32)
    wanted = rng.choice(np.asarray(num_samples), dataset.num_examples)
    for client in range(dataset.num_clients):
        rows = np.arange(dataset.offsets[client], dataset.offsets[client + 1])
        if len(rows) < 2:
            continue
        for row in rows:
            drawn = rng.integers(0, len(rows) - 1, wanted[row])
            others = rows[drawn + (rows[drawn] >= row)]
            history[row] = _join(dataset.labels, others, length)
    return _with_history(dataset, history)


def add_history_of(dataset: ClientDataset, support: ClientDataset, *, length: int) -> ClientDataset:
    """Gives each utterance what the same client has written in its support set.

    The rest is as of `add_own_history`.
    """
    rows = [np.arange(*support.offsets[i : i + 2]) for i in range(support.num_clients)]
    of_clients = np.stack([_join(support.labels, own, length) for own in rows])
    return _with_history(dataset, of_clients[dataset.example_clients])


def _join(labels: np.ndarray, rows: np.ndarray, length: int) -> np.ndarray:
    """Joins the tokens of utterances, int32 (length,)."""
    joined = np.full(length, NO_TOKEN, np.int32)
    # More utterances than places cannot matter: each has a token.
    tokens = labels[rows[:length]]
    tokens = tokens[tokens >= 0][:length]
    joined[: len(tokens)] = tokens
    return joined


def _with_history(dataset: ClientDataset, history: np.ndarray) -> ClientDataset:
    return dataclasses.replace(dataset, features={**dataset.features, "history": history})
