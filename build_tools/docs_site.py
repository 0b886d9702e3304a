"""Hooks of mkdocs.

They expand folders in `nav`, show a page's outputs of cells from the notebook of the same name, and
refuse pages that load from another host.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Resources that a browser loads without a click.
_EXTERNAL_RESOURCE = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b[^>]*\srel=["']?(?:stylesheet|preload|preconnect|icon)\b[^>]*(?:https?:)?//[^"'\s>]+"""
)
_CELL = re.compile(r"^```python\n.*?\n```\n", re.DOTALL | re.MULTILINE)
_STYLE = re.compile(r"<style scoped>.*?</style>\n?", re.DOTALL)


def on_config(config: Any) -> None:
    """Replaces a folder in `nav` by its pages that `nav` does not name."""
    named = {*_page_names(config["nav"])}
    config["nav"] = _expand_folders(config["nav"], Path(config["docs_dir"]), named)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Inserts below each cell of a page its outputs in the notebook of the same name."""
    del config, files
    notebook = Path(page.file.abs_src_path).with_suffix(".ipynb")
    if not notebook.exists():
        return markdown
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = iter([cell["outputs"] for cell in cells if cell["cell_type"] == "code"])
    return _CELL.sub(lambda cell: cell[0] + "".join(_to_markdown(next(outputs))), markdown)


def _to_markdown(outputs: list) -> Iterator[str]:
    for output in outputs:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            image = "".join(data["image/png"]).replace("\n", "")
            yield f'\n<img alt="Picture of the cell" src="data:image/png;base64,{image}">\n'
        elif "text/html" in data:
            table = _STYLE.sub("", "".join(data["text/html"])).replace(
                ' border="1" class="dataframe"', ""
            )
            yield f"\n{table}\n"
        else:
            yield f"\n```text\n{''.join(data['text/plain']).rstrip()}\n```\n"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Ends the build at a page that loads a resource from another host."""
    del config
    resource = _EXTERNAL_RESOURCE.search(output)
    if resource:
        raise SystemExit(f"{page.file.src_path} loads from another host: {resource[0]}")
    return output


def _page_names(entry: Any) -> list:
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [name for one in entries for name in _page_names(one)]


def _expand_folders(entry: Any, docs: Path, named: set) -> Any:
    if isinstance(entry, dict):
        return {title: _expand_folders(one, docs, named) for title, one in entry.items()}
    if isinstance(entry, list):
        return [_expand_folders(one, docs, named) for one in entry]
    if not entry.endswith("/"):
        return entry
    pages = {path.relative_to(docs).as_posix(): path for path in (docs / entry).glob("*.md")}
    unnamed = {name: _title(path) for name, path in pages.items() if name not in named}
    index = [name for name in unnamed if name == f"{entry}index.md"]
    others = sorted(unnamed.keys() - {*index}, key=lambda name: unnamed[name].lower())
    return index + [{unnamed[name]: name} for name in others]


def _title(path: Path) -> str:
    """Returns a page's heading without its part in brackets."""
    heading = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading[1].split(" (")[0] if heading else path.stem
