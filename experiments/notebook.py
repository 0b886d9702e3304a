"""Writes docs/start/ten_minutes.ipynb: the page beside it as cells, and what they show.

make notebook

The page is the source. Its blocks of Python are the cells that run, in a kernel of Jupyter's; the
rest is text. Where they show what the notebook has already, it stays as it is: times, pictures and
last digits are no news.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedpersonal.files import atomic_write

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "start" / "ten_minutes.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
_BLOCK = re.compile(r"^```python\n(.*?)\n```\n", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def notebook(page: str) -> dict[str, Any]:
    """Returns the cells of a page, in Jupyter's format 4.4, without outputs."""
    return {
        "cells": [*_cells(page)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def _cells(page: str) -> Iterator[dict[str, Any]]:
    for place, text in enumerate(_BLOCK.split(page)):
        is_code, lines = place % 2, text.strip("\n").splitlines(keepends=True)
        if is_code:
            cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
            yield {**cell, "metadata": {}, "source": lines}
        elif lines:
            yield {"cell_type": "markdown", "metadata": {}, "source": lines}


def said(cell: Mapping[str, Any]) -> str:
    """Returns what a cell has printed, and its value, without pictures and stderr."""
    texts = []
    for output in cell.get("outputs", ()):
        if output["output_type"] == "execute_result":
            texts.append(output["data"]["text/plain"])
        elif output.get("name") == "stdout":
            texts.append(output["text"])
    return "\n".join("".join(text) for text in texts)


def agree(one: str, other: str) -> bool:
    """Tells whether two outputs are the same but for spaces, and numbers within two per cent."""
    (words, numbers), (others, their_numbers) = map(_taken_apart, (one, other))
    return words == others and all(
        math.isclose(a, b, rel_tol=0.02, abs_tol=0.02) for a, b in zip(numbers, their_numbers)
    )


def _taken_apart(text: str) -> tuple[list[str], list[float]]:
    return _NUMBER.sub("0", text).split(), [float(n) for n in _NUMBER.findall(text)]


def run(cells: dict[str, Any]) -> dict[str, Any]:
    """Returns a notebook with what its cells show in a kernel, in a folder of its own."""
    import jupyter_client
    import nbclient
    import nbformat

    node = nbformat.reads(json.dumps(cells), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder, in place of ports.
        kernel = jupyter_client.AsyncKernelManager(transport="ipc", ip=f"{folder}/kernel")
        where = {"metadata": {"path": folder}}
        nbclient.NotebookClient(node, km=kernel, timeout=300, resources=where).execute(
            cleanup_kc=True
        )
    for cell in node.cells:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"] = [
                output for output in cell["outputs"] if output.get("name") != "stderr"
            ]
    return json.loads(nbformat.writes(node, version=4))


def is_news(ran: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Tells whether a notebook has other cells than another one, or shows something else."""

    def sources(cells: Sequence[Mapping[str, Any]]) -> list[str]:
        return ["".join(cell["source"]) for cell in cells]

    mine, theirs = ran["cells"], kept["cells"]
    return sources(mine) != sources(theirs) or not all(
        agree(said(a), said(b)) for a, b in zip(mine, theirs)
    )


def main() -> None:
    """Runs the page's cells, and writes the notebook if there is news."""
    # A kernel has the environment of who starts it.
    os.environ["PYTHONPATH"] = f"{PAGE.parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ran = run(notebook(PAGE.read_text(encoding="utf-8")))
    if NOTEBOOK.exists() and not is_news(ran, json.loads(NOTEBOOK.read_text(encoding="utf-8"))):
        print(f"{NOTEBOOK.name} shows what it has shown")
        return
    with atomic_write(NOTEBOOK) as file:
        file.write(json.dumps(ran, indent=1, ensure_ascii=False) + "\n")
    print(f"{NOTEBOOK.name} is written anew")


if __name__ == "__main__":
    main()
