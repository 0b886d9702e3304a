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
        "class Stack:\n"
        "    def set_default_context(self, context):\n"
        "        found.append(context)\n"
        "stack = Stack()\n"
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


def test_it_is_that_of_all_threads(run_program, tmp_path):
    """Also of those that were there before; one that a thread installs is its own."""
    program = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import tensorflow_federated as tff

stack = tff.framework.get_context_stack()
threads = ThreadPoolExecutor(1)
current = lambda: type(stack.current).__name__
own = threads.submit(lambda: stack.current).result()
assert type(own).__name__ == "RuntimeErrorContext"

from fedpersonal import runtime

assert threads.submit(current).result() == "LocalContext" == current()
add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
assert threads.submit(add, 2).result() == 3
with stack.install(own):
    assert stack.current is own and threads.submit(current).result() == "LocalContext"
tff.framework.set_default_context(own)
assert stack.current is own is threads.submit(lambda: stack.current).result()
"""
    _, errors, status = run_program("-c", program, cwd=tmp_path)
    assert status == 0, errors
