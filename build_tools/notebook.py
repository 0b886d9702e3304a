"""Writes docs/start/ten_minutes.ipynb: the page next to it as cells, with their outputs.

make notebook

The page is the source. Its blocks of Python are the cells, which run in a kernel of Jupyter; the
rest is text. If the outputs equal those in the notebook, it is not changed: times, pictures and
last digits do not count.
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


def output_text(cell: Mapping[str, Any]) -> str:
    """Returns the printed output of a cell, and its value, without pictures and stderr."""
    texts = []
    for output in cell.get("outputs", ()):
        if output["output_type"] == "execute_result":
            texts.append(output["data"]["text/plain"])
        elif output.get("name") == "stdout":
            texts.append(output["text"])
    return "\n".join("".join(text) for text in texts)


def agree(one: str, other: str) -> bool:
    """Returns whether two outputs agree but for spaces, with numbers within two per cent."""
    (words, numbers), (other_words, other_numbers) = map(_split_numbers, (one, other))
    return words == other_words and all(
        math.isclose(a, b, rel_tol=0.02, abs_tol=0.02) for a, b in zip(numbers, other_numbers)
    )


def _split_numbers(text: str) -> tuple[list[str], list[float]]:
    return _NUMBER.sub("0", text).split(), [float(n) for n in _NUMBER.findall(text)]


def run(cells: dict[str, Any]) -> dict[str, Any]:
    """Returns a notebook with the outputs of its cells, run in a kernel in a temporary folder."""
    import jupyter_client
    import nbclient
    import nbformat

    node = nbformat.reads(json.dumps(cells), as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder, instead of ports.
        kernel = jupyter_client.AsyncKernelManager(transport="ipc", ip=f"{folder}/kernel")
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(node, km=kernel, timeout=300, resources=resources).execute(
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
    """Returns whether two notebooks differ in their cells or outputs."""

    def sources(cells: Sequence[Mapping[str, Any]]) -> list[str]:
        return ["".join(cell["source"]) for cell in cells]

    new, old = ran["cells"], kept["cells"]
    return sources(new) != sources(old) or not all(
        agree(output_text(a), output_text(b)) for a, b in zip(new, old)
    )


def main() -> None:
    """Runs the page's cells, and writes the notebook if it has changed."""
    # A kernel inherits the environment of this process.
    os.environ["PYTHONPATH"] = f"{PAGE.parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ran = run(notebook(PAGE.read_text(encoding="utf-8")))
    if NOTEBOOK.exists() and not is_news(ran, json.loads(NOTEBOOK.read_text(encoding="utf-8"))):
        print(f"{NOTEBOOK.name} has not changed")
        return
    with atomic_write(NOTEBOOK) as file:
        file.write(json.dumps(ran, indent=1, ensure_ascii=False) + "\n")
    print(f"{NOTEBOOK.name} is written")


if __name__ == "__main__":
    main()
