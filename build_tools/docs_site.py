"""What mkdocs.yml cannot say: folders in its `nav`, and that no page may load from another host."""

import os
import re
from pathlib import Path
from typing import Any

# What a browser fetches by itself; a link that a reader clicks is none.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b[^>]*\srel=["']?(?:stylesheet|preload|preconnect|icon)\b[^>]*(?:https?:)?//[^"'\s>]+"""
)


def on_config(config: Any) -> None:
    """Puts pages in the place of folders, in the order of their titles."""
    for section in config["nav"]:
        for title, folder in section.items():
            if isinstance(folder, str) and folder.endswith("/"):
                section[title] = _pages(Path(config["docs_dir"]), folder)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Ends the build at a page that loads something from another host."""
    del config
    found = _LOADED.search(output)
    if found:
        raise SystemExit(f"{page.file.src_path} loads from another host: {found[0]}")
    return output


def _pages(docs: Path, folder: str) -> list:
    paths = sorted((docs / folder).glob("*.md"), key=_place)
    return [os.fspath(path.relative_to(docs)) for path in paths]


def _place(path: Path) -> tuple:
    title = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.name != "index.md", title[1].lower() if title else path.name
