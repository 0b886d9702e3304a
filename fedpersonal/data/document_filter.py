"""Which labels and which users of a collection of texts take part."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.data.checks import check_count
from fedpersonal.data.documents import BINARY_LABELS, Documents
from fedpersonal.errors import UserError

_BINARY = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}


@dataclasses.dataclass(frozen=True)
class DocumentFilter:
    """First the labels that are frequent, then the users who have enough texts of these.

    Attributes:
        num_labels: How many labels to keep, >= 2: the most frequent, of equally frequent ones
            the alphabetically first. None for labels that are 0 or 1, also written 0.0 and 1.0,
            or false and true in any case.
        min_comments: Users with fewer texts of these labels are left out, >= 1.
        max_comments: Users with more are left out, too, >= `min_comments`; None for no such limit.

    Raises:
        UserError: If an option is out of range.
    """

    num_labels: int | None
    min_comments: int
    max_comments: int | None = None

    def __post_init__(self):
        """Checks the fields."""
        if self.num_labels is not None:
            check_count("num_labels", self.num_labels, minimum=2)
        check_count("min_comments", self.min_comments, minimum=1)
        if self.max_comments is not None:
            check_count("max_comments", self.max_comments, minimum=self.min_comments)

    def documents(
        self,
        users: Sequence[str],
        texts: Any,
        labels: Sequence[str],
        times: np.ndarray | None = None,
        *,
        name: str,
        report: Mapping[str, int],
    ) -> Documents:
        """Numbers users and labels, and leaves out what is too little or too much.

        Args:
            users: (n,) names, categories or an array of str.
            texts: What gives str objects (m,) when it is indexed by rows, (m,) int64 in [0, n).
            labels: (n,) names, like `users`.
            times: (n,) numbers that order a user's texts; None for the order of the rows, which
                also decides among equal times.
            name: What to call the documents.
            report: How many things of which kind have been left out before.

        Returns:
            The documents, users by name, labels by falling frequency among all rows (or "0" and
            "1"), and the report with what this leaves out.

        Raises:
            UserError: If there are fewer than `num_labels` labels, none that is 0 or 1, or no
                user who has as many texts as wanted.
        """
        users = pd.Categorical(users).remove_unused_categories()
        labels = pd.Categorical(labels).remove_unused_categories()
        if self.num_labels is None:
            label_names, numbers = BINARY_LABELS, _binary_numbers(labels)
            others = "rows with a label other than 0 and 1"
        else:
            label_names, numbers = _most_frequent(labels, self.num_labels)
            others = f"rows of other labels than the {self.num_labels} most frequent"
        row_labels = numbers[labels.codes]
        labelled = row_labels >= 0

        counts = np.bincount(users.codes[labelled], minlength=len(users.categories))
        few = counts < self.min_comments
        many = np.zeros_like(few) if self.max_comments is None else counts > self.max_comments
        kept = ~(few | many)
        if not kept.any():
            limit = "" if self.max_comments is None else f" to max_comments={self.max_comments}"
            raise UserError(
                f"no user has min_comments={self.min_comments}{limit} texts of these labels; the "
                f"most that one has is {counts.max(initial=0)}"
            )
        report = collections.Counter(report)
        report[others] = int((~labelled).sum())
        report[f"users with fewer than {self.min_comments} texts"] = int(few.sum())
        report["texts of these users"] = int(counts[few].sum())
        report[f"users with more than {self.max_comments} texts"] = int(many.sum())
        report["texts of those users"] = int(counts[many].sum())

        rows = np.flatnonzero(labelled & kept[users.codes])
        times = np.zeros(row_labels.size) if times is None else times
        rows = rows[np.lexsort((times[rows], users.codes[rows]))]
        return Documents(
            name=name,
            client_ids=np.array(users.categories, object)[kept],
            offsets=np.append(0, np.cumsum(counts[kept])),
            texts=texts[rows],
            labels=row_labels[rows],
            label_names=label_names,
            report={what: count for what, count in report.items() if count},
        )


def _binary_numbers(labels: pd.Categorical) -> np.ndarray:
    """Returns the number of each category, (num_categories,) int32, -1 if it is to go."""
    numbers = [_BINARY.get(label.strip().lower(), -1) for label in labels.categories]
    if max(numbers, default=-1) < 0:
        examples = ", ".join(repr(label[:20]) for label in labels.categories[:3])
        raise UserError(f"without num_labels the labels must be 0 or 1, got such as {examples}")
    return np.array(numbers, np.int32)


def _most_frequent(labels: pd.Categorical, num_labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the names kept, (num_labels,), and numbers as `_binary_numbers` does."""
    if num_labels > len(labels.categories):
        raise UserError(
            f"num_labels={num_labels} is more than the {len(labels.categories)} distinct labels"
            " that there are"
        )
    counts = np.bincount(labels.codes, minlength=len(labels.categories))
    chosen = np.argsort(-counts, kind="stable")[:num_labels]  # Categories are alphabetical.
    numbers = np.full(counts.size, -1, np.int32)
    numbers[chosen] = np.arange(num_labels)
    return np.array(labels.categories, object)[chosen], numbers
