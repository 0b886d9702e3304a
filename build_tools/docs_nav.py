"""What mkdocs.yml cannot say: a folder in `nav` stands for all of its pages, the index first."""

import os
import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> None:
    """Puts pages in the place of folders, in the order of their titles."""
    for section in config["nav"]:
        for title, folder in section.items():
            if isinstance(folder, str) and folder.endswith("/"):
                section[title] = _pages(Path(config["docs_dir"]), folder)


def _pages(docs: Path, folder: str) -> list:
    paths = sorted((docs / folder).glob("*.md"), key=_place)
    return [os.fspath(path.relative_to(docs)) for path in paths]


def _place(path: Path) -> tuple:
    title = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return path.name != "index.md", title[1].lower() if title else path.name
