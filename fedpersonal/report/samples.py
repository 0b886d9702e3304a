"""Texts that a run's model generates for clients, and its recommendations, as files of the run."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.files import OWNER_ONLY, read_json, write_json
from fedpersonal.report.run import shorten

GENERATED, RECOMMENDATIONS = "generated.json", "recommendations.json"
_KEYS = ("client", "context", "prompt")
_LONGEST_TEXT = 400
# Types of those entries of recommendations that are not numbers.
_KINDS = {"client": str, "group": str, "has": list, "top": list, "name": str, "held_out": bool}


@dataclasses.dataclass(frozen=True)
class Texts:
    """Generated texts of several clients for the same prompts.

    Attributes:
        clients: The clients' names in the data.
        rows: Tuples of a context, a prompt, and a list of texts for each client.
    """

    clients: Sequence[str] = ()
    rows: Sequence[tuple[str, str, list[list[str]]]] = ()


@dataclasses.dataclass(frozen=True)
class Item:
    """An item of a client.

    Attributes:
        name: Its title, or its name in the data.
        score: Score by the client's personalised model; None for items that the client has.
        held_out: Whether it is a choice of the client that was held out from the model.
        rating: The client's rating; None if the client gave none.
    """

    name: str
    score: float | None = None
    held_out: bool = False
    rating: float | None = None


@dataclasses.dataclass(frozen=True)
class ClientItems:
    """A client with its recommended items.

    Attributes:
        client: Its name in the data.
        group: Why the page shows this client, such as "most improved".
        before: The client's metric before personalisation; None if it was not evaluated.
        after: The client's metric after personalisation.
        guess: The client's metric by the strongest baseline; None without a baseline, and in the
            file.
        has: A few of the items that the client has.
        top: The items with the highest scores that the client does not have, the highest first.
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
    """Recommendations for a few clients.

    Attributes:
        metric: The metric by which the clients were chosen; None if they were chosen at random.
        clients: The clients with their items.
    """

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
    """Adds texts to those of a run; they replace texts of the same client, context and prompt.

    Args:
        folder: The run's folder.
        client: The client for which the texts were generated.
        context: The context of the texts.
        prompt: The words with which the texts begin.
        texts: The texts.
        rounds: Number of rounds of the run; texts of its model after fewer rounds are removed.

    Raises:
        UserError: If the file is damaged, or cannot be written.
    """
    new = {"client": client, "context": context, "prompt": prompt}
    old = [e for e in _read_texts(folder, rounds) if {key: e[key] for key in _KEYS} != new]
    write_json(folder / GENERATED, [*old, {**new, "texts": [*texts], "rounds": rounds}])


def read_texts(folder: pathlib.Path, *, rounds: object = None) -> Texts:
    """Returns the texts of a run, shortened for a page; clients keep their names in the data.

    Args:
        folder: The run's folder.
        rounds: Number of rounds of the run; texts of its model after fewer rounds are left out.
            None for all texts.

    Raises:
        UserError: If the file is damaged.
    """
    entries = _read_texts(folder, rounds)
    clients = list(dict.fromkeys(e["client"] for e in entries))
    texts = {tuple(e[key] for key in _KEYS): e["texts"] for e in entries}
    rows = []
    for context, prompt in dict.fromkeys((e["context"], e["prompt"]) for e in entries):
        cells = [texts.get((client, context, prompt), []) for client in clients]
        short = [[shorten(text, _LONGEST_TEXT) for text in cell] for cell in cells]
        rows.append((shorten(context), shorten(prompt), short))
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


def write_recommendations(
    folder: pathlib.Path, recommendations: Recommendations, *, rounds: int
) -> None:
    """Writes the recommendations after a number of rounds to a run's folder.

    Only the owner of the file can read it.

    Raises:
        UserError: If they cannot be written.
    """
    content = {**vars(recommendations), "rounds": rounds}
    write_json(folder / RECOMMENDATIONS, content, checked=True, permissions=OWNER_ONLY)


def read_recommendations(folder: pathlib.Path) -> Recommendations:
    """Returns the recommendations of a run, shortened for a page; clients keep their names.

    They are empty if the folder has none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / RECOMMENDATIONS
    if not path.exists():
        return Recommendations()
    content = read_json(path, {"metric": (str, type(None)), "clients": list}, checked=True)
    try:
        clients = [_read_client(entry) for entry in content["clients"]]
    except TypeError:
        raise UserError(f"{path} is damaged: an entry is not a client's items.") from None
    return Recommendations(content.get("metric"), clients)


def _read_client(entry: Any) -> ClientItems:
    client = ClientItems(**_checked(entry))
    has, top = ([Item(**_checked(item)) for item in items] for items in (client.has, client.top))
    return dataclasses.replace(client, client=entry["client"], has=has, top=top)


def _checked(entry: Any) -> dict[str, Any]:
    """Returns an entry with its texts shortened for a page.

    Raises:
        TypeError: If the entry, or one of its values, has another type than the file's format.
    """
    if not isinstance(entry, dict):
        raise TypeError
    for name, value in entry.items():
        if not isinstance(value, _KINDS.get(name, (float, type(None)))):
            raise TypeError
    return {name: shorten(v) if isinstance(v, str) else v for name, v in entry.items()}
