"""The base model of an experiment on utterances: one that is named, or one that is pretrained."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys
from typing import Any

from fedpersonal.data.tables.files import Column
from fedpersonal.data.tables.reading import read_table
from fedpersonal.errors import UserError
from fedpersonal.language_models.base_model import BaseModel, load_base_model, save_base_model
from fedpersonal.language_models.pretraining import ModelSizes, pretrain
from fedpersonal.tasks.utterances.source import SOURCES, Dialogues

NOTES = "pretraining.json"


# How a base model is trained where none is named: its sizes, and steps. Generated texts are few.
_USUAL = (ModelSizes(), 1200)
_SMALL = (ModelSizes(vocab_size=800, num_layers=2, dim=64, positions=40), 400)
_BATCH_SIZE, _RATE = 32, 2e-3


def find_base_model(
    source: str | None,
    dialogues: Dialogues,
    *,
    revision: str | None = None,
    cache_dir: str,
    progress: bool = True,
) -> BaseModel:
    """Loads the base model, and pretrains it before where none is named and none is cached.

    It is pretrained on what the users who do not take part have written, and, for TV shows, on the
    Reddit comments beside their file, if there are any: nothing of the users who take part.

    Args:
        source: A folder, or a name on the hub; None to pretrain.
        dialogues: The utterances.
        revision: As of `load_base_model`.
        cache_dir: Where pretrained models are kept.
        progress: Whether to report on stderr.

    Raises:
        UserError: If the model cannot be loaded, or there are too few texts to train one.
    """
    if source:
        return load_base_model(source, revision=revision)
    if revision is not None:
        raise UserError(
            f"--base_model_revision={revision} needs --base_model, a name on the hub: without one, "
            "a base model is pretrained here"
        )
    sizes, steps = _SMALL if dialogues.kind == "generated" else _USUAL
    files = [pathlib.Path(path) for path in (dialogues.path, _more_texts(dialogues)) if path]
    settings: dict[str, Any] = {
        "sizes": dataclasses.asdict(sizes),
        "steps": steps,
        "batch_size": _BATCH_SIZE,
        "learning_rate": _RATE,
        **dialogues.describe(),
        "files": [[file.name, file.stat().st_size] for file in files],
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = pathlib.Path(cache_dir) / f"{dialogues.kind}_{digest}"
    if not folder.is_dir():
        if progress:
            print(f"pretraining a small base model, once: {folder}", file=sys.stderr, flush=True)
        texts = dialogues.other_texts().tolist()
        for more in files[1:]:
            texts += list(read_table(more, [Column("text")], bad_rows="count").columns["text"])
        model, tokenizer, report = pretrain(
            texts,
            sizes=sizes,
            steps=steps,
            batch_size=_BATCH_SIZE,
            learning_rate=_RATE,
            seed=0,
            progress=progress,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        notes = {"settings": settings, "report": dataclasses.asdict(report)}
        save_base_model(folder, model, tokenizer, notes={NOTES: notes})
    return load_base_model(folder)


def _more_texts(dialogues: Dialogues) -> str | None:
    if dialogues.path is None or dialogues.kind != "tv_shows":
        return None
    found = (pathlib.Path(dialogues.path).with_name(name) for name in SOURCES.files["reddit"])
    return next((str(path) for path in found if path.exists()), None)
