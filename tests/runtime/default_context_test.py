from __future__ import annotations

import sys
import types

import pytest

from fedpersonal.runtime import default_context

_TFF = "tensorflow_federated"


@pytest.fixture(name="importable")
def _importable(tmp_path, monkeypatch):
    """Puts a stand-in for TFF in its place, which notes the default contexts that are set."""
    package = tmp_path / _TFF
    package.mkdir()
    (package / "__init__.py").write_text(
        "import types\n"
        "found = ['TFF\\'s own']\n"
        "stack = types.SimpleNamespace(set_default_context=found.append)\n"
        "framework = types.SimpleNamespace(get_context_stack=lambda: stack)\n"
    )
    monkeypatch.delitem(sys.modules, _TFF, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_it_is_set_when_tff_is_imported(importable):
    default_context.set_default_context(lambda: "first")
    default_context.set_default_context(lambda: "last")
    import tensorflow_federated as tff

    assert tff.found == ["TFF's own", "last"]
    default_context.set_default_context(lambda: "now")
    assert tff.found == ["TFF's own", "last", "now"]


def test_a_failed_import_does_not_lose_it(importable):
    text = (importable / "__init__.py").read_text()
    (importable / "__init__.py").write_text("raise ImportError('not yet')")
    default_context.set_default_context(lambda: "ours")
    with pytest.raises(ImportError, match="not yet"):
        import tensorflow_federated  # noqa: F401
    (importable / "__init__.py").write_text(text + "\n" * 9)
    import tensorflow_federated as tff

    assert tff.found == ["TFF's own", "ours"]


def test_other_modules_are_found_as_ever(importable):
    default_context.set_default_context(lambda: "ours")
    sys.modules.pop("this_module", None)
    (importable.parent / "this_module.py").write_text("value = 3")
    import this_module

    assert isinstance(this_module, types.ModuleType) and this_module.value == 3
    sys.modules.pop("this_module")
