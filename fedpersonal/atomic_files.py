"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import IO

TEMPORARY_SUFFIX = ".unfinished"


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Opens a file for writing that takes its name only when it is complete and on disk.

    A reader, and a process killed at any moment, sees the former file or the new one.

    Args:
        path: The file to write.
        mode: 'w' for UTF-8 text, 'wb' for bytes.

    Yields:
        The open file.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with open(temporary, mode, **text) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
