"""The split of texts into training, validation and test sets (Bui et al., section 4.1)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Union

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import (
    check_num_clients,
    split_clients,
    split_examples,
    split_support_query,
)
from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import Baseline
from fedpersonal.evaluation.means import group_means, shrunken_means
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.evaluation.statistics import auc
from fedpersonal.randomness import Purpose
from fedpersonal.suite.readers.encoders import CharacterVocabulary, HashedWords, build_characters
from fedpersonal.suite.readers.labelled_texts import LabelledTexts, most_frequent_labels
from fedpersonal.suite.tasks.task import Data, EvaluationSet

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.labels.options import DocumentRun

# Names of baselines, which are keys in summaries.
USERS_LABEL, LABEL_OF_ALL = "each user's most frequent label", "the most frequent label"
USERS_RATE, RATE_OF_ALL = "each user's own rate", "the rate of all"
SHRUNKEN_RATES = "shrunken rates of text and user"

Vocabulary = Union[CharacterVocabulary, HashedWords]


@dataclasses.dataclass(frozen=True, eq=False)
class DocumentData(Data):
    """Labelled texts, split for one experiment.

    The features are "text", ids of the vocabulary, (n, places) int32; for hashed words also
    "num_words", the number of ids that are no padding, (n,) int32; and "user", (n,) int32, the
    user's index among training users, 0 for unseen users. Labels are (n,): int32, or float32 0 and
    1 if `is_binary`. `validation` and `test` are other texts of training users.

    Attributes:
        label_names: (num_labels,) str objects.
        is_binary: Whether to predict a probability, as of a click, and not a class.
        vocabulary: The encoder of texts as ids; its characters are those of `train`.
        unseen: Unseen users; half of their texts are support sets, half query sets.
    """

    train: ClientDataset
    label_names: np.ndarray
    is_binary: bool
    vocabulary: Vocabulary
    unseen: EvaluationSet

    @property
    def num_users(self) -> int:
        """The number of training users, which is that of rows of a table of user embeddings."""
        return self.train.num_clients


def split_documents(
    documents: LabelledTexts, options: DocumentRun, *, num_characters: int = 128
) -> DocumentData:
    """Makes a share of users unseen, and splits each other user's texts 80/10/10 % at random.

    Args:
        documents: The texts.
        options: The text encoder, the share of unseen users, and the seed.
        num_characters: The maximal number of characters in the vocabulary, the most frequent ones,
            >= 1.

    Raises:
        UserError: If there are fewer than 10 users, no seen user has the 5 texts that holding one
            out needs, or all test texts have the same of two labels.
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
        features = {name: values[part.features["row"]] for name, values in encoded.items()}
        return dataclasses.replace(
            part,
            features={**features, "user": users.astype(np.int32)},
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


def label_baselines(data: DocumentData, part: EvaluationSet) -> dict[str, Baseline]:
    """Returns baselines without a model of texts.

    Returns:
        Baseline's name to its metrics. All have the accuracy of each user's most frequent label in
        the support set, and of the most frequent training label. Binary labels also have the AUC of
        each user's rate and of the overall rate, and the AUC and accuracy of shrunken rates of text
        and user. A film's text is the same for all users who have seen it.
    """
    support, query = part.support, part.query
    labels, users = query.labels, query.example_clients
    overall = np.bincount(data.train.labels.astype(np.int64)).argmax()
    baselines = {
        USERS_LABEL: Baseline.from_labels(query, most_frequent_labels(support)[users]),
        LABEL_OF_ALL: Baseline.from_labels(query, np.full(len(labels), overall)),
    }
    if data.is_binary:
        # Users with an empty support set get the overall rate.
        rate = data.train.labels.mean(dtype=np.float64)
        user_rates = group_means(
            support.labels - rate, support.example_clients, support.num_clients
        )
        (train, support, query), num_texts = _with_items(data.train, support, query)
        rates = shrunken_means(train, support, query, num_texts)
        area = {"auc": auc(labels, rates)}
        shrunken = Baseline.from_labels(query, rates > 0.5)
        baselines |= {
            USERS_RATE: Baseline({"auc": auc(labels, user_rates[users])}),
            RATE_OF_ALL: Baseline({"auc": auc(labels, np.full(len(labels), rate))}),
            SHRUNKEN_RATES: Baseline({**shrunken.metrics, **area}, shrunken.clients),
        }
    return baselines


def _with_items(*parts: ClientDataset) -> tuple[list[ClientDataset], int]:
    """Returns parts with the feature "item", an id of the text, and the number of texts."""
    ids: dict[bytes, int] = {}  # About 30 times as fast as `np.unique` of 1.5 million rows.
    items = [
        np.array([ids.setdefault(row.tobytes(), len(ids)) for row in part.features["text"]], int)
        for part in parts
    ]
    parts_with_items = [
        dataclasses.replace(part, features={"item": item_ids})
        for part, item_ids in zip(parts, items)
    ]
    return parts_with_items, len(ids)


@dataclasses.dataclass(frozen=True, eq=False)
class ResultsWithAuc(ClientResults):
    """Results for labels of 0 and 1, with `auc`.

    Attributes:
        query: The predicted query sets.
    """

    query: ClientDataset | None = None

    def overall(self) -> dict[str, float]:
        """Returns the metrics pooled over examples, after personalisation."""
        assert self.query is not None
        return {**super().overall(), **auc_metric(self, self.query)}


def auc_metric(results: ClientResults, query: ClientDataset) -> dict[str, float]:
    """Returns the area under the ROC curve as `auc`; empty if all labels are the same."""
    predictions = results.predictions
    assert predictions is not None
    is_real = np.arange(predictions.shape[1]) < query.counts[:, np.newaxis]
    area = auc(query.labels, predictions[is_real])
    return {} if math.isnan(area) else {"auc": area}
