"""Imports run one way, and what must answer at once imports nothing heavy."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# The rooms of the library, the lowest first: each may import those before it.
FLOORS = (
    *("former", "errors", "files", "randomness", "options", "tff", "optimizers", "runtime", "data"),
    *("model", "methods", "client", "federated", "evaluation", "audit", "runs", "report"),
    *("training", "suite"),
)
# The rooms of the suite; those of one line may import each other.
SUITE = (
    *({"readers"}, {"models"}, {"tasks"}),
    {"papers", "sweeps", "leaderboard", "commands"},
    {"testing"},
)
# These know nothing of TensorFlow Federated.
WITHOUT_TFF = ("data", "suite/models", "suite/readers")
# A run needs none of these from the beginning.
UNUSED = {"matplotlib", "transformers", "sklearn", "ray", "recbole", "tensorflow_datasets"}
PACKAGE = ROOT / "fedpersonal"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}
# `__init__` has the public names, `__main__` the command, `former` names of the version before.
ANYWHERE = {PACKAGE / f"{name}.py" for name in ("__init__", "__main__", "former")}
# A task and the experiment that evaluates it name each other's types.
CIRCLES = [
    {
        f"fedpersonal.suite.tasks.{name}"
        for name in ("checks", "experiment", "idle", "standalone", "task")
    }
]
# Files that import the module that a run's `config.json` names.
BY_NAME = {"report/run.py", "training/loaded.py"}


def imported(path):
    """Yields the modules that a file imports: at its import, within functions, and for types."""
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


def room_of(module):
    """Returns the room of a module of the library, or None for other modules and `fedpersonal`."""
    package, _, inner = module.partition(".")
    return inner.partition(".")[0] or None if package == "fedpersonal" else None


def floor_of_suite(module):
    """Returns the place in `SUITE` of a module of the suite; None for `fedpersonal.suite`."""
    room = module.removeprefix("fedpersonal.suite").strip(".").partition(".")[0]
    return next((place for place, rooms in enumerate(SUITE) if room in rooms), None)


def module_of(name):
    """Returns the file's module that an imported name is or is in, or None."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


@functools.cache
def graph():
    """Returns the modules that each module of the library imports."""
    return {
        module: {module_of(name) for name in imported(path)} - {None, module, "fedpersonal"}
        for module, path in MODULES.items()
        if module != "fedpersonal"
    }


def circles():
    """Yields the sets of modules that import each other, directly or through others."""
    reached = {module: {*modules} for module, modules in graph().items()}
    for between in reached:
        for module in reached:
            if between in reached[module]:
                reached[module] |= reached[between]
    for module in sorted(reached):
        circle = {m for m in reached[module] if module in reached[m]}
        if circle and module == min(circle):
            yield circle


def test_every_room_has_its_floor():
    rooms = {room_of(module) for module in MODULES} - {"__main__", None}
    assert rooms == {*FLOORS}
    inner = {m.split(".")[2] for m in MODULES if m.startswith("fedpersonal.suite.")}
    assert inner == set.union(*SUITE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    if path in ANYWHERE:
        return
    here = next(module for module, file in MODULES.items() if file == path)
    for name in imported(path):
        assert not name.startswith("experiments"), name
        module = module_of(name) or ""
        room = room_of(module)
        if room is not None:
            assert FLOORS.index(room) <= FLOORS.index(room_of(here)), name
        places = floor_of_suite(module), floor_of_suite(here)
        if room == room_of(here) == "suite" and None not in places:
            assert places[0] <= places[1], name


def test_no_files_import_each_other():
    assert [*circles()] == CIRCLES


def test_the_library_imports_no_module_of_the_suite_by_name():
    for path in FILES:
        name = path.relative_to(PACKAGE).as_posix()
        if path in ANYWHERE or name.startswith("suite/"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docs]
        names = [n.value for n in texts if re.match(r"fedpersonal\.suite\b", str(n.value))]
        assert not names or name in BY_NAME, name


def test_a_run_imports_only_what_it_uses():
    """Pictures are drawn at the end, and language models are one task's."""
    tasks = PACKAGE / "suite" / "tasks"
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
    files = {p for room in WITHOUT_TFF for p in (PACKAGE / room).rglob("*.py")}
    known = {p.name for p in files if any("fedpersonal.tff" in name for name in imported(p))}
    assert known == {"stack_overflow.py"}  # TFF's own data set is read through it.


def test_runtime_knows_nothing_of_the_library():
    for path in (ROOT / "fedpersonal" / "runtime").glob("*.py"):
        for module in imported(path):
            known = ("fedpersonal.runtime", "fedpersonal.errors", "fedpersonal.tff")
            assert not module.startswith("fedpersonal.") or module.startswith(known)


def test_quick_tests_are_of_each_folder():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (listed,) = re.findall(r"^QUICK_TESTS := \$\(addprefix tests/,(.*)\)$", makefile, re.MULTILINE)
    tests = pathlib.Path(__file__).resolve().parent  # Bazel has links to some of them.
    files = [tests / name for name in listed.split()]
    assert [file for file in files if not file.exists()] == []
    folders = {path.parent.name for path in (ROOT / "fedpersonal").glob("*/*.py")}
    assert folders <= {name.split("/")[0] for name in listed.split()}
