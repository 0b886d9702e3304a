from __future__ import annotations

import gc
import sys

import pytest

from fedpersonal import runtime

_TFF = "tensorflow_federated"


@pytest.fixture(autouse=True)
def _thaw():
    frozen = gc.get_freeze_count()
    yield
    gc.enable()
    if not frozen:
        gc.unfreeze()


def test_no_garbage_is_looked_for_while_tff_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, _TFF, raising=False)
    gc.unfreeze()
    with pytest.raises(ImportError), runtime.quick_imports():
        assert not gc.isenabled()
        made = [[]]
        raise ImportError
    assert gc.isenabled() and gc.get_freeze_count()
    assert not any(found is made for found in gc.get_objects())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nothing_is_changed_otherwise(monkeypatch, is_enabled):
    """Where TFF is there, or the program does without the collector."""
    monkeypatch.delitem(sys.modules, _TFF, raising=False)
    if is_enabled:
        monkeypatch.setitem(sys.modules, _TFF, sys)
    else:
        gc.disable()
    before = gc.get_freeze_count()
    with runtime.quick_imports():
        assert gc.isenabled() is is_enabled
    assert gc.isenabled() is is_enabled
    assert gc.get_freeze_count() == before
