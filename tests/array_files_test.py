from __future__ import annotations

import io

import numpy as np
import pytest

from fedpersonal.array_files import pack_arrays, unpack_arrays

ARRAYS = {
    "a/b": np.array([[1.0, np.nan], [-0.0, np.inf]], np.float32),
    "text": np.array(["x", "\u00e9"]),
    "number": np.array(3, np.int64),
    "none": np.zeros((0, 2), bool),
}


def test_arrays_come_back_to_the_bit():
    content = pack_arrays(ARRAYS)
    for found in (unpack_arrays(content), dict(np.load(io.BytesIO(content)))):
        assert list(found) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def test_any_other_byte_is_noticed():
    content = pack_arrays(ARRAYS)
    for place in range(len(content)):
        with pytest.raises(ValueError, match="its checksum is wrong"):
            unpack_arrays(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(ValueError, match="its checksum is wrong"):
            unpack_arrays(content[:place])
