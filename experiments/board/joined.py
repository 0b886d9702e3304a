"""Tables of several tasks, made on other days or machines, as one."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.board.settings import Found
from experiments.board.table import BoardTable, Cell, Origin, Row, in_order
from experiments.board.tasks import ENTRIES, own_entry
from experiments.papers.table import Cell as Figure
from fedpersonal.errors import UserError
from fedpersonal.files import read_json

_FIGURES = ("value", "behind", "above_guess")


def join_tables(paths: Sequence[pathlib.Path]) -> BoardTable:
    """Returns the tasks of several tables as one table.

    A rank is of one task, so that none changes but the means.

    Args:
        paths: The JSON files of the tables; of a task that several have, the last one's counts.

    Raises:
        UserError: If a file is missing or no table, or they are not of one size.
    """
    contents = {path: _read(path) for path in paths}
    sizes = {content["size"]: path for path, content in contents.items()}
    if len(sizes) > 1:
        told = " and ".join(f"{path} is {size}" for size, path in sizes.items())
        raise UserError(f"--joined: {told}; join tables of one size.")
    known, tasks = {entry.name: entry for entry in ENTRIES}, {}
    # By method, and then by task.
    cells: dict[str, dict[str, Any]] = {}
    titles: dict[str, tuple[str, str]] = {}
    for content in contents.values():
        for row in cells.values():  # A method that does the task no more keeps no cell of it.
            for task in content["tasks"]:
                row.pop(task, None)
        tasks.update(content["tasks"])
        for row in content["rows"]:
            titles[row["name"]] = row["title"], row["kind"]
            cells.setdefault(row["name"], {}).update(row["cells"])
    # The tasks that come with the table have the order that they have there.
    order = [*(name for name in known if name in tasks), *(n for n in tasks if n not in known)]
    rows = [
        Row(name, *titles[name], {task: _cell(own[task]) for task in order if task in own})
        for name, own in cells.items()
        if own
    ]
    return BoardTable(
        [known[name] if name in known else own_entry(name) for name in order],
        next(iter(sizes)),
        sorted({seed for task in tasks.values() for seed in task["made"]["seeds"]}),
        in_order(rows),
        {name: frozenset(map(tuple, tasks[name]["clearly_better"])) for name in order},
        {name: Origin(**tasks[name]["made"]) for name in order},
    )


def settings_found(table: BoardTable) -> dict[tuple[str, str], Found]:
    """Returns the settings that tuning has found, by task and method."""
    return {
        (task, row.name): cell.setting
        for row in table.rows
        for task, cell in row.cells.items()
        if cell.setting
    }


def _read(path: pathlib.Path) -> dict[str, Any]:
    content = read_json(path)
    names = [field.name for field in dataclasses.fields(Origin)]
    if not content.get("tasks") or not {*names, "size", "rows"} <= content.keys():
        raise UserError(
            f"--joined={path} is no leaderboard.json: give that of an --output_dir of this command."
        )
    for task in content["tasks"].values():
        task.setdefault("made", {name: content[name] for name in names})
    return content


def _cell(content: Mapping[str, Any]) -> Cell:
    figures = {name: content[name] and Figure.of(content[name]) for name in _FIGURES}
    found = content["setting"] and Found(**content["setting"])
    return Cell(**{**content, **figures, "setting": found})
