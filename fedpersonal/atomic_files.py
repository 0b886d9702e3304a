"""Files of ours: written whole or not at all, and read with care."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from fedpersonal.errors import UserError, one_line

TEMPORARY_SUFFIX = ".unfinished"
# Permissions of files that hold local variables of clients: their owner alone reads them.
OWNER_ONLY = 0o600
_CHECKSUM = "checksum"
# So deep are JSON's lists and objects at most: Python reads deeper ones than it writes.
_DEEPEST = 100


@contextlib.contextmanager
def explained(path: str | os.PathLike) -> Iterator[None]:
    """Turns what the system says against writing a file into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, os.fspath(path), _temporary(path)):
            raise
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def _temporary(path: str | os.PathLike) -> str:
    return os.fspath(path) + TEMPORARY_SUFFIX


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

    Raises:
        UserError: If the system does not let it be written.
    """
    temporary = _temporary(path)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    with explained(path):
        os.makedirs(os.path.dirname(temporary) or ".", exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, permissions)
            with open(descriptor, mode, encoding=encoding, newline=newline) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a text and a last line end."""
    with atomic_write(path) as file:
        file.write(text + "\n")


def write_json(
    path: str | os.PathLike, value: Any, *, checked: bool = False, permissions: int = 0o666
) -> None:
    """Writes a JSON file of what `to_json` takes; `checked` adds the checksum of an object."""
    value = to_json(value)
    if checked:
        value = {**value, _CHECKSUM: _checksum(value)}
    with atomic_write(path, permissions=permissions) as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file.

    Raises:
        UserError: If it is missing, no file or not to be read.
    """
    try:
        # Who opens a pipe waits until somebody writes to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"{path} is damaged: it is not a file.")
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def read_text(path: str | os.PathLike) -> str:
    """Reads a UTF-8 file, as `read_bytes`; other bytes are a UserError, too."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: its byte {error.start} is not UTF-8.") from None


def read_json(
    path: str | os.PathLike,
    entries: Mapping[str, type | tuple[type, ...]] | None = None,
    *,
    kind: type[dict] | type[list] = dict,
    checked: bool = False,
) -> Any:
    """Reads a JSON file.

    Args:
        path: The file.
        entries: What an object must have, by name: of which types.
        kind: What it holds: `dict` for an object, or `list`.
        checked: Whether it was written so.

    Raises:
        UserError: If it cannot be read or is something else, or its checksum is wrong.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
        _check_depth(value)
    except RecursionError:
        raise UserError(f"{path} is damaged: it is nested too deeply.") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {one_line(error)}.") from None
    if not isinstance(value, kind):
        wanted = "object" if kind is dict else "list"
        raise UserError(f"{path} is damaged: it holds no JSON {wanted}.")
    if checked:
        found = value.pop(_CHECKSUM, None)
        if found != _checksum(value):
            raise UserError(f"{path} was changed after it was written: its checksum is wrong.")
    for name, types in (entries or {}).items():
        if not isinstance(value.get(name), types):
            raise UserError(f"{path} is damaged: its {name!r} is missing or of another type.")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        containers = (part for part in level if isinstance(part, (dict, list)))
        level = [i for c in containers for i in (c.values() if isinstance(c, dict) else c)]
    if level:
        raise RecursionError


def _checksum(value: Any) -> str:
    """Returns that of what JSON holds, in whatever order."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


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
