"""The tuning: ranges by option, the settings that are tried, and what was found, kept as data.

Every method has the same number of settings on a task. The first is that of the papers' tables, or
the preset's; the others are drawn around it, from ranges of those options that the method reads.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

from experiments.board.tasks import Entry
from experiments.sweeping.grid import Range, Setting, Values, draw_settings
from fedpersonal.files import read_json, write_json
from fedpersonal.methods.method import Method
from fedpersonal.options import Value
from fedpersonal.tasks.idle import idle_options
from fedpersonal.tasks.task import Task

KEPT = pathlib.Path(__file__).parent / "settings.json"
# By option, factors of its first value: drawn between them, by their logarithms.
RANGES: Mapping[str, tuple[float, float]] = {
    "*_learning_rate": (0.1, 10.0),
    "proximal": (0.01, 10.0),
    "pull": (0.01, 10.0),
    "feddyn_alpha": (0.01, 10.0),
    "envelope": (0.1, 10.0),
    "blend_rate": (0.1, 10.0),
    "num_clusters": (1.0, 4.0),
    "em_steps": (1.0, 8.0),
    "neighbour_scale": (0.01, 10.0),
    "neighbour_weight": (0.1, 1.9),
}


@dataclasses.dataclass(frozen=True)
class Found:
    """What the tuning of a method on a task came to.

    Attributes:
        setting: The options chosen.
        metric: The metric of validation clients that has chosen them.
        validation: Its mean over seeds.
        preset_validation: That of the first setting; None where it diverges.
        num_settings: The budget: how many settings were tried.
        num_diverged: How many of them diverged.
        seeds: The seeds, none of which the table has.
        split_seed: The seed of the split, that of the table; None where each seed had a split of
            its own, by which clients that the table tests have trained and validated.
    """

    setting: Setting
    metric: str
    validation: float
    preset_validation: float | None
    num_settings: int
    num_diverged: int
    seeds: list[int]
    split_seed: int | None = None


def settings_of(
    entry: Entry, values: Mapping[str, Value], method: type[Method], number: int
) -> list[Setting]:
    """Returns the settings that are tried; a larger number begins the same.

    Draws are those of the task, so that no luck is common to all tasks.

    Args:
        entry: The task.
        values: The options of the method that the size settles.
        method: The method.
        number: How many.
    """
    task, own = entry.library, entry.first_options(method, values)
    values = {**values, **own}
    ranges = ranges_of(task, values, method)
    options = task.settle(task.options(**values)).values()
    first = {name: options[name] for name in ranges}
    seed = zlib.crc32(entry.name.encode())
    drawn = draw_settings(ranges, number - 1, seed) if ranges and number > 1 else []
    return [{**own, **setting} for setting in (first, *drawn)]


def ranges_of(task: Task, values: Mapping[str, Value], method: type[Method]) -> dict[str, Values]:
    """Returns the ranges of the options that a method reads; the arguments are `settings_of`'s."""
    settled = task.settle(task.options(**{**values, "method": method.name}))
    options = settled.values()
    names = [n for n in method.options.declarations() if method.trains or n[:7] != "client_"]
    if method.trains and method.is_federated:
        names.append("server_learning_rate")
    factors = {n: f for n in names for like, f in RANGES.items() if fnmatch.fnmatch(n, like)}
    idle = idle_options(task, settled, factors)
    found: dict[str, Values] = {}
    for name, (least, most) in factors.items():
        value = options[name]
        if name not in idle and isinstance(value, (int, float)) and value > 0:
            is_whole = isinstance(value, int)
            found[name] = Range(value * least, value * most, True, is_whole=is_whole)
    return found


def read_found(path: pathlib.Path, size: str) -> dict[tuple[str, str], Found]:
    """Returns what a file has of a size, by task and method; nothing without the file."""
    if not path.exists():
        return {}
    tasks = read_json(path, checked=True).get(size, {})
    return {(t, m): Found(**one) for t, of in tasks.items() for m, one in of.items()}


def write_found(path: pathlib.Path, size: str, found: Mapping[tuple[str, str], Found]) -> None:
    """Writes what was found of a size; what the file has of others stays."""
    content: dict[str, Any] = read_json(path, checked=True) if path.exists() else {}
    tasks: dict[str, dict[str, Any]] = {}
    for (task, method), one in found.items():
        tasks.setdefault(task, {})[method] = dataclasses.asdict(one)
    write_json(path, {**content, size: tasks}, checked=True)
