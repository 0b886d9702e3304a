"""Corpora on disk, so that a file's text is cut into words once."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpersonal.atomic_files import atomic_write
from fedpersonal.data.texts.corpus import TextCorpus
from fedpersonal.errors import UserError

# To be raised when the same text and settings give another corpus, or the arrays change.
_FORMAT_VERSION = 2
_TEXTS = ("client_ids", "lexicon")
_NUMBERS = ("client_offsets", "sentence_offsets", "words")


def cache_path(
    cache_dir: str | os.PathLike, source: str | os.PathLike, settings: Mapping[str, Any]
) -> pathlib.Path:
    """The cache file of a corpus, whose name tells apart all that makes corpora differ.

    Args:
        cache_dir: The folder of cache files.
        source: The file that the corpus is read from; its content counts, not its name.
        settings: All options of the reading, of what JSON can write.

    Returns:
        The path of a file that need not be there.

    Raises:
        UserError: If the source cannot be read.
    """
    key = hashlib.sha256()
    try:
        with open(source, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                key.update(block)
    except FileNotFoundError:
        raise UserError(f"{os.fspath(source)}: no such file") from None
    except OSError as error:
        raise UserError(f"{os.fspath(source)}: cannot be read: {error.strerror}") from None
    key.update(json.dumps([_FORMAT_VERSION, dict(settings)], sort_keys=True).encode())
    return pathlib.Path(cache_dir) / f"corpus_{key.hexdigest()[:32]}.npz"


def save_corpus(path: pathlib.Path, corpus: TextCorpus):
    """Writes a corpus to a file, which appears whole or not at all; folders are made.

    Args:
        path: The file, from `cache_path`.
        corpus: The corpus.

    Raises:
        UserError: If it cannot be written.
    """
    texts = {field: getattr(corpus, field).tolist() for field in _TEXTS}
    about = {"name": corpus.name, "report": dict(corpus.report), **texts}
    encoded = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays = {field: getattr(corpus, field) for field in _NUMBERS}
    # Of its own in each process: two that read the same file may write at the same time.
    own = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(own, "wb") as file:
            np.savez(file, about=encoded, **arrays)
        os.replace(own, path)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be written: {error.strerror or error}") from None


def load_corpus(path: pathlib.Path) -> TextCorpus | None:
    """Reads what `save_corpus` wrote.

    Args:
        path: The file, from `cache_path`.

    Returns:
        The corpus, or None if the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            return TextCorpus(**about, **{field: file[field] for field in _NUMBERS})
    except Exception:  # Damage shows as errors of a dozen kinds, from zipfile's to NumPy's.
        return None
