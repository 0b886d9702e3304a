"""Which utterances a program is about, as something that can be handed to another process."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from fedpersonal.data.generated.dialogues import GeneratedDialogues, generate_dialogues
from fedpersonal.data.sources import Sources
from fedpersonal.data.texts.utterances import (
    TV_SHOWS,
    TV_SHOWS_OTHER_NAMES,
    Utterances,
    read_other_texts,
    read_utterances,
)
from fedpersonal.tasks.utterances.data import Encode, UtteranceData, split_known, split_withheld

SOURCES = Sources(
    holding="utterances in contexts",
    datasets=("generated", "tv_shows", "reddit"),
    default="generated",
    files={
        "tv_shows": ("tv_shows.jsonl.gz", "tv_shows.jsonl", "tv_shows.csv"),
        "reddit": ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv"),
    },
    only_by_name=("reddit",),
)

# Appendix C: users with fewer utterances, and contexts with fewer, are left out.
_REDDIT_MINIMA = (50, 150)


@dataclasses.dataclass(frozen=True)
class UtteranceChoice:
    """Where utterances come from and which of them are kept.

    What None stands for is the paper's filter of the source: of `tv_shows` the users of `TV_SHOWS`,
    of `reddit` users with 50 utterances and contexts with 150, of a `file` all users and contexts.
    The filter does not apply to `generated`.

    Attributes:
        source: `tv_shows`, `reddit`, `file` or `generated`, as of `SOURCES`.
        path: The table, or None of `generated`.
        user_column: Of the table.
        text_column: Of the table.
        context_column: Of the table.
        time_column: Of the table; may be missing.
        users_per_context: The most frequent users that are kept, of each context so many or
            (context, number) pairs of the contexts that are kept; None as above.
        min_utterances: Users with fewer are left out; None as above.
        min_context_utterances: Contexts with fewer are left out; None as above.
        min_tokens: Sentences with fewer words and marks are left out.
    """

    source: str
    path: str | None = None
    user_column: str = "user"
    text_column: str = "text"
    context_column: str = "context"
    time_column: str = "time"
    users_per_context: int | tuple[tuple[str, int], ...] | None = None
    min_utterances: int | None = None
    min_context_utterances: int | None = None
    min_tokens: int = 3

    def load(
        self,
        encode: Encode,
        *,
        withheld: bool,
        length: int,
        padding: int,
        end: int,
        too_long: str = "cut",
        seed: int,
    ) -> UtteranceData:
        """Loads, splits and encodes the utterances.

        Args:
            encode: Makes a list of ids, each >= 0, of each of a list of texts.
            withheld: Whether to validate and test on other users than those for training.
            length: Places for the tokens of an utterance.
            padding: The id that fills places without a token.
            end: The id after the last token of an utterance.
            too_long: What to do with longer utterances: `cut` or `error`.
            seed: Seed of the splits.

        Raises:
            UserError: If there are too few users or utterances, one is too long, or the data
                cannot be read.
        """
        split = split_withheld if withheld else split_known
        return split(
            _load(self),
            encode,
            length=length,
            padding=padding,
            end=end,
            too_long=too_long,
            seed=seed,
        )

    def other_texts(self) -> np.ndarray:
        """The sentences of all users who are not among the chosen ones.

        A model that is trained on them before has seen nothing of those who take part.

        Returns:
            (n,) str objects; n may be 0.

        Raises:
            UserError: If the data cannot be read.
        """
        if self.source == "generated":
            return _generated().others.texts
        return read_other_texts(
            self.path,
            _load(self).client_ids.tolist(),
            user_column=self.user_column,
            text_column=self.text_column,
            context_column=self.context_column,
            min_tokens=self.min_tokens,
            other_names=self._other_names(),
        )

    def summary(self) -> str:
        """Returns a line that says what there is, and what was left out."""
        return _load(self).summary()

    def describe(self) -> dict[str, object]:
        """Returns what tells these utterances from others, and how many there are."""
        kept = {} if self.source == "generated" else self._filter()
        return {**_load(self).describe(), **kept}

    def _filter(self) -> dict[str, object]:
        """Returns the options of the filter, without None."""
        users = self.users_per_context
        if users is None and self.source == "tv_shows":
            users = tuple(TV_SHOWS.items())
        minima = _REDDIT_MINIMA if self.source == "reddit" else (1, 1)
        given = (self.min_utterances, self.min_context_utterances)
        least, least_of_context = (m if g is None else g for g, m in zip(given, minima))
        return {
            "users_per_context": dict(users) if isinstance(users, tuple) else users,
            "min_utterances": least,
            "min_context_utterances": least_of_context,
            "min_tokens": self.min_tokens,
        }

    def _other_names(self) -> dict[str, str] | None:
        return TV_SHOWS_OTHER_NAMES if self.source == "tv_shows" else None


@functools.lru_cache(maxsize=1)
def _generated() -> GeneratedDialogues:
    # One set of sentences for all seeds; what differs is its split.
    return generate_dialogues(seed=0)


@functools.lru_cache(maxsize=1)
def _load(choice: UtteranceChoice) -> Utterances:
    if choice.source == "generated":
        return _generated().named
    return read_utterances(
        choice.path,
        user_column=choice.user_column,
        text_column=choice.text_column,
        context_column=choice.context_column,
        time_column=choice.time_column,
        other_names=choice._other_names(),
        **choice._filter(),
    )
