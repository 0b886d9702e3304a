"""Utterances: users' sentences with a context each, as in section 4.1 of FedPerC."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from fedpersonal.data.clients import group_rows
from fedpersonal.data.formats import Column
from fedpersonal.data.sources import check_count, check_counts, prefix_errors
from fedpersonal.data.tables import named_columns
from fedpersonal.errors import UserError, join_words, quoted
from fedpersonal.suite.readers.labelled_texts import LabelledRows, LabelledTexts, read_labelled_rows
from fedpersonal.suite.readers.sentences import count_words, split_sentences

# Appendix C: the main characters of the first show, the most frequent ones of the second.
TV_SHOWS = {"Friends": 6, "Game of Thrones": 13}

# Other names in the scripts of characters who may be among the most frequent.
TV_SHOWS_OTHER_NAMES = {
    "Deanerys Targarian": "Daenerys Targaryen",
    "Lord Varys": "Varys",
    "Petyr": "Petyr Baelish",
    "Sam": "Sam Tarly",
    "Ser Jorah": "Jorah Mormont",
}


class Utterances(LabelledTexts):
    """Sentences of clients; the label of a sentence is its context.

    A client may have utterances of several contexts.
    """

    nouns = ("utterances", "contexts")


def read_utterances(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    text_column: str = "text",
    context_column: str = "context",
    time_column: str | None = "time",
    users_per_context: Mapping[str, int] | int | None = None,
    min_utterances: int = 1,
    min_context_utterances: int = 1,
    min_tokens: int = 3,
    other_names: Mapping[str, str] | None = None,
) -> Utterances:
    """Reads the utterances of a table by `read_table`, which counts bad rows.

    A row is one text of a user; each of its sentences is an utterance. A user of several contexts
    is one client. Names that differ only in case or in white space are one name.

    The report counts what is left out, in this order: bad rows; rows of contexts and users that
    `users_per_context` does not choose; rows of quotations only; short sentences; users and
    contexts with too few utterances, repeatedly, until all remaining ones have enough. Users are
    ordered by `number_names`, contexts by descending number of utterances.

    Args:
        path: The table.
        user_column: The column of the users' names.
        text_column: The column of the texts.
        context_column: The column of the contexts' names.
        time_column: The column that orders a user's utterances, as of `time_columns`: times, or
            text such as "s01e02" if no row has a time. Rows with equal times keep their order.
        users_per_context: The number of users to keep of each context, >= 1: a number for each of
            the contexts to keep, one number for all contexts, or None for all users. The users with
            the most rows in the context stay, of equally frequent ones the alphabetically first. A
            user chosen in one context keeps the rows of all kept contexts.
        min_utterances: Users with fewer utterances are left out, >= 1.
        min_context_utterances: Contexts with fewer utterances are left out, >= 1.
        min_tokens: Sentences with fewer words and marks are left out, >= 1.
        other_names: Another name of a user in the table to the user's name.

    Raises:
        UserError: As of `read_table`, or if the table lacks a context that `users_per_context`
            names or has fewer users of it, or no utterance is left.
    """
    limits = {"min_context_utterances": min_context_utterances, "min_tokens": min_tokens}
    if isinstance(users_per_context, Mapping):
        if not users_per_context:
            raise UserError("users_per_context must name a context, got an empty mapping")
        limits.update({f"users_per_context[{k!r}]": n for k, n in users_per_context.items()})
    elif users_per_context is not None:
        limits["users_per_context"] = users_per_context
    check_counts(1, min_utterances=min_utterances, **limits)
    columns = named_columns(
        user_column=user_column, text_column=text_column, context_column=context_column
    )
    rows = _read_rows(path, columns, time_column, other_names)
    with prefix_errors(os.fspath(path)):
        rows = _keep_frequent_users(rows, users_per_context)
        texts, text_rows = _long_sentences(rows, min_tokens)
        kept = _keep_enough(rows, text_rows, min_utterances, min_context_utterances)
    text_rows = text_rows[kept]
    contexts = rows.labels[text_rows].remove_unused_categories()
    by_frequency = np.argsort(
        -np.bincount(contexts.codes), kind="stable"
    )  # Ties are ordered by name.
    return rows.group(
        Utterances,
        text_rows,
        np.argsort(by_frequency)[contexts.codes],
        np.array(contexts.categories, object)[by_frequency],
        texts=texts[kept],
    )


def read_other_texts(
    path: str | os.PathLike,
    users: Collection[str],
    *,
    user_column: str = "user",
    text_column: str = "text",
    context_column: str = "context",
    min_tokens: int = 3,
    other_names: Mapping[str, str] | None = None,
) -> np.ndarray:
    """Reads the sentences of all users except `users`, to pretrain a model.

    Names are compared as in `read_utterances`, which has the same options.

    Returns:
        (n,) str objects, n >= 0: the sentences of all contexts in the order of the file.
    """
    check_count("min_tokens", min_tokens, minimum=1)
    columns = named_columns(
        user_column=user_column, text_column=text_column, context_column=context_column
    )
    rows = _read_rows(path, columns, None, other_names)
    chosen = {_key(name) for name in users}
    others = np.array([_key(name) not in chosen for name in rows.users.categories], bool)
    rows = rows.keep(others[rows.users.codes], "")
    return _long_sentences(rows, min_tokens)[0]


def _read_rows(
    path: str | os.PathLike,
    columns: Sequence[Column],
    time_column: str | None,
    other_names: Mapping[str, str] | None,
) -> LabelledRows:
    rows = read_labelled_rows(path, columns, time_column, times="order")
    users, contexts = (
        _unify_spelling(rows.users, other_names or {}),
        _unify_spelling(rows.labels, {}),
    )
    return dataclasses.replace(rows, users=users, labels=contexts)


def _key(name: str) -> str:
    """Returns a key that is equal for the spellings of one name."""
    return " ".join(name.split()).casefold()


def _unify_spelling(names: pd.Categorical, other_names: Mapping[str, str]) -> pd.Categorical:
    """Replaces other names, then gives each name its most frequent spelling."""
    names = names.remove_unused_categories()
    replaced = {_key(other): name for other, name in other_names.items()}
    cleaned = [replaced.get(_key(n), " ".join(n.split())) for n in names.categories]
    spellings = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    for name, count in zip(cleaned, np.bincount(names.codes)):
        spellings[_key(name)][name] += int(count)
    chosen = {key: counts.most_common(1)[0][0] for key, counts in spellings.items()}
    spelled = np.array([chosen[_key(name)] for name in cleaned], object)
    return pd.Categorical(spelled[names.codes])


def _keep_frequent_users(
    rows: LabelledRows, users_per_context: Mapping[str, int] | int | None
) -> LabelledRows:
    if users_per_context is None:
        return rows
    limits = np.zeros(len(rows.labels.categories), np.int64)
    if isinstance(users_per_context, Mapping):
        places = {_key(name): i for i, name in enumerate(rows.labels.categories)}
        for context, number in users_per_context.items():
            if _key(context) not in places:
                contexts = join_words(rows.labels.categories)
                raise UserError(f"there is no context {context!r}, only {contexts}")
            limits[places[_key(context)]] = number
    else:
        limits[:] = users_per_context
    rows = rows.keep(limits[rows.labels.codes] > 0, "rows of other contexts")

    # A dense matrix of all users and contexts may be too large for memory.
    cells = pd.DataFrame({"context": rows.labels.codes, "user": rows.users.codes})
    cells = cells.value_counts(sort=False).reset_index(name="rows")
    cells = cells.sort_values(["context", "rows", "user"], ascending=[True, False, True])
    num_users = np.bincount(cells["context"], minlength=limits.size)
    if isinstance(users_per_context, Mapping) and (num_users < limits).any():
        short = int(np.argmax(num_users < limits))
        raise UserError(
            f"users_per_context asks for {limits[short]} users of"
            f" {quoted(rows.labels.categories[short])}, which has {num_users[short]}"
        )
    is_frequent = cells.groupby("context").cumcount() < limits[cells["context"]]
    chosen = np.isin(rows.users.codes, cells["user"][is_frequent])
    return rows.keep(chosen, "rows of less frequent users")


def _long_sentences(rows: LabelledRows, min_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sentences with enough tokens, (n,) str objects, and the row of each."""
    texts = pd.Categorical(rows.texts).remove_unused_categories()
    sentences = [split_sentences(text) for text in texts.categories]
    offsets = np.cumsum([0, *map(len, sentences)])
    rows.report["rows of quotations only"] += int((np.diff(offsets)[texts.codes] == 0).sum())
    distinct = list(itertools.chain.from_iterable(sentences))
    indices, bounds = group_rows(offsets, texts.codes)
    is_long = count_words(distinct)[indices] >= min_tokens
    rows.report[f"sentences with fewer than {min_tokens} tokens"] += int((~is_long).sum())
    text_rows = np.repeat(np.arange(len(texts)), np.diff(bounds))
    return np.array(distinct, object)[indices[is_long]], text_rows[is_long]


def _keep_enough(
    rows: LabelledRows, text_rows: np.ndarray, min_utterances: int, min_context_utterances: int
) -> np.ndarray:
    """Returns the indices, (m,), of the utterances of users and contexts that have enough."""
    users, contexts = rows.users.codes[text_rows], rows.labels.codes[text_rows]
    kept = np.arange(text_rows.size)
    while True:
        has_enough = np.bincount(users[kept], minlength=1)[users[kept]] >= min_utterances
        counts = np.bincount(contexts[kept], minlength=1)
        has_enough &= counts[contexts[kept]] >= min_context_utterances
        if has_enough.all():
            break
        kept = kept[has_enough]
    if not kept.size:
        raise UserError(
            f"no users with min_utterances={min_utterances} in contexts with"
            f" min_context_utterances={min_context_utterances} are left; the most utterances of a"
            f" user are {np.bincount(users, minlength=1).max()}, and of a context"
            f" {np.bincount(contexts, minlength=1).max()}"
        )
    for noun, codes in (("users", users), ("contexts", contexts)):
        left_out = np.unique(codes).size - np.unique(codes[kept]).size
        rows.report[f"{noun} with too few utterances"] += left_out
    rows.report["utterances of these"] += text_rows.size - kept.size
    return kept
