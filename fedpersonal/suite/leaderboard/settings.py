"""The tuning: ranges by option, the settings to try, and the tuned settings, stored as data.

Every method has the same number of settings on a task. The first is that of the papers' tables, or
the preset's; the others are sampled around it, from ranges of the options that the method has.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

from fedpersonal.files import read_json, write_json
from fedpersonal.methods.method import Method
from fedpersonal.options import Value
from fedpersonal.suite.leaderboard.tasks import Entry
from fedpersonal.suite.sweeps.grid import Range, Setting, Values, sample_settings
from fedpersonal.suite.tasks.idle import idle_options
from fedpersonal.suite.tasks.task import Task

COMMITTED = pathlib.Path(__file__).parent / "settings.json"
# Least and greatest factor of the first value, by option. Logarithms of factors are sampled
# uniformly.
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
class TunedSetting:
    """The result of the tuning of a method on a task.

    Attributes:
        setting: The chosen options.
        metric: The metric of validation clients by which they were chosen.
        validation: The mean of the metric over seeds.
        preset_validation: The mean of the metric for the first setting; None if it diverges.
        num_settings: The number of settings tried.
        num_diverged: The number of settings that diverged.
        seeds: The seeds, which differ from those of the table.
        split_seed: The seed of the split, which is that of the table; None if each seed had another
            split, so that test clients of the table trained and validated in tuning.
    """

    setting: Setting
    metric: str
    validation: float
    preset_validation: float | None
    num_settings: int
    num_diverged: int
    seeds: list[int]
    split_seed: int | None = None


def settings_to_try(
    entry: Entry, values: Mapping[str, Value], method: type[Method], number: int
) -> list[Setting]:
    """Returns the settings to try; a larger number begins with the same ones.

    The task seeds the samples, so that they are independent between tasks.

    Args:
        entry: The task.
        values: The options of the method that the size sets.
        method: The method.
        number: Number of settings.
    """
    task, fixed = entry.library, entry.first_options(method, values)
    values = {**values, **fixed}
    ranges = ranges_of(task, values, method)
    options = task.with_defaults(task.options(**values)).values()
    first = {name: options[name] for name in ranges}
    seed = zlib.crc32(entry.name.encode())
    sampled = sample_settings(ranges, number - 1, seed) if ranges and number > 1 else []
    return [{**fixed, **setting} for setting in (first, *sampled)]


def ranges_of(task: Task, values: Mapping[str, Value], method: type[Method]) -> dict[str, Values]:
    """Returns the ranges of a method's options; the arguments are those of `settings_to_try`."""
    complete = task.with_defaults(task.options(**{**values, "method": method.name}))
    options = complete.values()
    names = [n for n in method.options.declarations() if method.trains or n[:7] != "client_"]
    if method.trains and method.is_federated:
        names.append("server_learning_rate")
    factors = {n: f for n in names for like, f in RANGES.items() if fnmatch.fnmatch(n, like)}
    idle = idle_options(task, complete, factors)
    ranges: dict[str, Values] = {}
    for name, (least, most) in factors.items():
        value = options[name]
        if name not in idle and isinstance(value, (int, float)) and value > 0:
            is_whole = isinstance(value, int)
            ranges[name] = Range(value * least, value * most, True, is_whole=is_whole)
    return ranges


def read_settings(path: pathlib.Path, size: str) -> dict[tuple[str, str], TunedSetting]:
    """Returns the tuned settings of a size in a file, by task and method; empty without a file."""
    if not path.exists():
        return {}
    tasks = read_json(path, checked=True).get(size, {})
    return {
        (task, method): TunedSetting(**setting)
        for task, by_method in tasks.items()
        for method, setting in by_method.items()
    }


def write_settings(
    path: pathlib.Path, size: str, settings: Mapping[tuple[str, str], TunedSetting]
) -> None:
    """Writes the tuned settings of a size; settings of other sizes in the file stay."""
    content: dict[str, Any] = read_json(path, checked=True) if path.exists() else {}
    tasks: dict[str, dict[str, Any]] = {}
    for (task, method), setting in settings.items():
        tasks.setdefault(task, {})[method] = dataclasses.asdict(setting)
    write_json(path, {**content, size: tasks}, checked=True)
