"""Draws the pictures of docs/results/ from the JSON of the tables next to them.

python -m build_tools.results_pictures
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from fedpersonal.files import atomic_write

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "results"
# How the names of baselines begin: rows that learn nothing from clients.
BASELINES = (
    *("Baseline", "A user's", "The ", "Popularity", "Base model"),
    *("Most frequent word", "Trigram counts", "Regularised rates"),
)
# The least left end of axes, and the approximate width of a letter.
_LEFT, _LETTER = 250, 7.5
_RIGHT, _WIDTH, _ROW, _TOP = 90, 760, 26, 74


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of a column of a table, with one row per method.

    Attributes:
        name: Name of the file.
        source: Name of the JSON file.
        table: Name of a table in it.
        column: Name of a column of that table.
        title: The title.
        better: `lower` or `higher`.
    """

    name: str
    source: str
    table: str
    column: str
    title: str
    better: str


PICTURES = (
    Picture("unseen_users", "table1", "unseen", "RMSE", "MovieLens-1M, unseen users", "lower"),
    Picture(
        "comments",
        "table3",
        "reddit_comments_seen",
        "Accuracy %",
        "Reddit comments of seen users",
        "higher",
    ),
    Picture(
        "films",
        "table3",
        "movielens-1m-films_seen",
        "AUC %",
        "Films of MovieLens-1M that users like",
        "higher",
    ),
    Picture(
        "language_models",
        "fedperc_parts",
        "perplexity",
        "perplexity",
        "TV shows, parts of one frozen language model",
        "lower",
    ),
    Picture(
        "next_item",
        "recommendation_1m",
        "fair",
        "HR@10",
        "Next film of MovieLens-1M, no leak into training",
        "higher",
    ),
    Picture(
        "next_item_leaking",
        "recommendation_1m",
        "leaky_negatives",
        "HR@10",
        "Next film of MovieLens-1M, held-out items are never negatives",
        "higher",
    ),
)


def svg(picture: Picture) -> str:
    """Returns a picture: a dot per seed, a line at their mean, the paper's figure as a ring."""
    path = FOLDER / f"{picture.source}.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    rows = content["tables"][picture.table]
    cells = {name: row[picture.column] for name, row in rows.items() if picture.column in row}
    cells = {name: cell for name, cell in cells.items() if cell["values"]}
    return "\n".join(_lines(picture, cells, len(content["seeds"]))) + "\n"


def _lines(picture: Picture, cells: Mapping[str, Mapping[str, Any]], seeds: int) -> Iterator[str]:
    ticks = _ticks([v for c in cells.values() for v in (*c["values"], c["published"]) if v])
    bottom, left = _TOP + _ROW * len(cells), max(_LEFT, 16 + _LETTER * max(map(len, cells)))

    digits = 3 if ticks[-1] < 10 else 1

    def x(value: float) -> str:
        share = (value - ticks[0]) / (ticks[-1] - ticks[0])
        return f"{left + share * (_WIDTH - left - _RIGHT):.1f}"

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 34}" role="img" '
        'font-family="sans-serif" font-size="13" fill="#222">'
    )
    yield f"<title>{escape(picture.title)}: {escape(picture.column)}</title>"
    yield f'<rect width="{_WIDTH}" height="{bottom + 34}" rx="8" fill="#fff"/>'
    dots = "dots: seeds; line: their mean" if seeds > 1 else "one seed"
    is_published = any(cell["published"] is not None for cell in cells.values())
    note = f"{picture.better} is better; {dots}" + "; ring: the paper's figure" * is_published
    yield f'<text x="16" y="26" font-weight="bold">{escape(picture.title)}</text>'
    yield f'<text x="16" y="46" fill="#555">{escape(picture.column)}, {note}</text>'
    for tick in ticks:
        yield f'<path d="M{x(tick)} {_TOP - 8}V{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x(tick)}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>'
    for place, (name, cell) in enumerate(cells.items()):
        y = _TOP + _ROW * place + 10
        mean = cell["mean"]
        color = "#777" if name.startswith(BASELINES) else "#2f6ea5"
        yield f'<text x="16" y="{y + 4}">{escape(name)}</text>'
        for value in cell["values"]:
            yield f'<circle cx="{x(value)}" cy="{y}" r="4" fill="{color}" fill-opacity=".55"/>'
        yield f'<path d="M{x(mean)} {y - 9}v18" stroke="{color}" stroke-width="2"/>'
        if cell["published"] is not None:
            ring = 'r="6" fill="none" stroke="#c2571a" stroke-width="2"'
            yield f'<circle cx="{x(cell["published"])}" cy="{y}" {ring}/>'
        yield f'<text x="{_WIDTH - 16}" y="{y + 4}" text-anchor="end">{mean:.{digits}f}</text>'
    yield "</svg>"


def _ticks(values: list[float]) -> list[float]:
    """Returns round numbers from below the least value to above the greatest."""
    low, high = min(values), max(values)
    step = 10.0 ** np.floor(np.log10((high - low) or 1))
    step *= next(f for f in (0.2, 0.5, 1, 2) if (high - low) / (f * step) <= 7)
    first, last = np.floor(low / step), np.ceil(high / step)
    return [round(float(k * step), 6) for k in np.arange(first, last + 1)]


if __name__ == "__main__":
    for one in PICTURES:
        with atomic_write(FOLDER / f"{one.name}.svg") as file:
            file.write(svg(one))
