"""Imports run one way, and what must answer at once imports nothing heavy."""

from __future__ import annotations

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# Each room may import those before it; rooms in one line may import each other's modules too.
ORDER = [
    {"errors", "files", "randomness", "former"},
    {"options", "data", "tff", "runtime"},
    {"model", "optimizers"},
    {"models"},
    {"methods", "client"},
    {"federated"},
    {"evaluation"},
    {"audit"},
    {"training", "runs", "report"},
    {"tasks"},
    {"testing"},
]
PLACES = {room: place for place, rooms in enumerate(ORDER) for room in rooms}

# These know nothing of TensorFlow Federated.
WITHOUT_TFF = ("data", "models")
# A run needs none of these from the beginning.
UNUSED = {"matplotlib", "transformers", "sklearn", "ray", "recbole", "tensorflow_datasets"}
FILES = sorted((ROOT / "fedpersonal").rglob("*.py"))


def imported(path):
    """Yields the modules that a file imports, of types alone or when it is called, too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(path):
    """Yields the modules that are imported with a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path):
    return path.relative_to(ROOT / "fedpersonal").with_suffix("").parts[0]


def test_every_room_has_its_place():
    rooms = {room_of(path) for path in FILES} - {"__init__", "__main__"}
    assert rooms == set(PLACES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "fedpersonal")))
def test_imports_run_one_way(path):
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    for module in at_import(path):
        parts = module.split(".")
        if parts[0] == "experiments":
            raise AssertionError(f"the library imports {module}")
        if parts[0] == "fedpersonal" and len(parts) > 1 and parts[1] in PLACES:
            assert PLACES[parts[1]] <= PLACES[room], module
            same = PLACES[parts[1]] == PLACES[room] and parts[1] != room
            assert not same or room not in ("data", "models"), module


def test_a_run_imports_only_what_it_uses():
    """Pictures are drawn at the end, and language models are one task's."""
    tasks = ROOT / "fedpersonal" / "tasks"
    waiting, known = [tasks / "experiment.py", *tasks.glob("*/task.py")], set()
    while waiting:
        path = waiting.pop()
        known.add(path)
        for module in at_import(path):
            assert module.split(".")[0] not in UNUSED, path
            place = ROOT / module.replace(".", "/")
            found = {place.with_suffix(".py"), place.parent.with_suffix(".py")} & {*FILES}
            waiting.extend(found - known)
    assert len(known) > 50


@pytest.mark.parametrize(
    ("package", "names"),
    [
        ("tensorflow_federated", {"language", "stock"}),
        ("federated_language", {"language"}),
        ("tensorflow.keras", {"keras"}),
    ],
)
def test_few_modules_name_a_package(package, names):
    foreign = {
        path.stem
        for path in FILES
        if any(f"{m}.".startswith(f"{package}.") for m in imported(path))
    }
    assert foreign == names


def test_rooms_without_tensorflow_federated():
    files = {p for room in WITHOUT_TFF for p in (ROOT / "fedpersonal" / room).rglob("*.py")}
    known = {p.name for p in files if any("fedpersonal.tff" in name for name in imported(p))}
    assert known == {"stack_overflow.py"}  # TFF's own data set is read through it.


def test_runtime_knows_nothing_of_the_library():
    for path in (ROOT / "fedpersonal" / "runtime").glob("*.py"):
        for module in imported(path):
            known = ("fedpersonal.runtime", "fedpersonal.errors", "fedpersonal.tff")
            assert not module.startswith("fedpersonal.") or module.startswith(known)
