"""The site of docs/: its menu, and that its pages load nothing from other hosts."""

from __future__ import annotations

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
