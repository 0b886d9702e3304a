from __future__ import annotations

import hashlib
import io
import itertools
import zipfile

import numpy as np
import pytest

from fedpersonal.files import pack_arrays, unpack_arrays

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


def forged():
    """Contents with right checksums that `pack_arrays` does not make."""
    file = io.BytesIO()
    np.save(file, np.ones(2))
    yield b"", "it holds no arrays"
    yield file.getvalue(), "it holds no arrays"
    zipped = pack_arrays({"a": np.ones(2)})[:-16]
    # Its flags say that it is encrypted; its compression is an unknown one.
    for place, value in ((zipped.index(b"PK\1\2") + 8, 1), (zipped.index(b"PK\1\2") + 10, 99)):
        yield zipped[:place] + bytes([value]) + zipped[place + 1 :], "it holds no arrays"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("text", b"hello")
    yield file.getvalue(), "its 'text' is no array"


# A zip file holds the time: its bytes are no name, by which processes agree on the tests.
@pytest.mark.parametrize(("content", "message"), forged(), ids=itertools.count())
def test_what_holds_no_arrays_is_one_line(content, message):
    digest = hashlib.blake2b(content, digest_size=16).digest()
    with pytest.raises(ValueError, match=message):
        unpack_arrays(content + digest)
