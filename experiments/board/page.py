"""What the leaderboard writes: a page to sort and filter, Markdown, CSV and JSON."""

from __future__ import annotations

import dataclasses
import datetime
import math
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tabulate

import fedpersonal
from experiments.board.table import (
    FEDERATED,
    GUESS_ROW,
    LOCAL,
    SERVER,
    BoardTable,
    Cell,
    Origin,
    Row,
    verdict,
)
from experiments.board.tasks import QUICK, Entry
from experiments.papers.table import Cell as Figure
from experiments.sweeping.grid import values_text
from fedpersonal.errors import counted
from fedpersonal.files import write_csv, write_json, write_text
from fedpersonal.report.page import render
from fedpersonal.report.run import label, size

NAME = "leaderboard"
_BETTER, _WORSE = "▲", "▼"
_KINDS = {
    FEDERATED: "federated",
    LOCAL: "each client alone",
    SERVER: "a server with all data",
    GUESS_ROW: "no training",
}
ABOUT = f"""\
A split of a task is the same for all methods. Rows without a rank need no federation and frame \
the others. {_BETTER} and {_WORSE}: clearly better and clearly worse than FedAvg + \
fine-tuning, by the 95 % interval of a paired bootstrap over test clients. A rank is one, and one \
more for each method that is clearly better, by such an interval between the two, and half for \
each that cannot be told apart; who diverges is behind all others, and who is refused, because \
the task's options do not suit it, has none. A mean rank leaves out tasks on which most methods \
are not tuned, unless all tasks are such. *Worse off*: the share of test clients whose own \
figure is worse than with FedAvg + fine-tuning. Bytes are of one client and one round; *kept* is \
what it stores between rounds. Seconds of a round are of this machine, with other runs beside.

Intervals are over clients alone: another training, or other luck in tuning, may differ by more \
where methods are close. With fewer than 30 test clients an interval comes from the means of their \
subsets. No interval is wider because there are many comparisons: of two methods that are equal, \
one is called clearly better in one case of twenty. Methods whose clients' figures are equal to \
the bit count once: *same as* names the first of them, whose rank the others have, too.

Where clients are known, ranks are by what they kept, as it was left by their last round. \
Fine-tuned methods take steps before they predict. Such steps help many kept parts, too: the \
column *updated* has them, without an interval, and each task says how many are better for them.

FedAvg, FedDyn and Reptile have a server that averages, as in their papers; most others have the \
task's optimizer. Methods that share all variables send the embeddings of all users as well."""
ACROSS = """\
Settings of this table are older than that rule: each seed, also of tuning, had a split of its \
own. Most clients that are tested here have trained or validated in tuning, for each method."""
TUNING = """\
*Settings*: the options that tuning has chosen, and from how many settings: as many for each \
method, by validation clients, or examples, of the split that the table has, with other seeds of \
training. No test client, and of known clients no test example, has a part in it. The first \
setting is what the method's row in the tables of the papers adds to its preset, or else the \
preset of the task, which was made for one method, with pulls and steps ahead that suit its rate. \
What earlier \
tunings found is not used, though validation clients like some of it better: each method has the \
luck of as many draws. *Not tuned*: the first setting."""


class Shown(NamedTuple):
    """A cell as it is shown, and what it is sorted by."""

    text: str
    sort: float | str | None = None


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table to be shown: of each row its kind and its cells."""

    name: str
    title: str
    note: str
    headers: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Shown]]]

    def markdown(self) -> str:
        """Returns it in GitHub's Markdown."""
        texts = [[shown.text.replace("|", "∣") for shown in cells] for _, cells in self.rows]
        return tabulate.tabulate(texts, self.headers, tablefmt="github", disable_numparse=True)


def write_pages(
    table: BoardTable, advice: Sequence[str], folder: pathlib.Path, command: str
) -> list[pathlib.Path]:
    """Writes the table in each form.

    Args:
        table: The table.
        advice: What to take when.
        folder: Where they go.
        command: What makes it again.

    Returns:
        The files.
    """
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    made = Origin(today, fedpersonal.__version__, _commit(), command, list(table.seeds))
    grids = [_overview(table), *(_of_task(table, entry) for entry in table.entries)]
    paths = [folder / f"{NAME}.{kind}" for kind in ("html", "md", "csv", "json")]
    page = render(
        "leaderboard.jinja",
        data={"kinds": [*_KINDS.items()]},
        title=_title(table),
        advice=advice,
        made=_plain(_made(table, made)),
        about=_plain(f"{ABOUT}\n\n{_tuning(table)}").split("\n\n"),
        grids=[dataclasses.replace(grid, note=_plain(grid.note)) for grid in grids],
    )
    write_text(paths[0], page)
    write_text(paths[1], _markdown(table, advice, grids, made))
    write_csv(paths[2], _records(table))
    write_json(paths[3], {**_content(table, made), "advice": list(advice)})
    return paths


def _overview(table: BoardTable) -> Grid:
    """Returns the table of all tasks, a column each."""
    rows, averaged = [], table.averaged
    for row in table.rows:
        rank = row.mean_rank(averaged)
        cells = [
            Shown(row.title, row.title),
            Shown("" if row.kind == GUESS_ROW else row.name, row.name),
            Shown(_KINDS[row.kind], row.kind),
            Shown("–" if rank is None else f"{rank:.1f}", rank),
            Shown(str(row.num_tasks), row.num_tasks),
        ]
        cells += [_value(row, entry, table.titles) for entry in table.entries]
        rows.append((row.kind, cells))
    headers = ["method", "name", "kind", "mean rank", "tasks", *(_header(e) for e in table.entries)]
    return Grid("all", "All tasks", "", headers, rows)


def _header(entry: Entry) -> str:
    return f"{entry.title}, {label(entry.metric)} {'↓' if entry.lower else '↑'}"


def _value(row: Row, entry: Entry, titles: Mapping[str, str]) -> Shown:
    cell = row.cells.get(entry.name)
    if cell is None or cell.value is None:
        return Shown("" if cell is None else cell.why.split(":")[0])
    if cell.same_as:
        return Shown(f"same as {titles[cell.same_as]}", cell.value.mean)
    mark = {1: _BETTER, -1: _WORSE}.get(verdict(cell.behind, entry), "")
    return Shown(f"{cell.value.text(entry.digits)} {mark}".rstrip(), cell.value.mean)


def _of_task(table: BoardTable, entry: Entry) -> Grid:
    """Returns the table of one task, with all that a cell has."""
    rows = [row for row in table.rows if entry.name in row.cells]
    rows.sort(key=lambda row: row.ranks.get(entry.name, math.inf))
    starts = list(dict.fromkeys(s for row in rows for s in row.cells[entry.name].starts))
    compared = "" if entry.compared_name == entry.metric else f" ({label(entry.compared_name)})"
    headers = [
        *("method", "kind", "rank", _header(entry)),
        *(f"− FedAvg + fine-tuning{compared}", f"− best guess{compared}"),
        *("worse off", "received", "sent", "kept", "s a round", "rounds"),
        *starts,
        "settings",
    ]
    digits = entry.digits
    shown = []
    for row in rows:
        cell = row.cells[entry.name]
        cells = [
            Shown(row.title, row.title),
            Shown(_KINDS[row.kind], row.kind),
            _number(cell.rank, ".1f"),
            _figure(cell.value, digits),
            _figure(cell.behind, digits),
            _figure(cell.above_guess, digits),
            _number(cell.worse_off, ".0%"),
            *(
                Shown("–" if n is None else size(int(n)), n)
                for n in (cell.down, cell.up, cell.kept)
            ),
            _number(cell.round_seconds, ".3f"),
            _number(cell.rounds, "d"),
            *(_number(cell.starts.get(start), f".{digits}f") for start in starts),
            Shown(_settings(row, cell, table.titles)),
        ]
        shown.append((row.kind, cells))
    note = "Test clients are those that train." if entry.is_seen else "Test clients are new."
    note = " ".join(filter(None, (note, entry.sizes[table.size].note)))
    if starts:
        note += (
            " They predict with what they kept; further columns: with what they have rebuilt, and "
            "with what they kept after more local steps, where it is no copy of the whole model. "
            f"{_updated(rows, entry)}"
        )
    if entry.chosen_by:
        note += f" Settings are chosen by {label(entry.chosen_by)}."
    if entry.name in table.origins:
        note += f" {_how(table.origins[entry.name])}"
    if compared:
        note += (
            f" {label(entry.metric)} is of all clients together, and no sum over them: differences "
            f"and ranks are by {label(entry.compared_name)}."
        )
    return Grid(entry.name, entry.title, note, headers, shown)


def _updated(rows: Sequence[Row], entry: Entry) -> str:
    """Says how many methods do better if what they kept is brought up to date."""
    cells = [row.cells[entry.name] for row in rows]
    gains = [c.starts["updated"] - c.value.mean for c in cells if "updated" in c.starts and c.value]
    helped = sum(gain < 0 if entry.lower else gain > 0 for gain in gains)
    return f"These steps help {helped} of {len(gains)} methods."


def _settings(row: Row, cell: Cell, titles: Mapping[str, str]) -> str:
    """Returns what a cell was run with, why it has no value, or what it is the same as."""
    if cell.why or row.kind == GUESS_ROW:
        return cell.why
    if cell.same_as:
        return f"same as {titles[cell.same_as]}"
    if cell.setting is None:
        return "not tuned"
    lost = cell.setting.num_diverged
    of = f"{cell.setting.num_settings}{f', {lost} diverged' if lost else ''}"
    return f"{values_text(cell.setting.setting)} (best of {of})"


def _number(value: float | None, form: str) -> Shown:
    return Shown("–" if value is None else format(value, form), value)


def _figure(figure: Figure[float] | None, digits: int) -> Shown:
    return Shown("–") if figure is None else Shown(figure.text(digits), figure.mean)


def _title(table: BoardTable) -> str:
    methods = [row for row in table.rows if row.kind != GUESS_ROW]
    size = "" if table.size == QUICK else f", {table.size} size"
    tasks = counted(len(table.entries), "tasks")
    return f"Leaderboard{size}: {counted(len(methods), 'methods')} on {tasks}"


def _made(table: BoardTable, made: Origin) -> str:
    changed = made.commit.endswith("-dirty")
    by = f" by commit {made.commit[:-6]} with uncommitted changes" if changed else ""
    joined = f"Joined on {made.date}{by}; each task says how it was made."
    return f"{table.size.capitalize()} size. {joined if table.origins else _how(made)}"


def _how(made: Origin) -> str:
    seeds = len(made.seeds)
    over = f"means ± standard deviation over {seeds} seeds" if seeds > 1 else "of a single seed"
    at = f", commit {made.commit}" if made.commit else ""
    return (
        f"Made on {made.date} by fedpersonal {made.version}{at}, by `{made.command}`. Figures are "
        f"{over}."
    )


def _markdown(table: BoardTable, advice: Sequence[str], grids: Sequence[Grid], made: Origin) -> str:
    parts = [f"# {_title(table)}", _made(table, made), "## Take this when"]
    parts.append("\n".join(f"- {sentence}" for sentence in advice))
    for grid in grids:
        parts += [f"## {grid.title}", *([grid.note] if grid.note else [ABOUT]), grid.markdown()]
    return "\n\n".join([*parts, _tuning(table)])


def _tuning(table: BoardTable) -> str:
    """Returns how settings are found, and whether some were found otherwise."""
    found = [cell.setting for row in table.rows for cell in row.cells.values() if cell.setting]
    is_older = any(setting.split_seed is None for setting in found)
    return f"{TUNING}\n\n{ACROSS}" if is_older else TUNING


def _plain(markdown: str) -> str:
    return markdown.replace("*", "").replace("`", "")


def _records(table: BoardTable) -> list[dict[str, Any]]:
    """Returns a row a method and task."""
    records = []
    for row in table.rows:
        for task, cell in row.cells.items():
            flat: dict[str, Any] = {"task": task, "method": row.name, "kind": row.kind}
            for field in dataclasses.fields(cell):
                value = getattr(cell, field.name)
                if field.name == "setting":
                    value = values_text(value.setting) if value else ""
                elif field.name == "starts":
                    flat.update({f"value_{start}": number for start, number in value.items()})
                    continue
                elif isinstance(value, Figure):
                    low, high = value.interval or ("", "")
                    if field.name != "value":
                        flat.update({f"{field.name}_low": low, f"{field.name}_high": high})
                    value = value.mean
                flat[field.name] = "" if value is None else value
            records.append(flat)
    names = dict.fromkeys(name for record in records for name in record)
    return [{name: record.get(name, "") for name in names} for record in records]


def _content(table: BoardTable, made: Origin) -> dict[str, Any]:
    """Returns the content of the JSON file."""
    averaged = table.averaged
    return {
        **dataclasses.asdict(made),
        "size": table.size,
        "tasks": {
            e.name: {
                "title": e.title,
                "metric": e.metric,
                "compared": e.compared_name,
                "better": "lower" if e.lower else "higher",
                "clients": "seen" if e.is_seen else "unseen",
                "averaged": e.name in averaged,
                "clearly_better": sorted(map(list, table.clear[e.name])),
                "made": dataclasses.asdict(table.origins.get(e.name, made)),
            }
            for e in table.entries
        },
        "rows": [
            {**dataclasses.asdict(row), "mean_rank": row.mean_rank(averaged)} for row in table.rows
        ],
    }


def _commit() -> str:
    """Returns the commit of the checkout that this file is in; nothing for an installed package."""
    root = pathlib.Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # The repository of somebody's project may be around it.
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # There is no git.
        return ""
    return done.stdout.strip()
