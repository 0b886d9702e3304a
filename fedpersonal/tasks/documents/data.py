"""Who trains on which texts, and is tested on which (Bui et al., section 4.1)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Union

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.encoders import CharacterVocabulary, HashedWords, build_characters
from fedpersonal.data.labelled_texts import LabelledTexts, most_frequent_labels
from fedpersonal.data.splits import (
    check_num_clients,
    split_clients,
    split_examples,
    split_support_query,
)
from fedpersonal.draws import Purpose
from fedpersonal.errors import UserError
from fedpersonal.evaluation.guess import Guess
from fedpersonal.evaluation.means import group_means, shrunken_means
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.evaluation.statistics import auc
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.documents.task import DocumentRun

# Guesses by their names.
USERS_LABEL, LABEL_OF_ALL = "each user's most frequent label", "the most frequent label"
USERS_RATE, RATE_OF_ALL = "each user's own rate", "the rate of all"
SHRUNKEN_RATES = "shrunken rates of text and user"

Vocabulary = Union[CharacterVocabulary, HashedWords]


@dataclasses.dataclass(frozen=True, eq=False)
class DocumentData(Data):
    """Labelled texts, split for one experiment.

    The features are "text", ids of the vocabulary, (n, places) int32; of hashed words also
    "num_words", how many ids are no padding, (n,) int32; and "user", the user's index among those
    who train, (n,) int32, 0 for unseen ones. Labels are (n,): int32, or float32 0 and 1 if
    `is_binary`. `validation` and `test` are other texts of those who train.

    Attributes:
        label_names: (num_labels,) str objects.
        is_binary: Whether to predict a probability, as of a click, and not a class.
        vocabulary: What gives texts their ids; characters are those of `train`.
        unseen: Users who never take part, and one half of their texts each.
    """

    train: ClientDataset
    label_names: np.ndarray
    is_binary: bool
    vocabulary: Vocabulary
    unseen: EvaluationSet

    @property
    def num_users(self) -> int:
        """How many users take part: the rows of a table of user embeddings."""
        return self.train.num_clients


def split_documents(
    documents: LabelledTexts, options: DocumentRun, *, num_characters: int = 128
) -> DocumentData:
    """Sets some users apart, and splits the texts of each other user 80/10/10 % at random.

    Args:
        documents: The texts.
        options: How texts are encoded, the share of users who never take part, and the seed.
        num_characters: Known characters at most, the most frequent ones, >= 1.

    Raises:
        UserError: If there are fewer than 10 users, none of the others has the 5 texts of which one
            can be held out, or the test texts have but one of two labels.
    """
    seed, share = options.seed, options.unseen_users
    check_num_clients(documents.name, documents.num_clients, minimum=10)
    seen, _, others = split_clients(
        documents.num_clients,
        fractions=(1.0 - share, 0.0, share),
        seed=seed,
        purpose=Purpose.UNSEEN_CLIENTS,
    )
    rows = {"row": np.arange(documents.texts.size)}
    texts = ClientDataset(documents.client_ids, documents.offsets, rows, documents.labels)
    train, validation, test = split_examples(texts.subset(np.sort(seen)), seed=seed, ordered=False)
    if not test.num_examples:
        raise UserError(f"no user of {documents.name} has 5 texts, of which one can be held out")
    if documents.is_binary and len(np.unique(test.labels)) < 2:
        raise UserError(
            f"the {test.num_examples} test texts of {documents.name} all have the same label, "
            "which leaves nothing to rank; more texts are needed"
        )
    vocabulary: Vocabulary
    if options.text_encoder == "hashed_words":
        vocabulary = HashedWords(options.word_buckets)
        encoded = dict(zip(("text", "num_words"), vocabulary.encode(documents.texts)))
    else:
        read = documents.texts[train.features["row"]]
        vocabulary = build_characters(read, num_characters=num_characters)
        encoded = {"text": vocabulary.encode(documents.texts, length=options.text_length)}

    def encode(part: ClientDataset, users: np.ndarray) -> ClientDataset:
        of_texts = {name: values[part.features["row"]] for name, values in encoded.items()}
        return dataclasses.replace(
            part,
            features={**of_texts, "user": users.astype(np.int32)},
            labels=part.labels.astype(np.float32 if documents.is_binary else np.int32),
        )

    unseen = texts.subset(np.sort(others))
    unseen = encode(unseen, np.zeros(unseen.num_examples))
    train, validation, test = (
        encode(part, part.example_clients) for part in (train, validation, test)
    )
    return DocumentData(
        documents.name,
        train,
        EvaluationSet(train, validation, seen=True),
        EvaluationSet(train, test, seen=True),
        documents.label_names,
        documents.is_binary,
        vocabulary,
        EvaluationSet(*split_support_query(unseen, batch_size=1, split="aggregated")),
    )


def guess_labels(data: DocumentData, part: EvaluationSet) -> dict[str, Guess]:
    """Guesses the labels of a part without a model of its texts.

    Returns:
        By the guess' name, the accuracy of each user's most frequent label in the support set, and
        of the most frequent training label of all. Of labels of 0 and 1 also the AUC of each user's
        own rate and of the rate of all, and the AUC and the accuracy of shrunken rates of text and
        user. A film's text is the same for all who have seen it.
    """
    support, query = part.support, part.query
    labels, whose = query.labels, query.example_clients
    overall = np.bincount(data.train.labels.astype(np.int64)).argmax()
    guesses = {
        USERS_LABEL: Guess.of_labels(query, most_frequent_labels(support)[whose]),
        LABEL_OF_ALL: Guess.of_labels(query, np.full(len(labels), overall)),
    }
    if data.is_binary:
        # A user without texts to support is guessed at the rate of all.
        rate = data.train.labels.mean(dtype=np.float64)
        of_users = group_means(support.labels - rate, support.example_clients, support.num_clients)
        (train, own, asked), num_texts = _with_items(data.train, support, query)
        rates = shrunken_means(train, own, asked, num_texts)
        area = {"auc": auc(labels, rates)}
        guessed = Guess.of_labels(query, rates > 0.5)
        guesses |= {
            USERS_RATE: Guess({"auc": auc(labels, of_users[whose])}),
            RATE_OF_ALL: Guess({"auc": auc(labels, np.full(len(labels), rate))}),
            SHRUNKEN_RATES: Guess({**guessed.metrics, **area}, guessed.clients),
        }
    return guesses


def _with_items(*parts: ClientDataset) -> tuple[list[ClientDataset], int]:
    """Returns parts whose feature "item" is the same for the same text, and how many it tells."""
    ids: dict[bytes, int] = {}  # Some 30 times as fast as `np.unique` of 1.5 million rows.
    items = [
        np.array([ids.setdefault(row.tobytes(), len(ids)) for row in part.features["text"]], int)
        for part in parts
    ]
    told = [dataclasses.replace(p, features={"item": i}) for p, i in zip(parts, items)]
    return told, len(ids)


@dataclasses.dataclass(frozen=True, eq=False)
class ResultsWithArea(ClientResults):
    """Results of labels of 0 and 1, with `auc`.

    Attributes:
        query: What was predicted.
    """

    query: ClientDataset | None = None

    def overall(self) -> dict[str, float]:
        """Returns the metrics over all clients, after personalisation."""
        assert self.query is not None
        return {**super().overall(), **area_metric(self, self.query)}


def area_metric(results: ClientResults, query: ClientDataset) -> dict[str, float]:
    """Returns the area as `auc`; nothing where all labels are the same."""
    predictions = results.predictions
    assert predictions is not None
    is_real = np.arange(predictions.shape[1]) < query.counts[:, np.newaxis]
    area = auc(query.labels, predictions[is_real])
    return {} if math.isnan(area) else {"auc": area}
