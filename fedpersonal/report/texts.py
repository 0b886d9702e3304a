"""Texts that a run's model has generated, kept in its folder, side by side."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from fedpersonal.files import damaged, read_json, write_json
from fedpersonal.report.numbers import shown

GENERATED = "generated.json"
_KEYS = ("client", "context", "prompt")
_LONGEST = 400


@dataclasses.dataclass(frozen=True)
class Row:
    """What clients would write in a context, after a prompt: a cell of texts for each client."""

    context: str
    prompt: str
    cells: list[list[str]]


@dataclasses.dataclass(frozen=True)
class Texts:
    """The clients, and a row for each context and prompt."""

    clients: list[str]
    rows: list[Row]


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
    old = [e for e in _read(folder, rounds) if {key: e[key] for key in _KEYS} != new]
    write_json(folder / GENERATED, [*old, {**new, "texts": [*texts], "rounds": rounds}])


def texts_told(folder: pathlib.Path, *, rounds: object = None) -> Texts:
    """Returns the texts of a run as a page shows them.

    Args:
        folder: The run's folder.
        rounds: How many rounds the run has; texts of its model after fewer are left out. None for
            all texts.

    Raises:
        UserError: If the file is damaged.
    """
    entries = _read(folder, rounds)
    clients = list(dict.fromkeys(e["client"] for e in entries))
    found = {tuple(e[key] for key in _KEYS): e["texts"] for e in entries}
    rows = [
        Row(
            shown(context),
            shown(prompt),
            [
                [shown(text, _LONGEST) for text in found.get((client, context, prompt), [])]
                for client in clients
            ],
        )
        for context, prompt in dict.fromkeys((e["context"], e["prompt"]) for e in entries)
    ]
    return Texts([shown(client) for client in clients], rows)


def _read(folder: pathlib.Path, rounds: object) -> list[dict]:
    path = folder / GENERATED
    entries = read_json(path, kind=list) if path.exists() else []
    for entry in entries:
        is_whole = isinstance(entry, dict) and all(isinstance(entry.get(k), str) for k in _KEYS)
        texts = entry.get("texts") if is_whole else None
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise damaged(path)
    # Texts of older versions say no round.
    return [e for e in entries if rounds is None or e.get("rounds", rounds) == rounds]
