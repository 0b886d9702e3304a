"""Files that others wrote, as bytes and line by line, within limits that no honest table meets."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import io
import math
import os
import stat
import typing
import zlib
from collections.abc import Iterator

from fedpersonal.errors import UserError

MAX_ROW_LENGTH = 1 << 24  # Characters.
# A gzip file of more characters than this may have so many for each of its bytes.
_MIN_EXPANDED, _MAX_EXPANSION = 1 << 22, 100


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[io.BufferedReader]:
    """Opens a regular file to read; what goes wrong until it is closed becomes a `UserError`."""
    try:
        mode = os.stat(path).st_mode
        # Opening a pipe would wait for whoever writes to it.
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UserError(f"{path}: cannot be read: it is not a regular file")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a valid gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


@contextlib.contextmanager
def memory_for(path: str) -> Iterator[None]:
    """Turns a lack of memory for what is in a file into a `UserError`."""
    try:
        yield
    except MemoryError:
        raise UserError(f"{path}: cannot be read: there is not enough memory") from None


@dataclasses.dataclass
class Lines:
    """The lines of a text file; bytes that its encoding lacks are lone surrogates.

    Attributes:
        path: Where it is; gzipped if its name ends in `.gz`.
        encoding: Of the text.
        row_length: Characters of the lines that have been read of a row; to be set to 0 before the
            next row.
    """

    path: str
    encoding: str
    row_length: int = 0

    def __iter__(self) -> Iterator[str]:
        """Yields the lines with their ends, whichever these are.

        Raises:
            UserError: If the file cannot be read, a row has more than `MAX_ROW_LENGTH` characters,
                or the file is far longer than its compressed bytes can honestly say.
        """
        with open_bytes(self.path) as file:
            is_gzip = self.path.lower().endswith(".gz")
            binary = typing.cast(typing.BinaryIO, gzip.GzipFile(fileobj=file) if is_gzip else file)
            with io.TextIOWrapper(binary, self.encoding, "surrogateescape", newline="") as text:
                length, allowed = 0, _MIN_EXPANDED if is_gzip else math.inf
                read = functools.partial(text.readline, MAX_ROW_LENGTH + 1)
                for number, line in enumerate(iter(read, ""), start=1):
                    self.row_length += len(line)
                    if self.row_length > MAX_ROW_LENGTH:
                        raise UserError(
                            f"{self.path}, line {number}: a row of more than {MAX_ROW_LENGTH:,}"
                            " characters"
                        )
                    length += len(line)
                    if length > allowed:
                        allowed = max(allowed, _MAX_EXPANSION * file.tell())
                        if length > allowed:
                            raise UserError(
                                f"{self.path}: its text is more than {_MAX_EXPANSION} times as long"
                                " as the gzip file; if that is right, unpack it first"
                            )
                    yield line
