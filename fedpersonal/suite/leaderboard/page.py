"""The files of the leaderboard: a page with sortable tables, Markdown, CSV and JSON."""

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
from fedpersonal.errors import with_count
from fedpersonal.files import write_csv, write_json, write_text
from fedpersonal.report.page import render
from fedpersonal.report.run import format_size, label
from fedpersonal.suite.leaderboard.table import (
    BASELINE_ROW,
    FEDERATED,
    FILE_KEYS,
    LOCAL,
    SERVER,
    BoardTable,
    Cell,
    Origin,
    Row,
    verdict,
)
from fedpersonal.suite.leaderboard.tasks import QUICK, Entry
from fedpersonal.suite.papers.table import Cell as Figure
from fedpersonal.suite.sweeps.grid import values_text

NAME = "leaderboard"
_BETTER, _WORSE = "▲", "▼"
_KINDS = {
    FEDERATED: "federated",
    LOCAL: "local training",
    SERVER: "centralised training",
    BASELINE_ROW: "no training",
}
ABOUT = f"""\
All methods have the same split of a task. Rows without a rank need no federation and are there \
for comparison. {_BETTER} and {_WORSE}: clearly better and clearly worse than FedAvg + \
fine-tuning, by the 95 % interval of a paired bootstrap over test clients. The rank of a method \
is 1, plus 1 for each method that is clearly better by such an interval, plus ½ for each that \
differs from it within noise. Diverged runs rank last. Methods that are refused, because they do \
not support the task's options, have no rank. Mean ranks leave out tasks on which most methods \
are not tuned, unless all tasks are such. *Worse*: the share of test clients whose figure is worse \
than with FedAvg + fine-tuning. Bytes are per client and round; *kept* are the bytes that a client \
stores between rounds. Seconds per round are measured on one machine, with other runs in parallel.

Intervals are over clients only: the variation between trainings, or between tunings, may be \
larger than the difference between close methods. With fewer than 30 test clients, an interval is \
computed from the means of their subsets. Intervals are not corrected for multiple comparisons: \
of two equal methods, one is called clearly better in one case of twenty. Methods whose clients' \
figures are equal to the bit count once: *same as* names the first of them, which has the same \
rank.

For seen clients, ranks are by their kept values after their last round. Fine-tuned methods take \
steps before they predict. Such steps improve many kept values, too: the column *updated* has the \
figures after them, without an interval, and each task shows how many methods they improve.

FedAvg, FedDyn and Reptile have a server that averages, as in their papers; most others have the \
task's optimizer. Methods that share all variables also send the embeddings of all users."""
ACROSS = """\
Settings of this table are older than that rule: each seed, also of tuning, had another split. \
Most test clients have trained or validated in tuning, for each method."""
TUNING = """\
*Settings*: the options chosen by tuning, and the number of settings that it tried. The number is \
the same for all methods. Settings are compared by validation clients, or examples, of the table's \
split, with other training seeds. Neither test clients nor test examples of seen clients are used. \
The first setting is the method's row in the tables of the papers, added to its preset. Methods \
without such a row have the preset of the task, which was made for one method, with proximal \
terms and lookahead steps that fit its learning rate. Results of earlier tunings are not used, \
even if they are better on validation clients, so that each method has the same number of \
samples. *Not tuned*: the first setting."""


class PageCell(NamedTuple):
    """The text of a cell, and its value for sorting."""

    text: str
    sort: float | str | None = None


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table of the pages; a row is its kind and its cells."""

    name: str
    title: str
    note: str
    headers: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PageCell]]]

    def markdown(self) -> str:
        """Returns the table in GitHub's Markdown."""
        texts = [[cell.text.replace("|", "∣") for cell in cells] for _, cells in self.rows]
        return tabulate.tabulate(texts, self.headers, tablefmt="github", disable_numparse=True)


def write_pages(
    table: BoardTable, advice: Sequence[str], folder: pathlib.Path, command: str
) -> list[pathlib.Path]:
    """Writes the table in each format.

    Args:
        table: The table.
        advice: The sentences of advice.
        folder: The folder of the files.
        command: The command that makes the table again.

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
        about=_plain(f"{ABOUT}\n\n{_about_tuning(table)}").split("\n\n"),
        grids=[dataclasses.replace(grid, note=_plain(grid.note)) for grid in grids],
    )
    write_text(paths[0], page)
    write_text(paths[1], _markdown(table, advice, grids, made))
    write_csv(paths[2], _records(table))
    write_json(paths[3], {**_content(table, made), "advice": list(advice)})
    return paths


def _overview(table: BoardTable) -> Grid:
    """Returns the table of all tasks, with one column per task."""
    rows, averaged = [], table.averaged
    for row in table.rows:
        rank = row.mean_rank(averaged)
        cells = [
            PageCell(row.title, row.title),
            PageCell("" if row.kind == BASELINE_ROW else row.name, row.name),
            PageCell(_KINDS[row.kind], row.kind),
            PageCell("–" if rank is None else f"{rank:.1f}", rank),
            PageCell(str(row.num_tasks), row.num_tasks),
        ]
        cells += [_value(row, entry, table.titles) for entry in table.entries]
        rows.append((row.kind, cells))
    headers = ["method", "name", "kind", "mean rank", "tasks", *(_header(e) for e in table.entries)]
    return Grid("all", "All tasks", "", headers, rows)


def _header(entry: Entry) -> str:
    return f"{entry.title}, {label(entry.metric)} {'↓' if entry.lower else '↑'}"


def _value(row: Row, entry: Entry, titles: Mapping[str, str]) -> PageCell:
    cell = row.cells.get(entry.name)
    if cell is None or cell.value is None:
        return PageCell("" if cell is None else cell.why.split(":")[0])
    if cell.same_as:
        return PageCell(f"same as {titles[cell.same_as]}", cell.value.mean)
    mark = {1: _BETTER, -1: _WORSE}.get(verdict(cell.behind, entry), "")
    return PageCell(f"{cell.value.text(entry.digits)} {mark}".rstrip(), cell.value.mean)


def _of_task(table: BoardTable, entry: Entry) -> Grid:
    """Returns the table of one task, with all fields of its cells."""
    rows = [row for row in table.rows if entry.name in row.cells]
    rows.sort(key=lambda row: row.ranks.get(entry.name, math.inf))
    starts = list(dict.fromkeys(s for row in rows for s in row.cells[entry.name].starts))
    compared = "" if entry.compared_name == entry.metric else f" ({label(entry.compared_name)})"
    headers = [
        *("method", "kind", "rank", _header(entry)),
        *(f"− FedAvg + fine-tuning{compared}", f"− strongest baseline{compared}"),
        *("worse", "received", "sent", "kept", "s per round", "rounds"),
        *starts,
        "settings",
    ]
    digits = entry.digits
    page_rows = []
    for row in rows:
        cell = row.cells[entry.name]
        cells = [
            PageCell(row.title, row.title),
            PageCell(_KINDS[row.kind], row.kind),
            _number(cell.rank, ".1f"),
            _figure(cell.value, digits),
            _figure(cell.behind, digits),
            _figure(cell.above_baseline, digits),
            _number(cell.worse, ".0%"),
            *(
                PageCell("–" if n is None else format_size(int(n)), n)
                for n in (cell.down, cell.up, cell.kept)
            ),
            _number(cell.round_seconds, ".3f"),
            _number(cell.rounds, "d"),
            *(_number(cell.starts.get(start), f".{digits}f") for start in starts),
            PageCell(_settings(row, cell, table.titles)),
        ]
        page_rows.append((row.kind, cells))
    note = f"Test clients are {'seen' if entry.is_seen else 'unseen'} clients."
    note = " ".join(filter(None, (note, entry.sizes[table.size].note)))
    if starts:
        note += (
            " They predict with their kept values. Further columns: with rebuilt values, and with "
            "kept values after more local steps, unless these are a copy of the whole model. "
            f"{_updated(rows, entry)}"
        )
    if entry.chosen_by:
        note += f" Settings are chosen by {label(entry.chosen_by)}."
    if entry.name in table.origins:
        note += f" {_origin(table.origins[entry.name])}"
    if compared:
        note += (
            f" {label(entry.metric)} is computed over all clients, not a mean over them: "
            f"differences and ranks are by {label(entry.compared_name)}."
        )
    return Grid(entry.name, entry.title, note, headers, page_rows)


def _updated(rows: Sequence[Row], entry: Entry) -> str:
    """Returns a sentence on the number of methods that improve by updating their kept values."""
    cells = [row.cells[entry.name] for row in rows]
    gains = [c.starts["updated"] - c.value.mean for c in cells if "updated" in c.starts and c.value]
    improved = sum(gain < 0 if entry.lower else gain > 0 for gain in gains)
    return f"These steps improve {improved} of {len(gains)} methods."


def _settings(row: Row, cell: Cell, titles: Mapping[str, str]) -> str:
    """Returns the setting of a cell, the reason why it has no value, or its equal method."""
    if cell.why or row.kind == BASELINE_ROW:
        return cell.why
    if cell.same_as:
        return f"same as {titles[cell.same_as]}"
    if cell.setting is None:
        return "not tuned"
    diverged = cell.setting.num_diverged
    number = f"{cell.setting.num_settings}{f', {diverged} diverged' if diverged else ''}"
    return f"{values_text(cell.setting.setting)} (best of {number})"


def _number(value: float | None, form: str) -> PageCell:
    return PageCell("–" if value is None else format(value, form), value)


def _figure(figure: Figure[float] | None, digits: int) -> PageCell:
    return PageCell("–") if figure is None else PageCell(figure.text(digits), figure.mean)


def _title(table: BoardTable) -> str:
    methods = [row for row in table.rows if row.kind != BASELINE_ROW]
    size = "" if table.size == QUICK else f", {table.size} size"
    tasks = with_count(len(table.entries), "tasks")
    return f"Leaderboard{size}: {with_count(len(methods), 'methods')} on {tasks}"


def _made(table: BoardTable, made: Origin) -> str:
    changed = made.commit.endswith("-dirty")
    by = f" by commit {made.commit[:-6]} with uncommitted changes" if changed else ""
    joined = f"Joined on {made.date}{by}; each task has its command."
    return f"{table.size.capitalize()} size. {joined if table.origins else _origin(made)}"


def _origin(made: Origin) -> str:
    """Returns the date, version and command of a table."""
    seeds = len(made.seeds)
    over = f"means ± standard deviation over {seeds} seeds" if seeds > 1 else "of a single seed"
    at = f", commit {made.commit}" if made.commit else ""
    return (
        f"Made on {made.date} by fedpersonal {made.version}{at}, by `{made.command}`. Figures are "
        f"{over}."
    )


def _markdown(table: BoardTable, advice: Sequence[str], grids: Sequence[Grid], made: Origin) -> str:
    parts = [f"# {_title(table)}", _made(table, made), "## Which method should I use?"]
    parts.append("\n".join(f"- {sentence}" for sentence in advice))
    for grid in grids:
        parts += [f"## {grid.title}", *([grid.note] if grid.note else [ABOUT]), grid.markdown()]
    return "\n\n".join([*parts, _about_tuning(table)])


def _about_tuning(table: BoardTable) -> str:
    """Returns a description of the tuning, and a warning if settings are of an earlier version."""
    tuned = [cell.setting for row in table.rows for cell in row.cells.values() if cell.setting]
    is_older = any(setting.split_seed is None for setting in tuned)
    return f"{TUNING}\n\n{ACROSS}" if is_older else TUNING


def _plain(markdown: str) -> str:
    return markdown.replace("*", "").replace("`", "")


def _records(table: BoardTable) -> list[dict[str, Any]]:
    """Returns one row per method and task, with the column names of the CSV file."""
    records = []
    for row in table.rows:
        for task, cell in row.cells.items():
            flat: dict[str, Any] = {"task": task, "method": row.name, "kind": row.kind}
            for field in dataclasses.fields(cell):
                value, column = getattr(cell, field.name), FILE_KEYS.get(field.name, field.name)
                if field.name == "setting":
                    value = values_text(value.setting) if value else ""
                elif field.name == "starts":
                    flat.update({f"value_{start}": number for start, number in value.items()})
                    continue
                elif isinstance(value, Figure):
                    low, high = value.interval or ("", "")
                    if field.name != "value":
                        flat.update({f"{column}_low": low, f"{column}_high": high})
                    value = value.mean
                flat[column] = "" if value is None else value
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
        "rows": [{**_row_content(row), "mean_rank": row.mean_rank(averaged)} for row in table.rows],
    }


def _row_content(row: Row) -> dict[str, Any]:
    """Returns the content of a row, with the keys of the JSON file."""
    content = dataclasses.asdict(row)
    for task, cell in content["cells"].items():
        content["cells"][task] = {FILE_KEYS.get(name, name): value for name, value in cell.items()}
    return content


def _commit() -> str:
    """Returns the commit of the checkout of this file; empty for an installed package."""
    root = pathlib.Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():  # An outer folder may be the repository of another project.
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # There is no git.
        return ""
    return done.stdout.strip()
