"""The examples run as they are, and are as short as they claim."""

from __future__ import annotations

import ast
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
# Each with numbers that it prints, in order, of which each must be lower than the one before.
PROGRAMS = {
    "own_model": r"loss.*: (\d+\.\d+)",
    "own_furl": r"loss.* (\d+\.\d+)",
    "own_method": r"loss (\d+\.\d+)",
    "own_aggregator": r"loss.*: (\d+\.\d+)",
    "finished_run": r"(\d+) rounds, the best one is (\d+)",
}
# Each runs a binary, and prints how badly users are served before and after they personalise.
BINARIES = {
    "own_ratings": r"rmse (?:before|after).*: (\d\.\d+)",
    "own_texts": r"with .*: (\d\.\d+)",
}


def lines_of_code(path):
    """Lines with code on them: no docstrings, comments or blank lines."""
    source = path.read_text(encoding="utf-8")
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            if ast.get_docstring(node):
                text = node.body[0]
                docstrings.update(range(text.lineno, text.end_lineno + 1))
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*nothing, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(("name", "pattern"), PROGRAMS.items())
def test_an_example_runs_and_learns(name, pattern, tmp_path):
    finished = run(EXAMPLES / f"{name}.py", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    found = re.findall(pattern, finished.stdout)
    numbers = [float(n) for match in found for n in ([match] if isinstance(match, str) else match)]
    assert len(numbers) == 2 and numbers[1] < numbers[0], finished.stdout


@pytest.mark.parametrize(("name", "pattern"), BINARIES.items())
def test_an_example_runs_a_binary_and_opens_its_run(name, pattern, tmp_path):
    finished = run(EXAMPLES / f"{name}.py", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    before, after = map(float, re.findall(pattern, finished.stdout))
    assert after < 0.8 * before if name == "own_ratings" else after > 1.2 * before
    if name == "own_ratings":
        recommended = re.search(r"likes 0 and 2 may like (.*)", finished.stdout)[1].split()
        assert len(recommended) == 5 and not {"0", "1", "2", "3"} & {*recommended}, "rated ones"


def test_own_model_takes_own_data(tmp_path):
    table = tmp_path / "own.csv"
    rows = [f"{c},{x},{-x},{c + 2 * x}" for c in range(12) for x in range(-3, 4)]
    table.write_text("\n".join(["client,x1,x2,y", *rows]) + "\n")
    finished = run(EXAMPLES / "own_model.py", table, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert len(re.findall(r"loss.*: \d", finished.stdout)) == 2


def test_the_task_of_ones_own_runs_to_its_end(tmp_path):
    """It writes what the tasks of the library write, and its model opens again."""
    options = ["--total_rounds=3", "--method=fed_rep", f"--output_dir={tmp_path / 'run'}"]
    options += ["--clients_per_round=40"]  # All, so that all have kept their heads.
    finished = run("-m", "examples.own_task.run", *options, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "clients who never took part: accuracy" in finished.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["dataset"], summary["rounds"]) == ("digits", 3)
    assert 0 < summary["test"]["accuracy"] <= 1 and 0 < summary["unseen"]["accuracy"] <= 1
    boundary = json.loads((tmp_path / "run" / "boundary.json").read_text())
    names = {row["name"].split(".")[-1] for row in boundary}
    assert "hidden/kernel" in names and not any(name.startswith("head/") for name in names)
    program = """
import sys
import fedpersonal as fp
from examples.own_task.task import TASK
run = fp.load_run(sys.argv[1])
options = TASK.options(**{n: v for n, v in run.config["options"].items() if n != "task"})
test = TASK.split(TASK.read(options), options).test
with run.trained as trained:
    assert trained.evaluate(test.query)["has_kept"].all()
    print(trained.overall(test.query)["accuracy"])
"""
    again = run("-c", program, tmp_path / "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert float(again.stdout) == pytest.approx(summary["test"]["accuracy"], rel=1e-6)


def test_the_task_of_ones_own_has_a_table_of_methods(tmp_path):
    program = """
import sys
import examples.own_task.table as table
table.METHODS = ("fed_avg", "fed_rep")
sys.argv += ["--total_rounds=2", "--num_clients=20"]
table.main()
"""
    finished = run("-c", program, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    rows = re.findall(
        r"^\| (fed_\w+) +\| +(0\.\d+) \| +(0\.\d+) \|$", finished.stdout, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["fed_avg", "fed_rep"]


def test_a_registered_method_is_a_choice_of_a_binary(tmp_path):
    rows = [f"u{u},i{i},{1 + (u + i) % 5}" for u in range(20) for i in range(15)]
    table = tmp_path / "ratings.csv"
    table.write_text("\n".join(["user,item,rating", *rows]) + "\n")
    options = [f"--ratings_file={table}", f"--output_dir={tmp_path / 'run'}", "--total_rounds=2"]
    options += ["--method=slow_body", "--evaluate_on=seen"]
    finished = run("-m", "examples.own_binary", *options, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["method"] == "slow_body"


@pytest.mark.parametrize("name", [*PROGRAMS, *BINARIES])
def test_an_example_is_short_and_uses_the_one_door(name):
    path = EXAMPLES / f"{name}.py"
    assert lines_of_code(path) < 40
    imported = re.findall(r"^(?:import|from) (\w+).*$", path.read_text(), re.MULTILINE)
    packages = {"fedpersonal", "numpy", "pandas", "tensorflow", "tensorflow_federated"}
    assert set(imported) <= packages | {"subprocess", "sys", "tempfile"}


def test_the_task_of_ones_own_is_small():
    files = list((EXAMPLES / "own_task").glob("*.py"))
    assert len(files) <= 4
    assert sum(len(path.read_text().splitlines()) for path in files) <= 250
