"""Corpora on disk, so that a file's text is cut into words once."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.atomic_files import atomic_write
from fedpersonal.data.text_corpus import TextCorpus
from fedpersonal.errors import UserError

# To be raised when the same text and settings give another corpus, or the arrays change.
_FORMAT_VERSION = 1


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
    arrays = {
        "client_offsets": corpus.client_offsets,
        "sentence_offsets": corpus.sentence_offsets,
        "words": corpus.words,
        **_packed("client_ids", corpus.client_ids),
        **_packed("lexicon", corpus.lexicon),
        **_packed("about", [json.dumps({"name": corpus.name, "report": dict(corpus.report)})]),
    }
    # Of its own in each process: two that read the same file may write at the same time.
    own = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(own, "wb") as file:
            np.savez(file, **arrays)
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
            arrays = {name: file[name] for name in file.files}
        (about,) = _unpacked("about", arrays)
        return TextCorpus(
            **json.loads(about),
            client_ids=_unpacked("client_ids", arrays),
            lexicon=_unpacked("lexicon", arrays),
            **{name: arrays[name] for name in ("client_offsets", "sentence_offsets", "words")},
        )
    except Exception:  # Damage shows as errors of a dozen kinds, from zipfile's to NumPy's.
        return None


def _packed(name: str, texts: Sequence[str] | np.ndarray) -> dict[str, np.ndarray]:
    """Texts as one array of UTF-8 bytes and the offset at which each starts."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return {
        f"{name}_bytes": np.frombuffer(b"".join(encoded), np.uint8),
        f"{name}_offsets": np.append(np.int64(0), ends),
    }


def _unpacked(name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The texts that `_packed` packed, (n,) str objects."""
    content = arrays[f"{name}_bytes"].tobytes()
    offsets = arrays[f"{name}_offsets"].tolist()
    texts = np.empty(len(offsets) - 1, object)
    texts[:] = [content[start:end].decode() for start, end in zip(offsets, offsets[1:])]
    return texts
