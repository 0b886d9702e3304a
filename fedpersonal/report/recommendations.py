"""What a run's model recommends to some of its test clients, kept in its folder."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from fedpersonal.files import OWNER_ONLY, damaged, read_json, write_json
from fedpersonal.report.numbers import label, shown

RECOMMENDATIONS = "recommendations.json"


@dataclasses.dataclass(frozen=True)
class Item:
    """An item, as a client sees it.

    Attributes:
        name: Its title, or its name in the data.
        score: What the client's model predicts of it; None of what the client has.
        held_out: Whether the client has chosen it, which the model was not told.
        rating: The client's own rating; None where there is none.
    """

    name: str
    score: float | None = None
    held_out: bool = False
    rating: float | None = None


@dataclasses.dataclass(frozen=True)
class ClientItems:
    """A client, and what is recommended to it.

    Attributes:
        client: Its name.
        group: Why it is shown, such as "most helped".
        before: Its metric before personalisation; None where that was not evaluated.
        after: The same after it.
        has: Some of the items that it has.
        top: The items of the highest scores among those that it has not, the highest first.
    """

    client: str
    group: str
    before: float | None
    after: float | None
    has: Sequence[Item]
    top: Sequence[Item]


@dataclasses.dataclass(frozen=True)
class Recommendations:
    """Some clients, and the metric by which they were chosen; None if by chance."""

    metric: str | None = None
    clients: Sequence[ClientItems] = ()


def write_recommendations(folder: pathlib.Path, found: Recommendations, *, rounds: int) -> None:
    """Writes what is recommended after so many rounds to a run's folder, for its owner to read.

    Raises:
        UserError: If they cannot be written.
    """
    content = {**vars(found), "rounds": rounds}
    write_json(folder / RECOMMENDATIONS, content, checked=True, permissions=OWNER_ONLY)


def recommendations_told(folder: pathlib.Path) -> Recommendations:
    """Returns the recommendations of a run as a page shows them; none where there are none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / RECOMMENDATIONS
    if not path.exists():
        return Recommendations()
    found = read_json(path, {"metric": (str, type(None)), "clients": list}, checked=True)
    metric = found["metric"]
    try:
        clients = [_client(entry) for entry in found["clients"]]
    except (KeyError, TypeError):
        raise damaged(path) from None
    return Recommendations(None if metric is None else label(metric), clients)


def _client(entry: Any) -> ClientItems:
    has, top = (entry[key] for key in ("has", "top"))
    if not isinstance(has, list) or not isinstance(top, list):
        raise TypeError
    return ClientItems(
        _text(entry["client"]),
        _text(entry["group"]),
        _number(entry["before"]),
        _number(entry["after"]),
        [_item(item) for item in has],
        [_item(item) for item in top],
    )


def _item(entry: Any) -> Item:
    held_out = entry["held_out"]
    if not isinstance(held_out, bool):
        raise TypeError
    return Item(_text(entry["name"]), _number(entry["score"]), held_out, _number(entry["rating"]))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return shown(value)


def _number(value: Any) -> float | None:
    if value is not None and not (isinstance(value, float) and math.isfinite(value)):
        raise TypeError
    return value
