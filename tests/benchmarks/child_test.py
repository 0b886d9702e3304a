"""A library's program stands beside sides of this process: the protocol, without the libraries."""

from __future__ import annotations

import ast
import sys

import numpy as np
import pytest

from benchmarks import child, side_by_side
from benchmarks.by_numpy import Steps, cut_batches, train_client
from fedpersonal.data.clients import ClientDataset

FOLDER = child.ROOT / "benchmarks"
STEPS = Steps(3, 0.1, 0.5, 2, 5, 4)
# It prints as libraries do, and lets a process of its own work.
PROGRAM = """
import subprocess, sys
import numpy as np
from benchmarks.by_numpy import train_client
from benchmarks.libraries.job import Job

BUSY = "import time\\nwhile time.process_time() < .3: pass"
job = Job(sys.argv[1])
items, clients = job.items, job.clients()
for cohort in job.rounds():
    print("a library's own words", flush=True)
    subprocess.run([sys.executable, "-c", BUSY])
    total, weight = np.zeros_like(items), 0
    for index in cohort:
        rows, change, examples = train_client(items, clients[index], job.steps)
        total[rows] += change * examples
        weight += examples
    items = items + total / np.float32(weight)
job.finish(items)
"""


@pytest.fixture(name="given")
def _given():
    random = np.random.default_rng(0)
    sizes = [7, 3, 12, 9]
    rated = np.concatenate([random.permutation(20)[:size] for size in sizes])
    train = ClientDataset(
        client_ids=["a", "b", "c", "d"],
        offsets=np.cumsum([0, *sizes]),
        features={"item": rated.astype(np.int32)},
        labels=random.integers(1, 6, sum(sizes)).astype(np.float32),
    )
    items = random.normal(0, 0.3, (20, 4)).astype(np.float32)
    cohorts = [np.array([0, 2]), np.array([3, 1]), np.array([2, 3])]
    return {"train": train, "cohorts": cohorts, "items": items, "steps": STEPS}


def expected(train, cohorts, items, steps):
    for cohort in cohorts:
        total, weight = np.zeros_like(items), 0
        for features, ratings in map(train.client, cohort):
            batches = cut_batches(features["item"], ratings, batch_size=steps.batch_size)
            rows, change, examples = train_client(items, batches, steps)
            total[rows] += change * examples
            weight += examples
        items = items + total / np.float32(weight)
    return items


def test_rounds_are_those_of_this_process(given):
    side = child.Child([sys.executable, "-c", PROGRAM], **given)
    seconds = side_by_side.time_rounds({"child": side}, rounds=2)["child"]
    np.testing.assert_array_equal(side.weights()[0], expected(**given))
    assert np.abs(side.weights()[0] - given["items"]).max() > 0.01
    assert len(seconds) == 3
    # This process waited; the program's own process worked.
    assert all(processor > 0.25 for _, processor in seconds)


@pytest.mark.parametrize("place", ["BUSY =", "    print(", "job.finish"])
def test_a_program_that_fails_says_why(given, place):
    indent = " " * (len(place) - len(place.lstrip()))
    program = PROGRAM.replace(place, f"{indent}sys.exit('no such luck')\n{place}", 1)
    with pytest.raises(RuntimeError, match="no such luck"):
        side = child.Child([sys.executable, "-c", program], **given)
        side_by_side.time_rounds({"child": side}, rounds=2)
        side.weights()


@pytest.mark.parametrize(
    "path", [FOLDER / "by_numpy.py", *sorted(FOLDER.glob("libraries/*.py"))], ids=lambda p: p.stem
)
def test_programs_import_nothing_of_ours(path):
    allowed = ("benchmarks.by_numpy", "benchmarks.libraries")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        ours = [n for n in names if n.startswith(("benchmarks", "experiments", "fed", "tensor"))]
        assert all(n.startswith(allowed) or n == "fedjax" for n in ours)


def test_a_page_has_the_figures_of_the_last_run(tmp_path):
    page = tmp_path / "page.md"
    kept = "| another | table |\n| --- | --- |\n| stays | 1 |\n"
    page.write_text(
        f"Words.\n\n| one round | a | b |\n| --- | --- | --- |\n| x | 3 | 4 |\n\n{kept}"
    )
    summary = {
        "slow": {"times_as_fast": 1.0, "processor_milliseconds": 9.0},
        "fast": {"times_as_fast": 1264.04, "processor_milliseconds": 5.0},
        "limit": {"times_as_fast": 3.76, "processor_milliseconds": 2.0},
    }
    side_by_side.write_table(page, summary, base="slow", limit="limit")
    rows = "| slow | 1 |  |\n| limit | 3.8 | 1 |\n| fast | 1,264 | 2.5 |\n"
    assert page.read_text() == (
        f"Words.\n\n| one round | a | b |\n| --- | --- | --- |\n{rows}\n{kept}"
    )
