"""What stays on a device, what crosses the wire, what a server has: boxes sized by bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fedpersonal.report.numbers import shown, size
from fedpersonal.report.run_data import RunData

WIDTH = 900
# x and width of the columns: device, wire, server.
_COLUMNS = {"device": (10, 250), "wire": (325, 250), "server": (640, 250)}
# A group is so high, if no box is lower than its text.
_HIGHEST, _LOWEST, _GAP, _TITLE = 180.0, 22.0, 5.0, 26.0
_TOP = 34.0
# Of a group, so many boxes are drawn; the rest are one.
_MOST = 6
_LONGEST = 22
# What a process puts before variables' names.
_PREFIXES = ("trainable.", "updates.")


@dataclasses.dataclass(frozen=True)
class Box:
    """A box: its text, what a pointer shows of it, and its place in units of the picture."""

    text: str
    title: str
    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class Heading:
    """A line above boxes; `arrow` is `right`, `left` or empty."""

    text: str
    x: float
    y: float
    arrow: str = ""


@dataclasses.dataclass(frozen=True)
class Picture:
    """Boxes and headings, in a picture of `WIDTH` and this height."""

    boxes: list[Box]
    headings: list[Heading]
    height: float


def boundary_picture(run: RunData) -> Picture | None:
    """Lays the boundary of a run out; None where nothing is known of it."""
    if not run.boundary:
        return None
    by_direction: dict[str, list[tuple[str, int | None]]] = {}
    for crossing in run.boundary:
        pair = (_name(crossing["name"], str(crossing.get("dtype"))), crossing.get("num_bytes"))
        by_direction.setdefault(str(crossing.get("direction")), []).append(pair)
    global_ = [
        (_name(c["name"], ""), c.get("num_bytes"))
        for c in run.boundary
        if c.get("direction") == "broadcast" and c["name"].startswith(_PREFIXES[0])
    ]
    local = [(v["name"], v.get("num_bytes")) for v in run.local]
    kept = {True: ", kept", False: ", rebuilt", None: ""}[run.keeps]
    unknown = "Local variables: not told" if run.keeps is None else "No local variables"
    groups = [
        ("device", f"Local variables{kept}" if local else unknown, "", local),
        ("wire", "To the device", "left", by_direction.pop("broadcast", [])),
        ("wire", "To the server", "right", by_direction.pop("aggregate", [])),
        *(("wire", f"{name.capitalize()} a run", "left", v) for name, v in by_direction.items()),
        ("server", "Global variables", "", global_),
    ]
    most = max((sum(s or 0 for _, s in rows) for *_, rows in groups), default=0) or 1
    bottom = dict.fromkeys(_COLUMNS, _TOP)
    boxes: list[Box] = []
    headings = []
    for column, title, arrow, rows in groups:
        x, width = _COLUMNS[column]
        y = bottom[column] + 14
        known = [s for _, s in rows]
        total = None if None in known else sum(s or 0 for s in known)
        text = f"{title}, {size(total)}" if rows else title
        headings.append(Heading(text, x, y, arrow))
        y += 10
        for name, num_bytes in _largest(rows):
            height = max(_LOWEST, _HIGHEST * (num_bytes or 0) / most)
            title = f"{shown(name)}: {size(num_bytes)}"
            text = f"{_shortened(name)}  {size(num_bytes)}"
            boxes.append(Box(text, title, column, x, y, width, round(height, 1)))
            y += height + _GAP
        bottom[column] = y + _TITLE / 2
    x, width = _COLUMNS["device"]
    y = bottom["device"] + 10
    boxes.append(Box("examples: they stay here", "Examples", "examples", x, y, width, 30))
    bottom["device"] = y + 40
    return Picture(boxes, headings, round(max(bottom.values()) + 4, 1))


def _name(name: str, dtype: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name or f"a number ({dtype})"


def _largest(rows: Iterable[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Returns the largest of a group, and the rest as one."""
    rows = sorted(rows, key=lambda row: -(row[1] or 0))
    if len(rows) <= _MOST:
        return rows
    rest = rows[_MOST - 1 :]
    total = None if None in [s for _, s in rest] else sum(s or 0 for _, s in rest)
    return [*rows[: _MOST - 1], (f"{len(rest)} others", total)]


def _shortened(name: str) -> str:
    """Returns a name in its box' width; its end tells more than its middle."""
    name = shown(name)
    half = _LONGEST // 2
    return name if len(name) <= _LONGEST else f"{name[: half - 1]}…{name[-half:]}"
