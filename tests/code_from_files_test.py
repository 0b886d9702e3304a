"""Nothing that is read is run: what SECURITY.md says of the code, found in the code."""

from __future__ import annotations

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("fedpersonal", "experiments", "examples", "benchmarks", "build_tools")
    for path in (ROOT / folder).rglob("*.py")
)

MODULES = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "multiprocessing", "shelve"),
    *("yaml", "socketserver", "http.server", "xmlrpc.server"),
}
FUNCTIONS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    *("load_model", "read_pickle", "enable_load_extension", "enable_unsafe_deserialization"),
    *("import_meta_graph", "listen"),
}
QUALIFIED = ("os.system", "os.popen", "saved_model.load", "SavedModel.load", "torch.load")
ARGUMENTS = {"allow_pickle", "shell", "trust_remote_code", "custom_objects"}

# What each file may do all the same, and why.
ALLOWED = {
    # Functions and their arguments, for processes of its own.
    "fedpersonal/suite/commands/children.py": {"multiprocessing", "multiprocessing.process"},
    "benchmarks/bits.py": {"multiprocessing"},
    "benchmarks/stacks.py": {"multiprocessing"},
}


def risks(text):
    """Yields what in a program's text may run code that it reads, or let others in."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            own = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = own or [alias.name for alias in node.names]
            yield from (n for n in names if n in MODULES or n.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node):
    called = ast.unparse(node.func)
    if isinstance(node.func, ast.Name) and called in FUNCTIONS:
        yield called
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield node.func.attr
    yield from (name for name in QUALIFIED if called.endswith(name))
    for keyword in node.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value in (False, None)
        if keyword.arg in ARGUMENTS and not is_off:
            yield f"{keyword.arg}={ast.unparse(keyword.value)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_that_is_read_is_run(path):
    allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), set())
    # Not a subset: what is allowed no longer where it is no longer done.
    assert set(risks(path.read_text(encoding="utf-8"))) == allowed


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import load",
        "import multiprocessing.connection",
        "eval(text)",
        "exec(text, {})",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=given)",
        "subprocess.run(text, shell=True)",
        "tf.saved_model.load(path)",
        "tf.keras.models.load_model(path)",
        "pd.read_pickle(path)",
        "os.system(text)",
        "door.listen()",
    ],
)
def test_what_is_looked_for_is_found(line):
    assert list(risks(line))


def test_what_is_allowed_is_there():
    assert all((ROOT / name).is_file() for name in ALLOWED)
    assert not list(risks("np.load(path, allow_pickle=False)\nmodel.eval()\nre.compile('a')"))
