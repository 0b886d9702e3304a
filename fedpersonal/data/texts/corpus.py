"""The sentences of many clients, as numbers of words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset, group_rows
from fedpersonal.data.loaded import LoadedData
from fedpersonal.errors import UserError

# Which of a client's sentences are kept where they are too many: the earliest, or the first ones in
# the order in which they are stored.
KEPT_SENTENCES = ("earliest", "first_stored")


@dataclasses.dataclass(frozen=True, eq=False)
class TextCorpus(LoadedData):
    """Sentences of many clients, a client's contiguous and in time order.

    Attributes:
        name: What the corpus is, such as "stack_exchange".
        client_ids: (num_clients,) distinct names, str objects.
        client_offsets: (num_clients + 1,) int64; client `i` owns sentences
            `client_offsets[i]:client_offsets[i + 1]`.
        sentence_offsets: (num_sentences + 1,) int64; sentence `j` owns words
            `sentence_offsets[j]:sentence_offsets[j + 1]`.
        words: (num_words,) int32 indices into the lexicon.
        lexicon: (num_distinct,) distinct words, str objects; some may not occur.
        report: How many things of which kind were left out when the corpus was made.
    """

    name: str
    client_ids: np.ndarray
    client_offsets: np.ndarray
    sentence_offsets: np.ndarray
    words: np.ndarray
    lexicon: np.ndarray
    report: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        dtypes = {"client_ids": object, "client_offsets": np.int64, "sentence_offsets": np.int64}
        for field, dtype in {**dtypes, "words": np.int32, "lexicon": object}.items():
            object.__setattr__(self, field, np.asarray(getattr(self, field), dtype))
        offsets = self.sentence_offsets
        if offsets.ndim != 1 or not offsets.size or offsets[0] or (np.diff(offsets) < 0).any():
            raise UserError("sentence_offsets must start at 0 and never descend")
        if self.words.shape != (offsets[-1],):
            raise UserError(
                f"words must have shape ({offsets[-1]},), as the sentence_offsets end there,"
                f" got {self.words.shape}"
            )
        if self.words.size and not 0 <= self.words.min() <= self.words.max() < self.lexicon.size:
            raise UserError(f"words must be in [0, {self.lexicon.size}), the lexicon's size")
        self._by_client()

    def _by_client(self) -> ClientDataset:
        """The sentences' indices as examples, which checks the clients and can choose some."""
        return ClientDataset(
            self.client_ids, self.client_offsets, features={}, labels=np.arange(self.num_sentences)
        )

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.client_ids.size

    @property
    def num_sentences(self) -> int:
        """How many sentences all clients have together."""
        return self.sentence_offsets.size - 1

    @property
    def sizes(self) -> dict[str, int]:
        """How many sentences, users and words there are."""
        sizes = {"num_sentences": self.num_sentences, "num_users": self.num_clients}
        return {**sizes, "num_words": self.words.size}

    @property
    def word_clients(self) -> np.ndarray:
        """The index of the client that wrote each word, (num_words,) int64."""
        counts = np.diff(self.sentence_offsets[self.client_offsets])
        return np.repeat(np.arange(self.num_clients), counts)

    def subset(self, client_indices: Sequence[int] | np.ndarray) -> TextCorpus:
        """Returns the same sentences of some clients only, with the same lexicon and report.

        Indices are as of `ClientDataset.subset`.
        """
        chosen = self._by_client().subset(client_indices)
        rows, offsets = group_rows(self.sentence_offsets, chosen.labels)
        return dataclasses.replace(
            self,
            client_ids=chosen.client_ids,
            client_offsets=chosen.offsets,
            sentence_offsets=offsets,
            words=self.words[rows],
        )
