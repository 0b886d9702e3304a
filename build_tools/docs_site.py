"""What mkdocs.yml cannot say.

Folders in its `nav`; what a page's cells show, from the notebook beside it; and that no page may
load from another host.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What a browser fetches by itself; a link that a reader clicks is none.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b[^>]*\srel=["']?(?:stylesheet|preload|preconnect|icon)\b[^>]*(?:https?:)?//[^"'\s>]+"""
)
_CELL = re.compile(r"^```python\n.*?\n```\n", re.DOTALL | re.MULTILINE)
_STYLE = re.compile(r"<style scoped>.*?</style>\n?", re.DOTALL)


def on_config(config: Any) -> None:
    """Puts the pages of a folder in its place, those that `nav` does not name."""
    named = {*_named(config["nav"])}
    config["nav"] = _filled(config["nav"], Path(config["docs_dir"]), named)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts below each cell of a page what the notebook beside it shows there."""
    del config, files
    notebook = Path(page.file.abs_src_path).with_suffix(".ipynb")
    if not notebook.exists():
        return markdown
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = iter([cell["outputs"] for cell in cells if cell["cell_type"] == "code"])
    return _CELL.sub(lambda cell: cell[0] + "".join(_shown(next(outputs))), markdown)


def _shown(outputs: list) -> Iterator[str]:
    for output in outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            image = "".join(data["image/png"]).replace("\n", "")
            yield f'\n<img alt="What the cell draws" src="data:image/png;base64,{image}">\n'
        elif "text/html" in data:
            table = _STYLE.sub("", "".join(data["text/html"])).replace(
                ' border="1" class="dataframe"', ""
            )
            yield f"\n{table}\n"
        else:
            yield f"\n```text\n{''.join(data['text/plain']).rstrip()}\n```\n"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Ends the build at a page that loads something from another host."""
    del config
    found = _LOADED.search(output)
    if found:
        raise SystemExit(f"{page.file.src_path} loads from another host: {found[0]}")
    return output


def _named(entry: Any) -> list:
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [name for one in entries for name in _named(one)]


def _filled(entry: Any, docs: Path, named: set) -> Any:
    if isinstance(entry, dict):
        return {title: _filled(one, docs, named) for title, one in entry.items()}
    if isinstance(entry, list):
        return [_filled(one, docs, named) for one in entry]
    if not entry.endswith("/"):
        return entry
    pages = {path.relative_to(docs).as_posix(): path for path in (docs / entry).glob("*.md")}
    unnamed = {name: _title(path) for name, path in pages.items() if name not in named}
    index = [name for name in unnamed if name == f"{entry}index.md"]
    others = sorted(unnamed.keys() - {*index}, key=lambda name: unnamed[name].lower())
    return index + [{unnamed[name]: name} for name in others]


def _title(path: Path) -> str:
    """Returns a page's heading without what it adds in brackets."""
    heading = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1].split(" (")[0] if heading else path.stem
