"""Arrays by name, as bytes that tell whether they are whole."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping

import numpy as np

_DIGEST_SIZE = 16


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns an .npz file, as `np.load` reads it, with a checksum behind it."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    content = file.getvalue()
    return content + _digest(content)


def unpack_arrays(content: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays of what `pack_arrays` made.

    Raises:
        ValueError: If it is not that, to the bit.
    """
    content, digest = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
    if digest != _digest(content):
        raise ValueError("its checksum is wrong")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return dict(file)
    except (EOFError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from error


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest()
