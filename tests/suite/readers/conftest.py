"""What tests of data share."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest


class _Examples(list):
    """What TensorFlow Datasets returns, in two batches."""

    def map(self, function):
        return _Examples(map(function, self))

    def batch(self, size):
        assert size > 2
        return [tuple(map(np.stack, zip(*part))) for part in (self[:2], self[2:])]


@pytest.fixture
def fake_tfds(monkeypatch):
    """Puts a builder in the place of TensorFlow Datasets, which needs a network and seconds.

    It is made of its name, examples, its folder, and what its preparation raises.
    """

    def fake(name, examples, folder, failure=None):
        def prepare():
            if failure is not None:
                raise failure

        def as_dataset(*, split, shuffle_files):
            assert (split, shuffle_files) == ("train", False)
            return _Examples(examples)

        url = "https://example.invalid/ml-1m.zip"
        builder = types.SimpleNamespace(
            builder_config=types.SimpleNamespace(download_url=url),
            data_dir=str(folder),
            download_and_prepare=prepare,
            as_dataset=as_dataset,
        )

        def find(wanted, data_dir):
            assert wanted.startswith(name)
            return builder

        tfds = types.SimpleNamespace(builder=find, as_numpy=lambda data: data)
        monkeypatch.setitem(sys.modules, "tensorflow_datasets", tfds)

    return fake
