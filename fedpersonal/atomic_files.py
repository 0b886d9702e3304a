"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

TEMPORARY_SUFFIX = ".unfinished"
# Permissions of files that hold local variables of clients: their owner alone reads them.
OWNER_ONLY = 0o600


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike, mode: str = "w", *, permissions: int = 0o666
) -> Iterator[IO]:
    """Opens a file for writing, in a folder that is made, that takes its name only when complete.

    A reader, and a process killed at any moment, sees the former file or the new one.

    Args:
        path: The file to write.
        mode: 'w' for UTF-8 text, 'wb' for bytes.
        permissions: Those of the file, less what the process masks; `OWNER_ONLY` for what others
            must not read.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, permissions)
        with open(descriptor, mode, encoding=encoding, newline=newline) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text and a last line end."""
    with atomic_write(path) as file:
        file.write(text + "\n")


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a JSON file of what `to_json` takes."""
    with atomic_write(path) as file:
        json.dump(to_json(value), file, indent=2, allow_nan=False)
        file.write("\n")


def write_csv(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file of rows, of which the first names the columns."""
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def to_json(value: Any) -> Any:
    """Returns a value as JSON can hold it.

    NumPy numbers and arrays, tuples, sets, dataclasses and paths become numbers, lists, objects and
    texts; infinities and NaN, for which JSON has no numbers, the texts that `float` reads.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(to_json, value))
    if isinstance(value, (list, tuple, range)):
        return [to_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
