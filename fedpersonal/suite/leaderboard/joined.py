"""Joins tables of several tasks, made on different days or machines."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.files import read_json
from fedpersonal.suite.leaderboard.settings import TunedSetting
from fedpersonal.suite.leaderboard.table import (
    BASELINE_NAME,
    BASELINE_ROW,
    FILE_KEYS,
    BoardTable,
    Cell,
    Origin,
    Row,
    in_order,
)
from fedpersonal.suite.leaderboard.tasks import ENTRIES, user_entry
from fedpersonal.suite.papers.table import Cell as Figure

_FIGURES = ("value", "behind", "above_baseline")


def join_tables(paths: Sequence[pathlib.Path]) -> BoardTable:
    """Returns the tasks of several tables as one table.

    Ranks are by task, so only the mean ranks change.

    Args:
        paths: The JSON files of the tables; if several have a task, the last one counts.

    Raises:
        UserError: If a file is missing or no table, or tables have different sizes.
    """
    contents = {path: _read(path) for path in paths}
    sizes = {content["size"]: path for path, content in contents.items()}
    if len(sizes) > 1:
        text = " and ".join(f"{path} is {size}" for size, path in sizes.items())
        raise UserError(f"--joined: {text}; join tables of one size.")
    library, tasks = {entry.name: entry for entry in ENTRIES}, {}
    # By method, and then by task.
    cells: dict[str, dict[str, Any]] = {}
    titles: dict[str, tuple[str, str]] = {}
    for content in contents.values():
        for row in cells.values():  # Drop cells of methods that no longer run on the task.
            for task in content["tasks"]:
                row.pop(task, None)
        tasks.update(content["tasks"])
        for row in content["rows"]:
            if row["kind"] == BASELINE_ROW:  # Tables of former versions have another title.
                row = {**row, "name": BASELINE_NAME, "title": BASELINE_NAME.capitalize()}
            titles[row["name"]] = row["title"], row["kind"]
            cells.setdefault(row["name"], {}).update(row["cells"])
    # Tasks of the library first, in their order.
    order = [*(name for name in library if name in tasks), *(n for n in tasks if n not in library)]
    rows = [
        Row(name, *titles[name], {task: _cell(by_task[task]) for task in order if task in by_task})
        for name, by_task in cells.items()
        if by_task
    ]
    return BoardTable(
        [library[name] if name in library else user_entry(name) for name in order],
        next(iter(sizes)),
        sorted({seed for task in tasks.values() for seed in task["made"]["seeds"]}),
        in_order(rows),
        {name: frozenset(map(tuple, tasks[name]["clearly_better"])) for name in order},
        {name: Origin(**tasks[name]["made"]) for name in order},
    )


def tuned_settings(table: BoardTable) -> dict[tuple[str, str], TunedSetting]:
    """Returns the tuned settings, by task and method."""
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
            f"--joined={path} is no leaderboard.json: name one in an --output_dir of this command."
        )
    for task in content["tasks"].values():
        task.setdefault("made", {name: content[name] for name in names})
    return content


def _cell(content: Mapping[str, Any]) -> Cell:
    names = {key: name for name, key in FILE_KEYS.items()}
    content = {names.get(key, key): value for key, value in content.items()}
    figures = {name: content[name] and Figure.of(content[name]) for name in _FIGURES}
    setting = content["setting"] and TunedSetting(**content["setting"])
    return Cell(**{**content, **figures, "setting": setting})
