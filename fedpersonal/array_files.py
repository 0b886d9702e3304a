"""Arrays by name, as bytes that tell whether they are whole."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping

import numpy as np

from fedpersonal.errors import one_line, quoted

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
            arrays = dict(file)
    except Exception as error:  # Errors of a dozen kinds, from zipfile's to NumPy's.
        raise ValueError(f"it holds no arrays ({one_line(error)})") from error
    for name, array in arrays.items():  # NumPy returns the bytes of other members.
        if not isinstance(array, np.ndarray):
            raise ValueError(f"its {quoted(name)} is no array")
    return arrays


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest()
