"""Who trains on which texts, and is tested on which (Bui et al., section 4.1)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.splits import (
    check_num_clients,
    split_clients,
    split_examples,
    split_support_query,
)
from fedpersonal.data.texts.characters import CharacterVocabulary, build_characters
from fedpersonal.data.texts.labelled import LabelledTexts, most_frequent_labels
from fedpersonal.errors import UserError
from fedpersonal.evaluation.auc import auc
from fedpersonal.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.tasks.documents.task import DocumentRun


@dataclasses.dataclass(frozen=True, eq=False)
class DocumentData(Data):
    """Labelled texts, split for one experiment.

    The features are "text", the characters' ids, (n, text_length) int32, and "user", the user's
    index among those who train, (n,) int32, 0 for unseen ones. Labels are (n,): int32, or
    float32 0 and 1 if `is_binary`. `validation` and `test` are other texts of those who train.

    Attributes:
        label_names: (num_labels,) str objects.
        is_binary: Whether to predict a probability, as of a click, and not a class.
        characters: The characters' ids, from `train`.
        unseen: Users who never take part, and one half of their texts each.
    """

    train: ClientDataset
    label_names: np.ndarray
    is_binary: bool
    characters: CharacterVocabulary
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
        options: Characters of a text, the share of users who never take part, and the seed.
        num_characters: Known characters at most, the most frequent ones, >= 1.

    Raises:
        UserError: If there are fewer than 10 users, none of the others has the 5 texts of which one
            can be held out, or the test texts have but one of two labels.
    """
    seed, share = options.seed, options.unseen_users
    check_num_clients(documents.name, documents.num_clients, minimum=10)
    seen, _, others = split_clients(
        documents.num_clients, fractions=(1.0 - share, 0.0, share), seed=seed
    )
    texts = documents.to_client_dataset()
    train, validation, test = split_examples(texts.subset(np.sort(seen)), seed=seed, ordered=False)
    if not test.num_examples:
        raise UserError(f"no user of {documents.name} has 5 texts, of which one can be held out")
    if documents.is_binary and len(np.unique(test.labels)) < 2:
        raise UserError(
            f"the {test.num_examples} test texts of {documents.name} all have the same label, "
            "which leaves nothing to rank; more texts are needed"
        )
    characters = build_characters(train.features["text"], num_characters=num_characters)

    def encode(part: ClientDataset, users: np.ndarray) -> ClientDataset:
        return dataclasses.replace(
            part,
            features={
                "text": characters.encode(part.features["text"], length=options.text_length),
                "user": users.astype(np.int32),
            },
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
        characters,
        EvaluationSet(*split_support_query(unseen, batch_size=1, split="aggregated")),
    )


def guessing_accuracy(data: DocumentData) -> dict[str, float]:
    """How good a guess without reading is, of the test texts.

    Returns:
        The accuracies, in [0, 1], of a user's most frequent training label as
        `users_most_frequent`, and of the most frequent one of all as `overall_most_frequent`; of
        labels of 0 and 1 also the AUC of each user's own training rate, `users_rate_auc`.
    """
    test = data.test.query
    labels = test.labels
    of_users = most_frequent_labels(data.train)[test.example_clients]
    overall = np.bincount(data.train.labels.astype(np.int64)).argmax()
    guesses = {
        "users_most_frequent": float(np.mean(labels == of_users)),
        "overall_most_frequent": float(np.mean(labels == overall)),
    }
    if data.is_binary:
        # A user without training texts is guessed at the rate of all.
        counts, rate = data.train.counts, data.train.labels.mean()
        sums = np.bincount(data.train.example_clients, data.train.labels, len(counts))
        rates = np.where(counts > 0, sums / np.maximum(counts, 1), rate)
        guesses["users_rate_auc"] = auc(labels, rates[test.example_clients])
    return guesses
