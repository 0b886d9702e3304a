"""The site of docs/: its menu, and that its pages load nothing from other hosts."""

from __future__ import annotations

import json
import runpy
import types

import pytest

from tests.pages import ROOT

SITE = runpy.run_path(str(ROOT / "build_tools" / "docs_site.py"))


def test_a_folder_stands_for_the_pages_that_are_not_named(tmp_path):
    folder = tmp_path / "methods"
    folder.mkdir()
    for name, title in {
        "index": "Methods",
        "b": "Alpha (first)",
        "a": "beta",
        "c": "Gamma",
    }.items():
        (folder / f"{name}.md").write_text(f"# {title}\n")
    config = {
        "docs_dir": str(tmp_path),
        "nav": [{"All": [{"Methods": "methods/"}]}, "methods/c.md"],
    }
    SITE["on_config"](config)
    pages = ["methods/index.md", {"Alpha": "methods/b.md"}, {"beta": "methods/a.md"}]
    assert config["nav"] == [{"All": [{"Methods": pages}]}, "methods/c.md"]


def test_a_cell_is_followed_by_what_the_notebook_shows(tmp_path):
    page = types.SimpleNamespace(file=types.SimpleNamespace(abs_src_path=str(tmp_path / "a.md")))
    text = "# A\n\n```python\n1\n```\n\nText.\n\n```python\n2\n```\n"
    assert SITE["on_page_markdown"](text, page, None, None) == text
    table = '<style scoped>\nb {}\n</style>\n<table border="1" class="dataframe"></table>'
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n"]},
        {"output_type": "execute_result", "data": {"text/plain": "t", "text/html": [table]}},
        {"output_type": "display_data", "data": {"text/plain": "f", "image/png": "iVBO\nRw0\n"}},
    ]
    cells = [{"cell_type": "markdown", "source": "# A"}]
    cells += [{"cell_type": "code", "outputs": some} for some in (outputs, [])]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    shown = SITE["on_page_markdown"](text, page, None, None)
    first, second = shown.split("\nText.\n")
    image = '<img alt="Picture of the cell" src="data:image/png;base64,iVBORw0">'
    assert first.endswith(f"```\n\n```text\none\n```\n\n<table></table>\n\n{image}\n")
    assert second == "\n```python\n2\n```\n"


@pytest.mark.parametrize(
    ("html", "is_loaded"),
    [
        ('<script async src="https://host/a.js"></script>', True),
        ('<link rel="stylesheet" href="//host/a.css">', True),
        ('<link href=x rel=preconnect crossorigin href="https://host">', True),
        ('<img alt="a" src=https://host/a.png>', True),
        ('<a href="https://host/paper.pdf">a paper</a>', False),
        ('<script src="../assets/a.js"></script><link rel="stylesheet" href="a.css">', False),
    ],
)
def test_a_page_that_loads_from_another_host_ends_the_build(html, is_loaded):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_path="page.md"))
    if not is_loaded:
        assert SITE["on_post_page"](html, page, None) == html
        return
    with pytest.raises(SystemExit, match="page.md loads from another host"):
        SITE["on_post_page"](html, page, None)
