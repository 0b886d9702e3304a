"""What the page of a run draws: curves over rounds, the boundary, a map of the largest table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import lower_is_better, main_metric
from fedpersonal.files import read_bytes, unpack_arrays
from fedpersonal.report.run import RunData, label, rounded, shown, size

MOST_POINTS = 400
_SOURCES = {"train": "training, while clients adapt", "eval": "validation"}
# Pixels of the boundary's largest group, and of its smallest box, which is as high as its text.
_HIGHEST, _LOWEST = 180, 24
# So many boxes of a group are drawn; the rest are one.
_MOST_BOXES = 6
# What a process puts before the names of variables.
_PREFIXES = ("trainable.", "updates.")
_GLOBAL, _TABLE = "global ", "/embeddings"
# A table is named after the input that picks its rows; those of this input are clients.
_EMBEDDING, _CLIENTS = "_embedding", "user"
_FEWEST_ROWS, _MOST_ROWS = 3, 3_000


def curve_panels(run: RunData) -> list[dict[str, Any]]:
    """Returns the panels that `curves.js` draws of a run, the main metric first.

    Returns:
        `label`, `meaning` (or None), `lower` (whether less is better, or None) and `series` of
        each: `name`, `color` (a CSS variable) and what `curve` returns.
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
    """Returns the mean of a metric over runs, in the rounds that all of them have.

    Args:
        runs: The runs.
        name: A column of their `rounds`.
        most: About so many points are returned.

    Returns:
        As many numbers each: `round`, `seconds`, `bytes` (where known), `y` and, of several runs,
        `low` and `high`, a standard deviation below and above it.
    """
    tables = [run.rounds.set_index("round") for run in runs]
    values = pd.concat([table[name] for table in tables], axis=1, join="inner")
    seconds = pd.concat([table["seconds"].fillna(0).cumsum() for table in tables], axis=1)
    mean, deviation = values.mean(axis=1, skipna=False), values.std(axis=1)
    rounds = mean.index[thin(mean.to_numpy(), most)]
    found = {
        "round": rounded(rounds, 6),
        "seconds": rounded(seconds.mean(axis=1)[rounds], 6),
        "y": rounded(mean[rounds]),
    }
    sizes = [run.bytes_per_round for run in runs if run.bytes_per_round]
    if len(sizes) == len(runs):
        found["bytes"] = rounded(np.asarray(rounds) * np.mean(sizes), 6)
    if len(runs) > 1:
        found["low"] = rounded((mean - deviation)[rounds])
        found["high"] = rounded((mean + deviation)[rounds])
    return found


def thin(y: Sequence[float] | np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Returns which points of a curve to draw: real ones, with all that stands out.

    Args:
        y: (n,) floats; those that are not finite are left out.
        most: About so many are returned: of each stretch the least, the greatest and the last.
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
    """A variable or a message: its name, its size as a text, and its height in pixels."""

    name: str
    size: str
    height: int


@dataclasses.dataclass(frozen=True)
class Group:
    """Boxes below a heading; `column` is `device`, `wire` or `server`, `arrow` may be empty."""

    column: str
    heading: str
    arrow: str
    boxes: list[Box]


def boundary_groups(run: RunData) -> list[Group]:
    """Returns what stays on a device, what crosses the wire and what a server has.

    Boxes are as high as their bytes, but not lower than their text.

    Returns:
        The groups, from top to bottom of each column; none where nothing is known of the boundary.
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
    kept = {True: ", kept", False: ", rebuilt", None: ""}[run.keeps]
    unknown = "Local variables: not told" if run.keeps is None else "No local variables"
    groups = [
        ("device", f"Local variables{kept}" if local else unknown, "", local),
        ("wire", "To the device", "←", by_direction.pop("broadcast", [])),
        ("wire", "To the server", "→", by_direction.pop("aggregate", [])),
        *(("wire", f"{shown(n).capitalize()} a run", "←", v) for n, v in by_direction.items()),
        ("server", "Global variables", "", global_),
    ]
    most = max(sum(s or 0 for _, s in rows) for *_, rows in groups) or 1
    found = []
    for column, heading, arrow, rows in groups:
        boxes = [
            Box(shown(name), size(n), round(max(_LOWEST, _HIGHEST * (n or 0) / most)))
            for name, n in _largest(rows)
        ]
        heading = f"{heading}, {size(_total(rows))}" if rows else heading
        found.append(Group(column, heading, arrow, boxes))
    return found


def _total(rows: Sequence[tuple[str, int | None]]) -> int | None:
    sizes = [num_bytes for _, num_bytes in rows]
    return None if None in sizes else sum(num_bytes or 0 for num_bytes in sizes)


def _largest(rows: Sequence[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Returns the largest of a group, and the rest as one."""
    rows = sorted(rows, key=lambda row: -(row[1] or 0))
    if len(rows) <= _MOST_BOXES:
        return rows
    rest = rows[_MOST_BOXES - 1 :]
    return [*rows[: _MOST_BOXES - 1], (f"{len(rest)} others", _total(rest))]


def embedding_map(run: RunData, *, show_clients: bool = False) -> dict[str, Any] | None:
    """Returns the largest global table's rows along the two axes in which they differ most (PCA).

    Args:
        run: The run.
        show_clients: Whether rows may have names whatever they are; else only those of public data
            that are no clients have.

    Returns:
        `name`; `rows`, how many there are; `x` and `y`, numbers; `share`, of their variance in both
        axes; `kind`, what a row stands for, and `names`, the rows', both None where they have none.
        None where the run has no table of at least two dimensions. Of a long table, every n-th row
        is shown.
    """
    path = run.path / "model.npz"
    try:
        arrays = unpack_arrays(read_bytes(path)) if path.exists() else {}
    except (UserError, ValueError):
        return None  # A page of a run does without its model; `load_run` complains.
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
    # Not by the matrix of covariances: a row may have a hundred thousand numbers.
    _, deviations, axes = np.linalg.svd(table, full_matrices=False)
    if not deviations[0] > 0:
        return None
    axes = axes[:2].T
    # An axis has two directions; the larger entry points up.
    axes *= np.sign(axes[np.abs(axes).argmax(0), [0, 1]])
    x, y = (table @ axes).T
    variances = np.square(deviations)
    return {
        "name": name,
        "rows": len(tables[name]),
        "x": rounded(x, 3),
        "y": rounded(y, 3),
        "share": round(float(variances[:2].sum() / variances.sum()), 5),
        "kind": kind,
        "names": names and [shown(row) for row in names[::step]],
    }


def _row_names(
    run: RunData, table: str, rows: int, *, show_clients: bool
) -> tuple[str | None, Sequence[str] | None]:
    """Returns what a table's rows stand for, and their names where they may be shown."""
    for kind, names in run.names.items():
        may_be_shown = show_clients or (run.is_public and kind != _CLIENTS)
        if f"{kind}{_EMBEDDING}" in table and len(names) == rows and may_be_shown:
            return kind, names
    return None, None
