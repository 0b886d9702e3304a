"""Labelled texts out of a table: a row what a user wrote at a time, and where or with what end."""

from __future__ import annotations

import os

import numpy as np

from fedpersonal.data.document_filter import DocumentFilter
from fedpersonal.data.documents import Documents
from fedpersonal.data.text_columns import is_blank, read_text_table, row_times, usable_rows
from fedpersonal.errors import UserError


def read_documents(
    path: str | os.PathLike,
    *,
    user_column: str = "user",
    text_column: str = "text",
    label_column: str = "context",
    time_column: str | None = "time",
    num_labels: int | None = 100,
    min_comments: int = 15,
    max_comments: int | None = None,
    name: str | None = None,
) -> Documents:
    """Reads the labelled texts of a .csv, .tsv or .jsonl file (or .json), gzipped or not.

    Lines that cannot be read, rows without user, text, label or time, rows of other labels, and
    then users with too few or too many texts are left out, and counted in the report.

    Args:
        path: The file; its extension tells the format, and `.gz` after it the compression.
        user_column: The column of the users' names.
        text_column: The column of the texts.
        label_column: The column of the labels, text or numbers.
        time_column: The column of the times, numbers or dates as in ISO 8601, which order a
            user's texts; None for the order of the rows, which also decides among equal times.
            The default may be missing from the file, any other name may not.
        num_labels: How many labels to keep, the most frequent, >= 2; None if they are 0 or 1,
            of which `DocumentFilter` knows other spellings.
        min_comments: Users with fewer texts of these labels are left out, >= 1.
        max_comments: Users with more are left out, too, >= `min_comments`; None for no such limit.
        name: What to call the documents; None for the file's name without its extensions.

    Returns:
        The documents, users by name, labels by falling frequency (or "0" and "1").

    Raises:
        UserError: If an option is out of range, the file as a whole cannot be read, lacks a
            column, has no row to be used, fewer labels than `num_labels`, or no user who has as
            many texts as wanted.
    """
    wanted = DocumentFilter(
        num_labels=num_labels, min_comments=min_comments, max_comments=max_comments
    )
    path = os.fspath(path)
    columns = (user_column, text_column, label_column)
    table = read_text_table(path, columns, time_column=time_column)
    times = row_times(table, time_column)
    unusable = {f"rows with an empty {c!r}": is_blank(table.columns[c]) for c in columns}
    unusable[f"rows with an unreadable {time_column!r}"] = np.isnan(times)
    usable, report = usable_rows(table, unusable)
    users, texts, labels = (table.columns[column][usable] for column in columns)
    try:
        return wanted.documents(
            users,
            texts,
            labels,
            times[usable],
            name=os.path.basename(path).split(".")[0] if name is None else name,
            report=report,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
