"""Files of ours: written whole or not at all, and with a digest by which damage is noticed.

There is one digest. A JSON object holds its own, arrays have it behind them, and rows of a table
that grows are added to one that somebody else keeps (a checkpoint, the saved model). Whatever does
not match is damaged, and `damaged` is the one sentence about that.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import pathlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from fedpersonal.errors import UserError

TEMPORARY_SUFFIX = ".unfinished"
# Permissions of files that hold local variables of clients: their owner alone reads them.
OWNER_ONLY = 0o600
_DIGEST = "digest"
_DIGEST_SIZE = 8
# So deep are JSON's lists and objects at most: Python reads deeper ones than it writes.
_DEEPEST = 100


def digest(content: bytes) -> str:
    """Returns what tells content from any other: 16 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).hexdigest()


def digest_with_row(before: str, cells: Mapping[str, str]) -> str:
    """Returns the digest of the rows before, "" for none, and of one more.

    Args:
        before: The digest of the rows before.
        cells: The row's cells by column; empty ones, and the order of columns, do not count.
    """
    row = json.dumps({name: cell for name, cell in cells.items() if cell}, sort_keys=True)
    return digest(f"{before}{row}".encode())


def damaged(path: str | os.PathLike) -> UserError:
    """Returns the error that says that a file is not what was written."""
    return UserError(f"{path} is damaged or was changed: restore it, or start a new folder.")


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
    """Writes a JSON file of what `to_json` takes; `checked` adds its digest to an object."""
    value = to_json(value)
    if checked:
        value = {**value, _DIGEST: digest(_canonical(value))}
    with atomic_write(path, permissions=permissions) as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def write_arrays(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], *, permissions: int = 0o666
) -> None:
    """Writes arrays by name, as an .npz file with a digest behind it."""
    with atomic_write(path, "wb", permissions=permissions) as file:
        file.write(pack_arrays(arrays))


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file.

    Raises:
        UserError: If it is missing, no file or not to be read.
    """
    try:
        # Who opens a pipe waits until somebody writes to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise damaged(path)
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def read_text(path: str | os.PathLike) -> str:
    """Reads a UTF-8 file, as `read_bytes`; other bytes are a UserError, too."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path) from error


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
        UserError: If it cannot be read or is something else, or its digest does not match.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
        _check_depth(value)
    except (RecursionError, ValueError) as error:
        raise damaged(path) from error
    is_whole = isinstance(value, kind)
    if is_whole and checked:
        is_whole = value.pop(_DIGEST, None) == digest(_canonical(value))
    if not is_whole:
        raise damaged(path)
    for name, types in (entries or {}).items():
        if name not in value or not isinstance(value[name], types):
            raise damaged(path)
    return value


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads what `write_arrays` wrote.

    Raises:
        UserError: If it cannot be read, or is not that, to the bit.
    """
    content = read_bytes(path)
    try:
        return unpack_arrays(content)
    except ValueError as error:
        raise damaged(path) from error


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns an .npz file, as `np.load` reads it, with its digest behind it."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    return content + bytes.fromhex(digest(content))


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays of what `pack_arrays` made.

    Raises:
        ValueError: If it is not that, to the bit.
    """
    content, known = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
    if known.hex() != digest(content):
        raise ValueError("the digest is another one")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # Errors of a dozen kinds, from zipfile's to NumPy's.
        raise ValueError("there are no arrays") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("there are other members than arrays")  # NumPy returns their bytes.
    return arrays


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        containers = (part for part in level if isinstance(part, (dict, list)))
        level = [i for c in containers for i in (c.values() if isinstance(c, dict) else c)]
    if level:
        raise RecursionError


def _canonical(value: Any) -> bytes:
    """Returns the text of JSON's values, whatever the order and the spaces in a file."""
    return json.dumps(value, sort_keys=True).encode(errors="surrogatepass")


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
