"""Data of a run page's charts: curves over rounds, the boundary, a map of the largest table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import lower_is_better, main_metric
from fedpersonal.files import read_bytes, unpack_arrays
from fedpersonal.report.run import RunData, format_size, label, round_numbers, shorten

MOST_POINTS = 400
_SOURCES = {"train": "training, while clients adapt", "eval": "validation"}
# Pixels of the boundary's largest group, and of its smallest box, which is the height of its text.
_HIGHEST, _LOWEST = 180, 24
# Most boxes of a group; the remaining variables share the last box.
_MOST_BOXES = 6
# Prefixes of variables' names in the state of a TFF process.
_PREFIXES = ("trainable.", "updates.")
_GLOBAL, _TABLE = "global ", "/embeddings"
# A table is named after the input that selects its rows; rows of the input `user` are clients.
_EMBEDDING, _CLIENTS = "_embedding", "user"
_FEWEST_ROWS, _MOST_ROWS = 3, 3_000


def curve_panels(run: RunData) -> list[dict[str, Any]]:
    """Returns the panels of a run's learning curves (`curves.js`), the main metric first.

    Returns:
        Panels with `label`, `meaning` (or None), `lower` (whether lower is better, or None) and
        `series`, each with `name`, `color` (a CSS variable) and the result of `curve`.
    """
    metrics: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(run.round_metrics, key=lambda n: n.startswith("eval/")):
        source, *details, metric = name.split("/")
        series = metrics.setdefault(metric, [])
        evaluated = sum(one["color"] != "training" for one in series)
        title = ", ".join([_SOURCES[source], *details]).replace("_", " ")
        color = "training" if source == "train" else f"series-{evaluated}"
        series.append({"name": title, "color": color, **curve([run], name)})
    first = run.main_metric if run.main_metric in metrics else main_metric(list(metrics))
    return [
        {
            "label": label(metric),
            "meaning": run.meaning(metric),
            "lower": lower_is_better(metric),
            "series": metrics[metric],
        }
        for metric in sorted(metrics, key=lambda name: (name != first, name != "loss"))
    ]


def curve(runs: Sequence[RunData], name: str, most: int = MOST_POINTS) -> dict[str, Any]:
    """Returns the mean of a metric over runs, in the rounds that all runs have.

    Args:
        runs: The runs.
        name: A column of their `rounds`.
        most: The approximate largest number of points.

    Returns:
        Lists of equal length: `round`, `seconds`, `bytes` (if known), `y` and, for several runs,
        `low` and `high`, one standard deviation below and above `y`.
    """
    tables = [run.rounds.set_index("round") for run in runs]
    values = pd.concat([table[name] for table in tables], axis=1, join="inner")
    seconds = pd.concat([table["seconds"].fillna(0).cumsum() for table in tables], axis=1)
    mean, deviation = values.mean(axis=1, skipna=False), values.std(axis=1)
    rounds = mean.index[thin(mean.to_numpy(), most)]
    points = {
        "round": round_numbers(rounds, 6),
        "seconds": round_numbers(seconds.mean(axis=1)[rounds], 6),
        "y": round_numbers(mean[rounds]),
    }
    sizes = [run.bytes_per_round for run in runs if run.bytes_per_round]
    if len(sizes) == len(runs):
        points["bytes"] = round_numbers(np.asarray(rounds) * np.mean(sizes), 6)
    if len(runs) > 1:
        points["low"] = round_numbers((mean - deviation)[rounds])
        points["high"] = round_numbers((mean + deviation)[rounds])
    return points


def thin(y: Sequence[float] | np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Returns the indices of a subset of a curve's points that preserves its extremes.

    Args:
        y: (n,) floats; those that are not finite are left out.
        most: The approximate largest number of points: each stretch of the curve keeps its least,
            its greatest and its last point.
    """
    y = np.asarray(y, np.float64)
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite) <= most:
        return finite
    kept = {int(finite[0])}
    for part in np.array_split(finite, most // 3):
        kept.update(int(i) for i in (part[y[part].argmin()], part[y[part].argmax()], part[-1]))
    return np.array(sorted(kept))


@dataclasses.dataclass(frozen=True)
class Box:
    """A variable or a message: name, size as text, and height in pixels."""

    name: str
    size: str
    height: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Boxes below a heading; `column` is `device`, `wire` or `server`; `arrow` may be empty."""

    column: str
    heading: str
    arrow: str
    boxes: list[Box]


def boundary_groups(run: RunData) -> list[Group]:
    """Returns the variables on a device, the messages on the wire and the server's variables.

    The height of a box is proportional to its bytes, but not below the height of its text.

    Returns:
        The groups, from top to bottom of each column; none if the run has no `boundary.json`.
    """
    if not run.boundary:
        return []
    by_direction: dict[str, list[tuple[str, int | None]]] = {}
    global_ = []
    for crossing in run.boundary:
        name, direction = crossing["name"], str(crossing.get("direction"))
        short = name
        for prefix in _PREFIXES:
            short = short.removeprefix(prefix)
        row = (short or f"a number ({crossing.get('dtype')})", crossing.get("num_bytes"))
        by_direction.setdefault(direction, []).append(row)
        if direction == "broadcast" and name.startswith(_PREFIXES[0]):
            global_.append(row)
    local = [(v["name"], v.get("num_bytes")) for v in run.local]
    kept = {True: ", kept", False: ", rebuilt", None: ""}[run.keeps_local]
    absent = "Local variables: unknown" if run.keeps_local is None else "No local variables"
    groups = [
        ("device", f"Local variables{kept}" if local else absent, "", local),
        ("wire", "To the device", "←", by_direction.pop("broadcast", [])),
        ("wire", "To the server", "→", by_direction.pop("aggregate", [])),
        *(("wire", f"{shorten(n).capitalize()} a run", "←", v) for n, v in by_direction.items()),
        ("server", "Global variables", "", global_),
    ]
    most = max(sum(s or 0 for _, s in rows) for *_, rows in groups) or 1
    result = []
    for column, heading, arrow, rows in groups:
        boxes = [
            Box(shorten(name), format_size(n), round(max(_LOWEST, _HIGHEST * (n or 0) / most)))
            for name, n in _largest(rows)
        ]
        heading = f"{heading}, {format_size(_total(rows))}" if rows else heading
        result.append(Group(column, heading, arrow, boxes))
    return result


def _total(rows: Sequence[tuple[str, int | None]]) -> int | None:
    sizes = [num_bytes for _, num_bytes in rows]
    return None if None in sizes else sum(num_bytes or 0 for num_bytes in sizes)


def _largest(rows: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Returns the largest rows of a group, with the remaining ones merged into one."""
    rows = sorted(rows, key=lambda row: -(row[1] or 0))
    if len(rows) <= _MOST_BOXES:
        return rows
    rest = rows[_MOST_BOXES - 1 :]
    return [*rows[: _MOST_BOXES - 1], (f"{len(rest)} others", _total(rest))]


def embedding_map(run: RunData, *, show_clients: bool = False) -> dict[str, Any] | None:
    """Returns the rows of the largest global table along their first two principal components.

    Args:
        run: The run.
        show_clients: Whether any rows may be named; otherwise only rows of public data that are
            not clients are named.

    Returns:
        `name`, of the table; `rows`, their number; `x` and `y`, the coordinates; `share`, the share
        of variance in both axes; `kind`, the kind of the rows, such as `item`, and `names`, their
        names, both None if the rows are not named. None if the run has no table with at least two
        columns. Of a long table, only every n-th row is returned.
    """
    path = run.path / "model.npz"
    try:
        arrays = unpack_arrays(read_bytes(path)) if path.exists() else {}
    except (UserError, ValueError):
        return None  # The page does not need the model; `load_run` reports the damage.
    tables = {
        name[len(_GLOBAL) :]: table
        for name, table in arrays.items()
        if name.startswith(_GLOBAL) and name.endswith(_TABLE)
        if table.ndim == 2 and len(table) >= _FEWEST_ROWS and table.shape[1] >= 2
        if np.isfinite(table).all()
    }
    if not tables:
        return None
    name = max(tables, key=lambda n: tables[n].size)
    table = tables[name].astype(np.float64)
    kind, names = _row_names(run, name, len(table), show_clients=show_clients)
    step = -(-len(table) // _MOST_ROWS)
    table = table[::step]
    table -= table.mean(0)
    # An SVD, not the covariance matrix: a row may have a hundred thousand numbers.
    _, deviations, axes = np.linalg.svd(table, full_matrices=False)
    if not deviations[0] > 0:
        return None
    axes = axes[:2].T
    # The sign of an axis is arbitrary; make its largest entry positive.
    axes *= np.sign(axes[np.abs(axes).argmax(0), [0, 1]])
    x, y = (table @ axes).T
    variances = np.square(deviations)
    return {
        "name": name,
        "rows": len(tables[name]),
        "x": round_numbers(x, 3),
        "y": round_numbers(y, 3),
        "share": round(float(variances[:2].sum() / variances.sum()), 5),
        "kind": kind,
        "names": names and [shorten(row) for row in names[::step]],
    }


def _row_names(
    run: RunData, table: str, rows: int, *, show_clients: bool
) -> tuple[str | None, Sequence[str] | None]:
    """Returns the kind of a table's rows and their names, if the page may show them."""
    for kind, names in run.row_names.items():
        is_allowed = show_clients or (run.is_public and kind != _CLIENTS)
        if f"{kind}{_EMBEDDING}" in table and len(names) == rows and is_allowed:
            return kind, names
    return None, None
