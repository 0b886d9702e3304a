"""The names of the language, where TFF's own release no longer has them; it takes no C++."""

from __future__ import annotations

import importlib.util

import pytest

# What is left of them in TFF's main branch.
_NEXT = """
import types
__version__ = "0.88.0"
framework = types.SimpleNamespace(get_context_stack=None)
"""
_PROGRAM = """
import numpy as np
import tensorflow_federated
from fedpersonal import tff
from fedpersonal.runtime.context import LocalContext

@tff.tf_computation(np.float32)
def square(x):
    return x * x

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def summed(numbers):
    return tff.federated_sum(tff.federated_map(square, numbers))

with tff.get_context_stack().install(LocalContext(compile=False)):
    print(tensorflow_federated.__version__, tff.STACK, tff.VERSION.split()[0], summed([1, 2, 3]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("federated_language") is None, reason="it is of the stack today"
)
def test_with_tffs_next_release_the_language_is_that_of_its_package(run_program, tmp_path):
    (tmp_path / "tensorflow_federated").mkdir()
    (tmp_path / "tensorflow_federated" / "__init__.py").write_text(_NEXT)
    output, errors, status = run_program("-c", _PROGRAM, cwd=tmp_path)
    assert (status, output) == (0, "0.88.0 today federated-language 14.0\n"), errors
