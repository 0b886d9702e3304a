"""Fills docs/results/index.md, the page of all measured figures, from the JSON of the tables.

python -m build_tools.results_page

`tables.json` lists the columns of tables that the page shows, with the command that measures them
and, for each row, the day and the commit of its measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from build_tools.results_pictures import BASELINES, FOLDER
from fedpersonal.files import atomic_write
from fedpersonal.report.run import label
from fedpersonal.suite.leaderboard.table import BASELINE_ROW
from fedpersonal.suite.papers.table import Cell

PAGE = FOLDER / "index.md"
_BEST = 10
_ADAPTED = "(adapted base)"


def page() -> str:
    """Returns the page with the parts between its comments generated again."""
    boards = ("leaderboard", "leaderboard_full")
    parts = {**{name: _board(_read(name)) for name in boards}, "tables": _tables()}
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in parts.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        after = rest.split("\n<!-- end -->", 1)[1]
        text = "\n".join([f"{before}<!-- {name} -->", *lines, f"<!-- end -->{after}"])
    return text


def _read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _board(board: Mapping[str, Any]) -> Iterator[str]:
    tasks = board["tasks"]
    # In a table that is joined from others, each task has its command.
    origins = dict.fromkeys(_origin(task.get("made", board)) for task in tasks.values())
    yield from (f"- {origin}" for origin in origins)
    yield "\nThe first row is each task's strongest baseline; arrows show which way is better.\n"
    arrows = {"lower": "↓", "higher": "↑"}
    titles = [f"{t['title']}, {label(t['metric'])} {arrows[t['better']]}" for t in tasks.values()]
    yield _row("method", "mean rank ↓", *titles) + "\n|" + " --- |" * (2 + len(tasks))
    rows, averaged = board["rows"], [name for name, task in tasks.items() if task["averaged"]]
    ranked = [r for r in rows if all(r["cells"].get(n, {}).get("rank") for n in averaged)]
    frames = [r for r in rows if r["kind"] in ("server", "local")]
    baselines = [r for r in rows if r["kind"] == BASELINE_ROW]
    for row in (*baselines, *ranked[:_BEST], *frames):
        values = [row["cells"].get(task, {}).get("value") for task in tasks]
        cells = [f"{Cell.of(value).mean:.3f}" if value else "–" for value in values]
        rank = f"{row['mean_rank']:.1f}" if row.get("mean_rank") else "–"
        yield _row(row["title"], rank, *cells)


def _origin(board: Mapping[str, Any]) -> str:
    """Returns how a table was made: command, date, commit and seeds."""
    seeds = f"seed{'s' * (len(board['seeds']) > 1)} {_listed(board['seeds'])}"
    return f"`{board['command']}`, {board['date']}, commit {board['commit']}, {seeds}."


def _tables() -> Iterator[str]:
    for shown in _read("tables"):
        content, digits, better = _read(shown["source"]), shown["digits"], shown["better"]
        rows = content["tables"][shown["table"]].items()
        cells = {name: Cell.of(row[shown["column"]]) for name, row in rows}
        at = {name: at for at, names in shown["measured"].items() for name in names}
        baseline = _baseline(next(iter(cells)), cells, better).split(": ")[-1]
        yield (
            f"### {shown['title']}\n\n`{shown['command']}`, seeds {_listed(content['seeds'])};\n"
            f"{shown['metric']}, {better} is better. "
            f"The strongest baseline is *{baseline[:1].lower() + baseline[1:]}*.\n"
            f"[The whole page]({shown['source']}.md)\n"
        )
        columns = ("method", shown.get("paper", "the paper"), "here", "baseline", "day and commit")
        yield _row(*columns) + "\n|" + " --- |" * 5
        for name, cell in cells.items():
            if not name.startswith(BASELINES):
                paper = "" if cell.published is None else f"{cell.published:.{digits}f}"
                reference = cells[_baseline(name, cells, better)]
                yield _row(name, paper, cell.text(digits), reference.text(digits), at[name])
        yield ""


def _baseline(name: str, cells: Mapping[str, Cell[float]], better: str) -> str:
    """Returns the strongest baseline with the same base as a row: adapted or not adapted."""
    names = [one for one in cells if one.startswith(BASELINES)]
    names = [one for one in names if (_ADAPTED in one) == (_ADAPTED in name)]
    return (min if better == "lower" else max)(names, key=lambda one: cells[one].mean)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _listed(seeds: list[int]) -> str:
    *first, last = map(str, seeds)
    return f"{', '.join(first)} and {last}" if first else last


if __name__ == "__main__":
    text = page()
    with atomic_write(PAGE) as file:
        file.write(text)
