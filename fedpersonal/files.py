"""Files of this project: written atomically, with a digest that detects damage.

A JSON object contains its digest, and arrays are followed by theirs. The digest of a growing
table's rows is kept in another file (a checkpoint, the saved model). A file with a different digest
is damaged; `damaged` is the error.
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
# Permissions of files with clients' local variables: only the file's owner can read them.
OWNER_ONLY = 0o600
_DIGEST = "digest"
_DIGEST_SIZE = 8
# The maximum depth of JSON's lists and objects: Python reads deeper ones than it writes.
_MAX_DEPTH = 100


def digest(content: bytes) -> str:
    """Returns the digest of content: 16 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).hexdigest()


def digest_with_row(before: str, cells: Mapping[str, str]) -> str:
    """Returns the digest of a table's rows after one more row.

    Args:
        before: The digest of the previous rows; "" for none.
        cells: The row's cells by column; empty cells and the order of columns are ignored.
    """
    row = json.dumps({name: cell for name, cell in cells.items() if cell}, sort_keys=True)
    return digest(f"{before}{row}".encode())


def damaged(path: str | os.PathLike) -> UserError:
    """Returns the error that a file differs from what was written."""
    return UserError(f"{path} is damaged or was changed: restore it, or start a new folder.")


@contextlib.contextmanager
def report_write_errors(path: str | os.PathLike) -> Iterator[None]:
    """Turns a system error of writing a file into a UserError that names the file."""
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
    """Opens a file for writing that gets its name only when it is complete; makes its folder.

    Readers see the former file or the new one, even after a kill at any moment.

    Args:
        path: The file to write.
        mode: 'w' for UTF-8 text, 'wb' for bytes.
        permissions: The file's permissions, before the process' mask; `OWNER_ONLY` for files that
            others must not read.

    Raises:
        UserError: If the file cannot be written.
    """
    temporary = _temporary(path)
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "")
    with report_write_errors(path):
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
    """Writes a text and a final line end."""
    with atomic_write(path) as file:
        file.write(text + "\n")


def write_json(
    path: str | os.PathLike, value: Any, *, checked: bool = False, permissions: int = 0o666
) -> None:
    """Writes a value as JSON, as of `to_json`; `checked` adds a digest to an object."""
    value = to_json(value)
    if checked:
        value = {**value, _DIGEST: digest(_canonical(value))}
    with atomic_write(path, permissions=permissions) as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def write_arrays(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], *, permissions: int = 0o666
) -> None:
    """Writes named arrays as an .npz file, followed by a digest."""
    with atomic_write(path, "wb", permissions=permissions) as file:
        file.write(pack_arrays(arrays))


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file.

    Raises:
        UserError: If the file is missing, not a regular file or not readable.
    """
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise damaged(path)
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def read_text(path: str | os.PathLike) -> str:
    """Reads a UTF-8 file, as of `read_bytes`; other bytes raise a UserError, too."""
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
        entries: Required names of an object to their types.
        kind: The kind of JSON value: `dict` for an object, or `list`.
        checked: Whether the file was written with `checked`, that is, with a digest.

    Raises:
        UserError: If the file cannot be read, has other content, or its digest does not match.
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
    """Reads a file of `write_arrays`.

    Raises:
        UserError: If the file cannot be read or differs from what was written.
    """
    content = read_bytes(path)
    try:
        return unpack_arrays(content)
    except ValueError as error:
        raise damaged(path) from error


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of an .npz file, which `np.load` can read, followed by a digest."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    return content + bytes.fromhex(digest(content))


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays in a result of `pack_arrays`.

    Raises:
        ValueError: If the content differs from such a result.
    """
    content, expected = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
    if expected.hex() != digest(content):
        raise ValueError("the digest is another one")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # A dozen kinds of errors, from zipfile's to NumPy's.
        raise ValueError("there are no arrays") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ValueError("there are other members than arrays")  # NumPy returns their bytes.
    return arrays


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        containers = (part for part in level if isinstance(part, (dict, list)))
        level = [i for c in containers for i in (c.values() if isinstance(c, dict) else c)]
    if level:
        raise RecursionError


def _canonical(value: Any) -> bytes:
    """Returns a JSON text that is independent of the order and the spaces in a file."""
    return json.dumps(value, sort_keys=True).encode(errors="surrogatepass")


def write_csv(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a CSV file; the keys of the first row are the columns."""
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def to_json(value: Any) -> Any:
    """Converts a value to one that JSON can hold.

    NumPy numbers and arrays, tuples, sets, dataclasses and paths become numbers, lists, objects and
    texts. Infinities and NaN, which JSON lacks, become texts that `float` reads.
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
