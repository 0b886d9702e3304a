"""What a run's model generates for some clients, or recommends to them, kept in its folder."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.files import OWNER_ONLY, read_json, write_json
from fedpersonal.report.run import shown

GENERATED, RECOMMENDATIONS = "generated.json", "recommendations.json"
_KEYS = ("client", "context", "prompt")
_LONGEST_TEXT = 400
# Of the entries of recommendations that are not numbers.
_KINDS = {"client": str, "group": str, "has": list, "top": list, "name": str, "held_out": bool}


@dataclasses.dataclass(frozen=True)
class Texts:
    """Generated texts, side by side.

    Attributes:
        clients: The clients' names in the data.
        rows: A context and a prompt each, and a list of texts for each client.
    """

    clients: Sequence[str] = ()
    rows: Sequence[tuple[str, str, list[list[str]]]] = ()


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
        client: Its name in the data.
        group: Why it is shown, such as "most helped".
        before: Its metric before personalisation; None where that was not evaluated.
        after: The same after it.
        guess: The same by the best guess; None where there is none, and in the file.
        has: Some of the items that it has.
        top: The items of the highest scores among those that it has not, the highest first.
    """

    client: str
    group: str
    before: float | None
    after: float | None
    has: Sequence[Item]
    top: Sequence[Item]
    guess: float | None = None


@dataclasses.dataclass(frozen=True)
class Recommendations:
    """Some clients, and the metric by which they were chosen; None if by chance."""

    metric: str | None = None
    clients: Sequence[ClientItems] = ()


def add_texts(
    folder: pathlib.Path,
    client: str,
    context: str,
    prompt: str,
    texts: Sequence[str],
    *,
    rounds: int,
) -> None:
    """Adds texts to those of a run, in place of former ones of the same client and beginning.

    Args:
        folder: The run's folder.
        client: Whose texts they are.
        context: In what context.
        prompt: How they begin.
        texts: The texts.
        rounds: How many rounds the run has; texts of its model after fewer are removed.

    Raises:
        UserError: If the file is damaged, or cannot be written.
    """
    new = {"client": client, "context": context, "prompt": prompt}
    old = [e for e in _read_texts(folder, rounds) if {key: e[key] for key in _KEYS} != new]
    write_json(folder / GENERATED, [*old, {**new, "texts": [*texts], "rounds": rounds}])


def read_texts(folder: pathlib.Path, *, rounds: object = None) -> Texts:
    """Returns the texts of a run as a page shows them, but for clients' names.

    Args:
        folder: The run's folder.
        rounds: How many rounds the run has; texts of its model after fewer are left out. None for
            all texts.

    Raises:
        UserError: If the file is damaged.
    """
    entries = _read_texts(folder, rounds)
    clients = list(dict.fromkeys(e["client"] for e in entries))
    found = {tuple(e[key] for key in _KEYS): e["texts"] for e in entries}
    rows = []
    for context, prompt in dict.fromkeys((e["context"], e["prompt"]) for e in entries):
        cells = [found.get((client, context, prompt), []) for client in clients]
        short = [[shown(text, _LONGEST_TEXT) for text in cell] for cell in cells]
        rows.append((shown(context), shown(prompt), short))
    return Texts(clients, rows)


def _read_texts(folder: pathlib.Path, rounds: object) -> list[dict]:
    path = folder / GENERATED
    entries = read_json(path, kind=list) if path.exists() else []
    for entry in entries:
        is_whole = isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in _KEYS)
        texts = entry.get("texts") if is_whole else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{path} is damaged: an entry is not a client's texts.")
    return [entry for entry in entries if rounds is None or entry.get("rounds") == rounds]


def write_recommendations(folder: pathlib.Path, found: Recommendations, *, rounds: int) -> None:
    """Writes what is recommended after so many rounds to a run's folder, for its owner to read.

    Raises:
        UserError: If they cannot be written.
    """
    content = {**vars(found), "rounds": rounds}
    write_json(folder / RECOMMENDATIONS, content, checked=True, permissions=OWNER_ONLY)


def read_recommendations(folder: pathlib.Path) -> Recommendations:
    """Returns the recommendations of a run as a page shows them, but for clients' names.

    There are none where the folder has none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / RECOMMENDATIONS
    if not path.exists():
        return Recommendations()
    found = read_json(path, {"metric": (str, type(None)), "clients": list}, checked=True)
    try:
        clients = [_read_client(entry) for entry in found["clients"]]
    except TypeError:
        raise UserError(f"{path} is damaged: an entry is not a client's items.") from None
    return Recommendations(found.get("metric"), clients)


def _read_client(entry: Any) -> ClientItems:
    client = ClientItems(**_checked(entry))
    has, top = ([Item(**_checked(item)) for item in items] for items in (client.has, client.top))
    return dataclasses.replace(client, client=entry["client"], has=has, top=top)


def _checked(entry: Any) -> dict[str, Any]:
    """Returns an entry with its texts as a page shows them; a TypeError if one is another kind."""
    if not isinstance(entry, dict):
        raise TypeError
    for name, value in entry.items():
        if not isinstance(value, _KINDS.get(name, (float, type(None)))):
            raise TypeError
    return {name: shown(v) if isinstance(v, str) else v for name, v in entry.items()}
