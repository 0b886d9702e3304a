"""Breaks one line of the library at a time, and says whether the tests that cover it notice.

    python -m tests.planted_faults --faults=150 --seed=0 --only=fedpersonal/runtime --output=x.json
    python -m tests.planted_faults --again=x.json --tests=tests/runtime/local_test.py

Each fault is planted in a scratch copy of the tree. What covers a file is read from imports: the
test file of its name comes first, then those that import it, then those that come to it by way of
others. They run in a fork of this process, which has imported TensorFlow and nothing of the
library. A test that fails in the sound tree, too, does not count. `--again` plants the faults of a
former run, found by function and source text, also where the file has moved.
"""

from __future__ import annotations

import argparse
import ast
import collections
import ctypes
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = [*sys.path]  # What TensorFlow imports adds to it.
# What becomes of an operator; the other way round, too.
PAIRS = {
    "operator": [(ast.Add, "+", ast.Sub, "-"), (ast.Mult, "*", ast.Div, "/")],
    "bound": [(ast.Lt, "<", ast.LtE, "<="), (ast.Gt, ">", ast.GtE, ">=")],
    "boolean": [
        (ast.Eq, "==", ast.NotEq, "!="),
        (ast.Is, "is", ast.IsNot, "is not"),
        (ast.In, "in", ast.NotIn, "not in"),
        (ast.And, "and", ast.Or, "or"),
    ],
}
OTHER = {one: (kind, a, b) for kind, rows in PAIRS.items() for one, a, _, b in rows}
OTHER |= {other: (kind, b, a) for kind, rows in PAIRS.items() for _, a, other, b in rows}
FOLDERS = ("fedpersonal", "experiments", "benchmarks", "examples", "tests")


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in a file, and what would break it there: (start, end, other text), in bytes."""

    file: str
    line: int
    function: str
    kind: str
    before: str
    after: str
    edits: tuple[tuple[int, int, str], ...]

    def key(self, *, moved=False):
        """What it is found by, in other versions, too."""
        return (*(() if moved else (self.file,)), self.function, self.kind, self.before, self.after)


class Sites:
    """Finds the sites of a file."""

    def __init__(self, file, source):
        self.file, self.source, self.found = file, source, []
        lengths = [len(line) for line in source.splitlines(keepends=True)]
        self.starts = list(itertools.accumulate(lengths, initial=0))
        self.walk(ast.parse(source), ())

    def span(self, node):
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def walk(self, node, names):
        """Looks at everything but annotations, errors' texts and other strings."""
        if isinstance(node, (ast.Raise, ast.JoinedStr)):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = (*names, node.name)
        for kind, edits in self.edits(node):
            self.add(node, ".".join(names), kind, edits)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.walk(child, names)

    def add(self, node, function, kind, edits):
        start, end = self.span(node)
        edits = tuple(sorted(edits))
        other = edited(self.source, edits)
        texts = [self.source[start:end], other[start : end + len(other) - len(self.source)]]
        before, after = (" ".join(text.decode().split()) for text in texts)
        line = self.source.count(b"\n", 0, edits[0][0]) + 1
        self.found.append(Site(self.file, line, function, kind, before, after, edits))

    def edits(self, node):
        """Yields the kinds of faults that this node can have."""
        if isinstance(node, ast.BinOp):
            yield from self.between(node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            yield from self.between(*node.values[:2], node.op)
        elif isinstance(node, ast.Compare):
            yield from self.between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            kind = "boolean" if isinstance(node.op, ast.Not) else "operator"
            yield kind, [(self.span(node)[0], self.span(node.operand)[0], "")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            kind = "boolean" if isinstance(node.value, bool) else "number"
            if kind == "boolean" or abs(node.value) <= 1000:
                yield kind, [(*self.span(node), repr(other_constant(node.value)))]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield "call", [(*self.span(node), "pass")]
        elif isinstance(node, ast.Call):
            yield from self.arguments(node)

    def between(self, left, right, operator):
        if type(operator) in OTHER:
            kind, old, new = OTHER[type(operator)]
            start, end = self.span(left)[1], self.span(right)[0]
            text = self.source[start:end].decode()
            found = re.search(re.escape(old).replace(r"\ ", r"\s+"), text)
            if found:
                yield kind, [(start + found.start(), start + found.end(), new)]

    def arguments(self, node):
        everything = sorted([*node.args, *node.keywords], key=self.span)
        spans = [self.span(one) for one in everything]
        for number, one in enumerate(everything):
            if not isinstance(one, ast.keyword) or one.arg is None:
                continue
            start, end = spans[number]
            if number:
                start = spans[number - 1][1]
            elif len(spans) > 1:
                end = spans[1][0]
            yield "keyword", [(start, end, "")]
        for one, other in zip(node.args, node.args[1:]):
            if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                (a, b), (c, d) = self.span(one), self.span(other)
                texts = self.source[a:b].decode(), self.source[c:d].decode()
                yield "swapped", [(a, b, texts[1]), (c, d, texts[0])]


def other_constant(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def edited(source, edits):
    for start, end, text in reversed(edits):
        source = source[:start] + text.encode() + source[end:]
    return source


def is_other_code(source, other):
    """Whether a text can be read, and says something else."""
    try:
        return ast.dump(ast.parse(other)) != ast.dump(ast.parse(source))
    except SyntaxError:  # As where parentheses stood around an argument.
        return False


def all_sites(only):
    """Returns the sites below a path, by kind."""
    found = collections.defaultdict(list)
    for path in sorted((ROOT / "fedpersonal").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.startswith(only):
            for site in Sites(file, path.read_bytes()).found:
                found[site.kind].append(site)
    return found


def drawn(sites, count, seed):
    """Draws a kind and then a site, so often."""
    draw, waiting, faults = random.Random(seed), {k: [*v] for k, v in sorted(sites.items())}, []
    while len(faults) < count and waiting:
        kind = draw.choice([*waiting])
        site = waiting[kind].pop(draw.randrange(len(waiting[kind])))
        source = (ROOT / site.file).read_bytes()
        if is_other_code(source, edited(source, site.edits)):
            faults.append(site)
        if not waiting[kind]:
            del waiting[kind]
    return faults


def again(sites, rows):
    """Returns the faults of a former run as far as there is such code, and how many are gone."""
    exact, moved = {}, {}
    for site in itertools.chain(*sites.values()):
        exact.setdefault(site.key(), []).append(site)
        moved.setdefault(site.key(moved=True), []).append(site)
    faults = []
    for row in rows:
        key = (row["file"], row["function"], row["kind"], row["before"], row["after"])
        same = exact.get(key) or moved.get(key[1:]) or []
        faults.extend(sorted(same, key=lambda site: abs(site.line - row["line"]))[:1])
    return faults, len(rows) - len(faults)


class Coverage:
    """Which test files come to a file of the library, by their imports."""

    def __init__(self):
        self.files = {
            path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
            for folder in FOLDERS
            for path in (ROOT / folder).rglob("*.py")
        }
        self.public = {}
        for node in ast.walk(ast.parse(self.files["fedpersonal/__init__.py"])):
            if isinstance(node, ast.ImportFrom):
                self.public.update({alias.name: node.module for alias in node.names})

    @functools.cache  # noqa: B019
    def imports(self, file):
        """Returns the files that a file imports, at its beginning or later."""
        modules, tree = set(), ast.parse(self.files[file])
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
                modules.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fp":
                modules.add(self.public.get(node.attr, ""))
        paths = {m.replace(".", "/") for m in modules} - {"fedpersonal"}
        return {f for p in paths for f in (f"{p}.py", f"{p}/__init__.py") if f in self.files}

    def tests(self, target):
        """Returns test files and how many imports away they are, nearest and shortest first."""
        mirror = target.replace("fedpersonal/", "tests/", 1)[: -len(".py")] + "_test.py"
        found = []
        for test in (file for file in self.files if file.endswith("_test.py")):
            steps = 0 if test == mirror else self.steps(test, target)
            if steps is not None:
                beside = pathlib.Path(test).parent == pathlib.Path(mirror).parent
                found.append((steps, not beside, len(self.files[test]), test))
        return [(test, steps) for steps, _, _, test in sorted(found)]

    def steps(self, test, target):
        known, now = {test}, {test}
        for steps in range(1, 5):
            now = {other for file in now for other in self.imports(file)} - known
            if target in now:
                return steps
            known |= now
        return None


class Scratch:
    """A copy of the tree, in which tests run in forks of this process."""

    def __init__(self, folder):
        self.folder, self.tree = folder, folder / "tree"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        # Byte code is told from old by the second of the file: each version has its own.
        self.seconds = itertools.count(1_000_000_000)
        self.known, self.unsound = set(), set()  # Files; what fails in them unbroken.

    def write(self, file, source):
        (self.tree / file).write_bytes(source)
        second = next(self.seconds)
        os.utime(self.tree / file, (second, second))

    def run(self, tests, seconds, leave_out=()):
        """Runs test files until one fails; returns events, and whether it ended in time."""
        events = self.folder / "events"
        events.write_text("")
        own = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        deadline = time.monotonic() + seconds
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # It ends with its parent.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                self.run_here(tests, leave_out, events, own)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        ended = False
        try:
            while not ended and time.monotonic() < deadline:
                ended = os.waitpid(child, os.WNOHANG)[0] == child
                time.sleep(0 if ended else 0.05)
        finally:
            end_children()
            shutil.rmtree(own, ignore_errors=True)
        return [json.loads(line) for line in events.read_text().splitlines()], ended

    def run_here(self, tests, leave_out, events, own):
        import pytest

        os.chdir(self.tree)
        others = [p for p in PATHS if p and not pathlib.Path(p, "fedpersonal").is_dir()]
        sys.path[:] = [str(self.tree), *others]
        sys.modules.pop("tests", None)
        os.environ["TMPDIR"] = tempfile.tempdir = str(own)
        log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        failed = []

        class Failures:
            def pytest_runtest_logreport(self, report):
                failed.extend([report.nodeid] if report.failed else [])

            pytest_collectreport = pytest_runtest_logreport

        with open(events, "a", encoding="utf-8") as file:
            for test in tests:
                options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
                options += [f"--rootdir={self.tree}", f"--basetemp={own}/pytest"]
                options += [f"--deselect={name}" for name in leave_out]
                print(json.dumps({"begun": test}), file=file, flush=True)
                status = pytest.main([test, *options], [Failures()])
                if status not in (0, 5) and not failed:  # 5: there is none, or not here.
                    failed.append(test)
                print(json.dumps({"ended": test, "failed": failed[:1]}), file=file, flush=True)
                if failed:
                    return
            print(json.dumps({"all": True}), file=file, flush=True)

    def is_sound(self, name, seconds):
        """Whether a test passes where nothing is broken; its file is tried out once."""
        file = name.split("::")[0]
        while file not in self.known:
            failed = first_failed(*self.run([file], seconds, self.unsound))
            if failed is None or failed in self.unsound:
                self.known.add(file)
            else:
                self.unsound.add(failed)
        return name not in self.unsound


def first_failed(events, ended):
    """Returns the test that fails, or the file in which the process has crashed, or None."""
    for event in events:
        if event.get("failed"):
            return event["failed"][0]
    crashed = ended and {"all": True} not in events
    return next((e["begun"] for e in reversed(events) if "begun" in e), "") if crashed else None


def end_children():
    """Ends all that forks have started: orphans have become children of this process."""
    while True:
        children = psutil.Process().children(recursive=True)
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                pass
        try:
            while os.waitpid(-1, 0 if children else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def outcome(scratch, site, tests, seconds):
    """Returns whether a fault is noticed, and by what."""
    source = (ROOT / site.file).read_bytes()
    deadline = time.monotonic() + seconds
    while True:
        scratch.write(site.file, edited(source, site.edits))
        files = [test for test, _ in tests if test not in scratch.unsound]
        try:
            events, ended = scratch.run(files, deadline - time.monotonic(), scratch.unsound)
        finally:
            scratch.write(site.file, source)
        passed = [e["ended"] for e in events if "ended" in e and not e["failed"]]
        failed = first_failed(events, ended)
        if failed and not scratch.is_sound(failed, 2 * seconds):
            deadline = time.monotonic() + seconds
            continue  # With others.
        if failed:
            return "noticed", failed
        last = next((e["begun"] for e in reversed(events) if "begun" in e), "")
        near = {test for test, steps in tests if steps <= 1}
        if ended or near and near <= set(passed):
            return "MISSED", f"{len(passed)} of {len(tests)} files pass"
        return "timed out", f"in {last}, {len(passed)} of {len(tests)} files pass"


def main():
    """Plants, tries and tells."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="fedpersonal/", help="files that begin with this")
    parser.add_argument("--tests", help="test files in place of those that cover a file: A,B")
    parser.add_argument("--seconds", type=float, default=100.0, help="at most, for a fault")
    parser.add_argument("--output", type=pathlib.Path, help="the JSON file to write")
    parser.add_argument("--again", type=pathlib.Path, help="a file of --output")
    parser.add_argument("--part", default="1/1", help="2/3: the second of three processes")
    asked = parser.parse_args()
    faults, gone = drawn(all_sites(asked.only), asked.faults, asked.seed), 0
    if asked.again:
        rows = [r for r in json.loads(asked.again.read_text()) if r["file"].startswith(asked.only)]
        faults, gone = again(all_sites("fedpersonal/"), rows)
    part, parts = map(int, asked.part.split("/"))
    faults = faults[part - 1 :: parts]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # Orphans come to this process.
    coverage, rows = Coverage(), []
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        import_what_is_large(folder)
        scratch = Scratch(pathlib.Path(folder))
        for site in faults:
            tests = coverage.tests(site.file)
            if asked.tests:
                tests = [(test, 0) for test in asked.tests.split(",")]
            began = time.monotonic()
            found, by = outcome(scratch, site, tests, asked.seconds)
            seconds = round(time.monotonic() - began, 1)
            row = {**dataclasses.asdict(site), "outcome": found, "by": by, "seconds": seconds}
            rows.append(row)
            print(
                f"{site.file}:{site.line} {site.kind}: {site.before[:70]} -> {site.after[:70]}: "
                f"{found} ({by}; {seconds:.0f} s)",
                flush=True,
            )
            if asked.output:
                asked.output.write_text(json.dumps(rows, indent=1) + "\n")
    counts = collections.Counter(row["outcome"] for row in rows)
    share = counts["noticed"] / max(len(rows) - counts["timed out"], 1)
    print(f"{share:.0%} noticed of those that were tried out: {dict(counts)}; {gone} are gone")


def import_what_is_large(folder):
    """Imports what tests take long to import, none of which knows the library."""
    homes = {name: folder for name in ("KERAS_HOME", "MPLCONFIGDIR", "TRANSFORMERS_CACHE")}
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", **homes})
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow  # noqa: F401
    import tensorflow_federated  # noqa: F401

    for name in homes:
        del os.environ[name]
    assert not [name for name in sys.modules if name.startswith("fedpersonal")]


if __name__ == "__main__":
    main()
