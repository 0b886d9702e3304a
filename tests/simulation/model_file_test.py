"""The file of a run's model: what is read is what was written, by its owner alone."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.simulation.model_file import FILE, SavedModel, read_model, write_model

WEIGHTS = {"item/embeddings": np.arange(6, dtype=np.float32).reshape(2, 3), "scale": np.float32(2)}
NAMES = {"user": np.array(["Ann", "Böb"], object)}


def test_what_is_read_is_what_was_written(tmp_path):
    write_model(tmp_path, SavedModel(WEIGHTS, NAMES))
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    found = read_model(tmp_path)
    assert found.weights.keys() == WEIGHTS.keys()
    for name, value in WEIGHTS.items():
        np.testing.assert_array_equal(found.weights[name], value)
        assert found.weights[name].dtype == value.dtype
    assert found.names["user"].tolist() == ["Ann", "Böb"]


def test_missing_and_damaged_files_are_told_of(tmp_path):
    with pytest.raises(UserError, match="has no model.npz: it is no run, or its run has not ended"):
        read_model(tmp_path)
    write_model(tmp_path, SavedModel(WEIGHTS, NAMES))
    content = (tmp_path / FILE).read_bytes()
    np.savez(tmp_path / "other.npz", other=np.ones(1))
    for damage in (content[:100], b"", b"no archive", (tmp_path / "other.npz").read_bytes()):
        (tmp_path / FILE).write_bytes(damage)
        with pytest.raises(UserError, match="model.npz is damaged"):
            read_model(tmp_path)
