"""The examples run as they are, and are as short as they claim."""

from __future__ import annotations

import ast
import io
import os
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


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


@pytest.fixture(name="run_example", scope="module")
def _run_example():
    def run(name, *arguments):
        return subprocess.run(
            [sys.executable, str(EXAMPLES / name), *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


def losses(output):
    return [float(number) for number in re.findall(r"loss[^\d]*(\d+\.\d+)", output)]


def test_own_model_learns(run_example):
    finished = run_example("own_model.py")
    assert finished.returncode == 0, finished.stderr
    before, after = losses(finished.stdout)
    assert after < 0.5 * before
    assert finished.stderr == ""


def test_own_model_takes_own_data(run_example, tmp_path):
    table = tmp_path / "own.csv"
    rows = [f"{c},{x},{-x},{c + 2 * x}" for c in range(12) for x in range(-3, 4)]
    table.write_text("\n".join(["client,x1,x2,y", *rows]) + "\n")
    finished = run_example("own_model.py", str(table))
    assert finished.returncode == 0, finished.stderr
    assert len(losses(finished.stdout)) == 2


def test_own_model_is_short():
    assert lines_of_code(EXAMPLES / "own_model.py") < 40
