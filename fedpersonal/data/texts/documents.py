"""Labelled texts out of a table: the frequent labels, and the users with enough texts of these."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_count, errors_of
from fedpersonal.data.tables.reading import named_columns
from fedpersonal.data.texts.labelled import (
    BINARY_LABELS,
    LabelledRows,
    LabelledTexts,
    read_labelled_rows,
)
from fedpersonal.errors import UserError, quoted

_BINARY = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}


@dataclasses.dataclass(frozen=True)
class DocumentFilter:
    """First the labels that are frequent, then the users who have enough texts of these.

    Attributes:
        num_labels: How many labels to keep at most, >= 2: the most frequent, of equally frequent
            ones the alphabetically first. None for labels that are 0 or 1, also written 0.0 and
            1.0, or false and true in any case.
        min_texts: Users with fewer texts of these labels are left out, >= 1.
        max_texts: Users with more are left out, too, >= `min_texts`; None for no such limit.
    """

    num_labels: int | None
    min_texts: int
    max_texts: int | None = None

    def __post_init__(self):
        check_count("min_texts", self.min_texts, minimum=1)
        for name, minimum in (("num_labels", 2), ("max_texts", self.min_texts)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=minimum)

    def documents(self, rows: LabelledRows) -> LabelledTexts:
        """Numbers users and labels, and leaves out what is too little or too much.

        Users are ordered as of `number_names`, labels by falling frequency among all rows (or "0"
        and "1").

        Raises:
            UserError: If there is only one label, none that is 0 or 1, or no user who has as many
                texts as wanted.
        """
        users = rows.users.remove_unused_categories()
        labels = rows.labels.remove_unused_categories()
        if self.num_labels is None:
            label_names, numbers = np.array(BINARY_LABELS, object), _binary_numbers(labels)
            others = "rows with a label other than 0 and 1"
        else:
            label_names, numbers = _most_frequent(labels, self.num_labels)
            others = f"rows of other labels than the {len(label_names)} most frequent"
        row_labels = numbers[labels.codes]
        labelled = row_labels >= 0

        counts = np.bincount(users.codes[labelled], minlength=len(users.categories))
        few = counts < self.min_texts
        many = counts > (np.inf if self.max_texts is None else self.max_texts)
        if (few | many).all():
            limit = "" if self.max_texts is None else f" to max_texts={self.max_texts}"
            raise UserError(
                f"no user has min_texts={self.min_texts}{limit} texts of these labels; the "
                f"most that one has is {counts.max(initial=0)}"
            )
        rows.report[others] += int((~labelled).sum())
        rows.report[f"users with fewer than {self.min_texts} texts"] += int(few.sum())
        rows.report["texts of these users"] += int(counts[few].sum())
        rows.report[f"users with more than {self.max_texts} texts"] += int(many.sum())
        rows.report["texts of those users"] += int(counts[many].sum())
        kept = np.flatnonzero(labelled & ~(few | many)[users.codes])
        return rows.grouped(LabelledTexts, kept, row_labels[kept], label_names)


def read_documents(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    text_column: str = "text",
    label_column: str = "context",
    time_column: str | None = "time",
    num_labels: int | None = 100,
    min_texts: int = 15,
    max_texts: int | None = None,
) -> LabelledTexts:
    """Reads the labelled texts of a table, as of `read_table`, which counts bad rows.

    Columns are as of `read_text`, labels being texts or numbers, and the other options as of
    `DocumentFilter`, which counts in the report what it leaves out.
    """
    wanted = DocumentFilter(num_labels=num_labels, min_texts=min_texts, max_texts=max_texts)
    columns = named_columns(
        user_column=user_column, text_column=text_column, label_column=label_column
    )
    rows = read_labelled_rows(path, columns, time_column)
    with errors_of(os.fspath(path)):
        return wanted.documents(rows)


def _binary_numbers(labels: pd.Categorical) -> np.ndarray:
    """Returns the number of each category, (num_categories,) int32, -1 if it is to go."""
    numbers = [_BINARY.get(label.strip().lower(), -1) for label in labels.categories]
    if max(numbers, default=-1) < 0:
        examples = ", ".join(quoted(label) for label in labels.categories[:3])
        raise UserError(f"without num_labels the labels must be 0 or 1, got such as {examples}")
    return np.array(numbers, np.int32)


def _most_frequent(labels: pd.Categorical, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the names kept and numbers as `_binary_numbers` does."""
    if len(labels.categories) < 2:
        label = quoted(labels.categories[0])
        raise UserError(f"all rows have the label {label}; at least 2 are needed")
    counts = np.bincount(labels.codes, minlength=len(labels.categories))
    chosen = np.argsort(-counts, kind="stable")[:num_labels]  # Categories are alphabetical.
    numbers = np.full(counts.size, -1, np.int32)
    numbers[chosen] = np.arange(chosen.size)
    return np.array(labels.categories, object)[chosen], numbers
