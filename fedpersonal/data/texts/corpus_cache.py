"""Corpora on disk, so that a file's text is cut into words once."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpersonal.data.tables.lines import open_bytes
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.errors import UserError
from fedpersonal.files import read_arrays, write_arrays

# To be raised when the same text and settings give another corpus, or the arrays change.
_FORMAT_VERSION = 4
_TEXTS = ("client_ids", "lexicon")
_NUMBERS = ("client_offsets", "sentence_offsets", "words")


def read_cached(
    cache_dir: str | os.PathLike,
    source: str,
    settings: Mapping[str, object],
    read: Callable[[], TextCorpus],
) -> TextCorpus:
    """Takes a corpus out of a folder's file, or calls `read` and writes that file.

    The file is that of the content of `source`, whatever its name, and of the `settings` of its
    reading, of what JSON can write.
    """
    key = hashlib.sha256()
    with open_bytes(source) as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            key.update(block)
    key.update(json.dumps([_FORMAT_VERSION, dict(settings)], sort_keys=True).encode())
    path = pathlib.Path(cache_dir) / f"corpus_{key.hexdigest()[:32]}.npz"
    corpus = _load(path)
    if corpus is None:
        corpus = read()
        _save(path, corpus)
    return corpus


def _save(path: pathlib.Path, corpus: TextCorpus):
    texts = {field: getattr(corpus, field).tolist() for field in _TEXTS}
    about = json.dumps({"name": corpus.name, "report": dict(corpus.report), **texts})
    arrays = {field: getattr(corpus, field) for field in _NUMBERS}
    # Of its own in each process: two that read the same file may write at the same time.
    own = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(own, {"about": np.frombuffer(about.encode(), np.uint8), **arrays})
        os.replace(own, path)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written: {error.strerror or error}") from None


def _load(path: pathlib.Path) -> TextCorpus | None:
    """Returns what `_save` wrote, or None if the file is missing or damaged."""
    try:
        arrays = read_arrays(path)
        found: dict[str, Any] = {field: arrays[field] for field in _NUMBERS}
        return TextCorpus(**json.loads(arrays["about"].tobytes()), **found)
    except Exception:  # Of another version, they are other arrays.
        return None
