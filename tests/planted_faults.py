"""Breaks one line of the library at a time, and says whether the tests that cover it notice.

    python -m tests.planted_faults --faults=50 --seed=0 --only=fedpersonal/runtime --output=x.json
    python -m tests.planted_faults --again=x.json

Each fault is planted in a scratch copy of the tree. The test file of the broken file's name runs
first, then those that import it, then those that come to it by way of others: each in a fork of
this process, which has imported TensorFlow and nothing of the library. A test file that fails in
the sound tree, too, does not count. `--again` plants the faults of a former run, found by function
and text, also where a file has moved.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import ctypes
import importlib.util
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATHS = [*sys.path]  # What TensorFlow imports adds to it.
# What becomes of an operator; the other way round, too.
ONE = (ast.Add, ast.Mult, ast.USub, ast.And, ast.Lt, ast.Gt, ast.Eq, ast.Is, ast.In)
TWO = (ast.Sub, ast.Div, ast.UAdd, ast.Or, ast.LtE, ast.GtE, ast.NotEq, ast.IsNot, ast.NotIn)
OTHER = dict(zip(ONE + TWO, TWO + ONE))


def all_sites(only=""):
    """Yields what can be broken in the files whose paths begin so: rows of the output."""
    for path in sorted((ROOT / "fedpersonal").rglob("*.py")):
        file, source = path.relative_to(ROOT).as_posix(), path.read_bytes()
        if not file.startswith(only):
            continue
        starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
        for node, function in nodes(ast.parse(source), ()):
            for kind, field, other in faults_of(node):
                row = {"file": file, "line": node.lineno, "function": function, "kind": kind}
                row["start"] = starts[node.lineno - 1] + node.col_offset  # In bytes.
                row["end"] = starts[node.end_lineno - 1] + node.end_col_offset
                row["before"], value = ast.unparse(node), getattr(node, field)
                setattr(node, field, other)
                row["after"] = ast.unparse(node)
                setattr(node, field, value)
                if row["before"] != row["after"]:
                    yield row


def nodes(node, names):
    """Yields nodes and the functions that they are in, but nothing of errors and texts."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        names = (*names, node.name)
    yield node, ".".join(names)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.Raise, ast.JoinedStr)):
            yield from nodes(child, names)


def faults_of(node):
    """Yields what can be wrong with a node: the kind of fault, a field and its other value."""
    if type(getattr(node, "op", None)) in OTHER:
        yield "operator", "op", OTHER[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        yield "comparison", "ops", [OTHER[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "comparison", "operand", ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "boolean", "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "number", "value", node.value * 2 or 1
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call", "value", ast.Constant(None)
    elif isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg:
                yield "keyword", "keywords", node.keywords[:i] + node.keywords[i + 1 :]
        for i in range(len(node.args) - 1):
            one, other = node.args[i : i + 2]
            yield "swapped", "args", [*node.args[:i], other, one, *node.args[i + 2 :]]


def drawn(sites, count, seed):
    """Draws a kind and then a site, so often."""
    draw, waiting, faults = random.Random(seed), collections.defaultdict(list), []
    for site in sites:
        waiting[site["kind"]].append(site)
    while len(faults) < count and any(waiting.values()):
        same = waiting[draw.choice([kind for kind in sorted(waiting) if waiting[kind]])]
        faults.append(same.pop(draw.randrange(len(same))))
    return faults


def found_again(sites, rows):
    """Returns the faults of a former run for which there still is such code."""
    same, faults = collections.defaultdict(list), []
    for site in sites:
        same[site["function"], site["before"], site["after"]].append(site)
    for row in rows:
        found = same[row["function"], row["before"], row["after"]]
        # The nearest in the same file, or else in another.
        found.sort(key=lambda one: (one["file"] != row["file"], abs(one["line"] - row["line"])))
        faults += found[:1]
    return faults


def read_imports():
    """Returns by which files each file of the tree is imported."""
    folders = ("fedpersonal", "experiments", "benchmarks", "examples", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in paths}
    files = {file[:-3].replace("/", ".").removesuffix(".__init__"): file for file in trees}
    # A name of the package's is another module's.
    for node in ast.walk(trees.pop("fedpersonal/__init__.py")):
        if isinstance(node, ast.ImportFrom) and node.module in files:
            for alias in node.names:
                files.setdefault(f"fedpersonal.{alias.name}", files[node.module])
    importers = collections.defaultdict(set)
    for file, tree in trees.items():
        for name in itertools.chain.from_iterable(imported(node, files) for node in ast.walk(tree)):
            importers[files.get(name) or files.get(name.rpartition(".")[0])].add(file)
    return importers


def imported(node, modules):
    """Returns the names that a node of a file imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    value = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
    if value == "fp":
        return [f"fedpersonal.{node.attr}"]
    if value and node.attr == "__path__":  # What iterates over it imports all that is there.
        return [name for name in modules if name.startswith(f"{value}.")]
    return []


def covering(target, importers):
    """Returns test files and how many imports away they are, nearest first."""
    steps, waiting = {target: 0}, [target]
    for file in waiting:
        for importer in sorted(importers[file] - steps.keys()):
            steps[importer] = steps[file] + 1
            waiting.append(importer)
    mirror = target.replace("fedpersonal/", "tests/", 1)[: -len(".py")] + "_test.py"
    if (ROOT / mirror).exists():
        steps[mirror] = 0
    tests = [file for file in steps if file.endswith("_test.py")]
    return {test: steps[test] for test in sorted(tests, key=steps.get)}


class Scratch:
    """A copy of the tree, in which tests run in forks of this process."""

    def __init__(self, folder):
        self.folder, self.tree = folder, folder / "tree"
        self.sound = {}  # Whether test files pass where nothing is broken.
        self.tree.mkdir()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout
        # Unchecked: what is deleted and not committed yet is listed, too.
        copy = ["xargs", "-0", "cp", "-P", "--parents", "-t", str(self.tree)]
        subprocess.run(copy, cwd=ROOT, input=names, stderr=subprocess.DEVNULL)

    def outcome(self, site, tests, seconds):
        """Returns whether a fault is noticed, and by what."""
        source = (self.tree / site["file"]).read_bytes()
        broken = source[: site["start"]] + site["after"].encode() + source[site["end"] :]
        deadline, passed, failed = time.monotonic() + seconds, set(), ""
        for test in (test for test in tests if self.sound.get(test, True)):
            self.write(site["file"], broken)
            failed = self.run(test, deadline - time.monotonic())
            self.write(site["file"], source)
            if failed is None:
                break
            if not failed:
                passed.add(test)
                continue
            if test not in self.sound:
                self.sound[test] = not self.run(test, 200)
            if self.sound[test]:
                return "noticed", failed
        near = {test for test, steps in tests.items() if steps <= 1}
        is_missed = failed is not None or near and near <= passed
        return "MISSED" if is_missed else "timed out", f"{len(passed)} of {len(tests)} files pass"

    def write(self, file, source):
        (self.tree / file).write_bytes(source)
        # Byte code is told from old by second and size, which may be the same.
        code = importlib.util.cache_from_source(self.tree / file)
        pathlib.Path(code).unlink(missing_ok=True)

    def run(self, test, seconds):
        """Returns what fails in a test file, "" if nothing does, or None if time is too short."""
        deadline, ended, status = time.monotonic() + seconds, 0, 0
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as own:
            log = pathlib.Path(own, "log")
            child = os.fork()
            if child == 0:
                self.run_here(test, log)
            try:
                while not ended and time.monotonic() < deadline:
                    time.sleep(0.05)
                    ended, status = os.waitpid(child, os.WNOHANG)
            finally:
                end_children()
            if not ended or os.waitstatus_to_exitcode(status) in (0, 5):  # 5: it has no test here.
                return "" if ended else None
            found = re.findall("^(?:FAILED|ERROR) (.*?)(?: - .*)?$", log.read_text(), re.MULTILINE)
            return found[-1] if found else test  # It has crashed.

    def run_here(self, test, log):
        """Runs a test file in a fork, and ends it."""
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # It ends with its parent.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        status = 1
        try:
            import pytest

            os.chdir(self.tree)
            others = [path for path in PATHS if path and not os.path.isdir(f"{path}/fedpersonal")]
            sys.path[:] = [str(self.tree), *others]
            sys.modules.pop("tests", None)
            os.environ["TMPDIR"] = tempfile.tempdir = str(log.parent)
            output = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = pytest.main([test, "-x", "-q"])
            sys.stdout.flush()
        finally:
            os._exit(status)


def end_children():
    """Ends all that forks have started: orphans have become children of this process."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def main():
    """Plants, tries and tells."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="fedpersonal/", help="files that begin with this")
    parser.add_argument("--seconds", type=float, default=100.0, help="at most, for a fault")
    parser.add_argument("--output", type=pathlib.Path, help="the JSON file to write")
    parser.add_argument("--again", type=pathlib.Path, help="a file of --output")
    asked = parser.parse_args()
    if asked.again:
        former = json.loads(asked.again.read_text())
        former = [row for row in former if row["file"].startswith(asked.only)]
        faults = found_again(all_sites(), former)
        print(f"{len(faults)} of {len(former)} faults are found again")
    else:
        faults = drawn(all_sites(asked.only), asked.faults, asked.seed)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # Orphans come to this process.
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1"})
    import pytest  # noqa: F401
    import tensorflow_federated  # noqa: F401

    importers, rows = read_imports(), []
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        scratch = Scratch(pathlib.Path(folder))
        for row in faults:
            tests = covering(row["file"], importers)
            row["outcome"], row["by"] = scratch.outcome(row, tests, asked.seconds)
            rows.append(row)
            print("{file}:{line} {kind}: {before} -> {after}: {outcome} ({by})".format(**row))
            sys.stdout.flush()
            if asked.output:
                asked.output.write_text(json.dumps(rows, indent=1) + "\n")
    counts = collections.Counter(row["outcome"] for row in rows)
    share = counts["noticed"] / max(len(rows) - counts["timed out"], 1)
    print(f"{share:.0%} noticed of those that were tried out: {dict(counts)}")


if __name__ == "__main__":
    main()
