"""What mkdocs.yml cannot say: folders in its `nav`, and that no page may load from another host."""

import re
from pathlib import Path
from typing import Any

# What a browser fetches by itself; a link that a reader clicks is none.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b[^>]*\srel=["']?(?:stylesheet|preload|preconnect|icon)\b[^>]*(?:https?:)?//[^"'\s>]+"""
)


def on_config(config: Any) -> None:
    """Puts the pages of a folder in its place, those that `nav` does not name."""
    named = {*_named(config["nav"])}
    config["nav"] = _filled(config["nav"], Path(config["docs_dir"]), named)


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
