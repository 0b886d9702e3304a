"""What a machine lacks is asked for in another way, or refused in one line."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest

from fedpersonal import runtime
from fedpersonal.errors import UserError
from fedpersonal.runtime import choose


def test_the_peak_of_memory_is_known_without_proc(monkeypatch):
    peak = runtime.peak_rss_mb()
    monkeypatch.setattr(choose, "_STATUS", pathlib.Path("/nowhere/status"))
    # What has started this process may count, too.
    assert 0.9 * peak < runtime.peak_rss_mb() < 100 * peak


def test_without_tff_its_runtime_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="^The runtime tff needs TensorFlow Federated, which is"):
        runtime.check_runtime("tff")


_WITHOUT_TFF = """
import importlib.util
from fedpersonal import tff
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "tensorflow_federated" else find(name)
try:
    from fedpersonal.tff import stock
except Exception as error:
    print(type(error).__name__, error)
"""
_OTHER_KERAS = """
import sys, types
import tensorflow as tf
other = types.ModuleType("tensorflow.keras")
other.Model = type("Model", (), {"__module__": "keras_3.src.models"})
tf.keras = sys.modules["tensorflow.keras"] = other
try:
    import fedpersonal.model.keras
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.exhaustive(but=("Keras 3",))
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (_WITHOUT_TFF, "TensorFlow Federated is not installed here. Its runtime"),
        (_OTHER_KERAS, "tf.keras is Keras 3 here"),
    ],
    ids=["what TFF alone has", "Keras 3"],
)
def test_what_is_not_there_is_refused_in_a_line(run_program, tmp_path, program, said):
    output, errors, status = run_program("-c", program, cwd=tmp_path)
    assert (status, output.count("\n")) == (0, 1), errors
    assert output.startswith(f"UserError {said}")
