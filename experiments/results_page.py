"""Fills docs/results/index.md, where each measured figure stands, from the JSON of the tables.

python -m experiments.results_page

`tables.json` says which columns of which tables it shows, by which command they are measured, and
of each row the day and the commit that added it, or measured it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.papers.table import Cell
from experiments.results_pictures import FOLDER, GUESSES
from fedpersonal.files import atomic_write
from fedpersonal.report.run import label

PAGE = FOLDER / "index.md"
_BEST = 10
_ADAPTED = "(adapted base)"


def page() -> str:
    """Returns the page as it is written, with what stands between its comments made anew."""
    boards = ("leaderboard", "leaderboard_full")
    made = {**{name: _board(_read(name)) for name in boards}, "tables": _tables()}
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in made.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        after = rest.split("\n<!-- end -->", 1)[1]
        text = "\n".join([f"{before}<!-- {name} -->", *lines, f"<!-- end -->{after}"])
    return text


def _read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _board(board: Mapping[str, Any]) -> Iterator[str]:
    tasks = board["tasks"]
    # Of a table that is joined from others, each task says how it was made.
    made = dict.fromkeys(_how(task.get("made", board)) for task in tasks.values())
    yield from (f"- {how}" for how in made)
    yield "\nThe first row is the fair guess of each task; arrows say which way is better.\n"
    arrows = {"lower": "↓", "higher": "↑"}
    titles = [f"{t['title']}, {label(t['metric'])} {arrows[t['better']]}" for t in tasks.values()]
    yield _row("", "mean rank ↓", *titles) + "\n|" + " --- |" * (2 + len(tasks))
    rows, averaged = board["rows"], [name for name, task in tasks.items() if task["averaged"]]
    ranked = [r for r in rows if all(r["cells"].get(n, {}).get("rank") for n in averaged)]
    frames = [r for r in rows if r["kind"] in ("server", "local")]
    guesses = [r for r in rows if r["kind"] == "guess"]
    for row in (*guesses, *ranked[:_BEST], *frames):
        values = [row["cells"].get(task, {}).get("value") for task in tasks]
        cells = [f"{Cell.of(value).mean:.3f}" if value else "–" for value in values]
        rank = f"{row['mean_rank']:.1f}" if row.get("mean_rank") else "–"
        yield _row(row["title"], rank, *cells)


def _how(made: Mapping[str, Any]) -> str:
    seeds = f"seed{'s' * (len(made['seeds']) > 1)} {_listed(made['seeds'])}"
    return f"`{made['command']}`, {made['date']}, commit {made['commit']}, {seeds}."


def _tables() -> Iterator[str]:
    for shown in _read("tables"):
        content, digits, better = _read(shown["source"]), shown["digits"], shown["better"]
        rows = content["tables"][shown["table"]].items()
        cells = {name: Cell.of(row[shown["column"]]) for name, row in rows}
        at = {name: at for at, names in shown["measured"].items() for name in names}
        guess = _guess(next(iter(cells)), cells, better).split(": ")[-1]
        yield (
            f"### {shown['title']}\n\n`{shown['command']}`, seeds {_listed(content['seeds'])};\n"
            f"{shown['metric']}, {better} is better. "
            f"The fair guess is *{guess[:1].lower() + guess[1:]}*.\n"
            f"[The whole page]({shown['source']}.md)\n"
        )
        yield (
            _row("", shown.get("paper", "the paper"), "here", "fair guess", "day and commit")
            + "\n|"
            + " --- |" * 5
        )
        for name, cell in cells.items():
            if not name.startswith(GUESSES):
                paper = "" if cell.published is None else f"{cell.published:.{digits}f}"
                beaten = cells[_guess(name, cells, better)]
                yield _row(name, paper, cell.text(digits), beaten.text(digits), at[name])
        yield ""


def _guess(name: str, cells: Mapping[str, Cell[float]], better: str) -> str:
    """Returns the best guess that knows what a row knows: an adapted base is another base."""
    guesses = [guess for guess in cells if guess.startswith(GUESSES)]
    guesses = [guess for guess in guesses if (_ADAPTED in guess) == (_ADAPTED in name)]
    return (min if better == "lower" else max)(guesses, key=lambda guess: cells[guess].mean)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _listed(seeds: list[int]) -> str:
    *first, last = map(str, seeds)
    return f"{', '.join(first)} and {last}" if first else last


if __name__ == "__main__":
    text = page()
    with atomic_write(PAGE) as file:
        file.write(text)
