"""Digests of the sentences that a base model was pretrained on, which tell them from others."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterable

import numpy as np

from fedpersonal.data.sentences import split_sentences
from fedpersonal.files import damaged, read_json

# The file of them, in the model's folder.
FILE = "pretraining_sentences.json"
# A sentence that was never seen has a digest of one that was once in 2**32 / sentences.
_DIGEST = np.dtype("<u4")


def digest_texts(texts: Iterable[str]) -> np.ndarray:
    """Returns the digest of each sentence, in any case and with any spaces; uint32 (n,), sorted."""
    sentences = itertools.chain.from_iterable(map(split_sentences, texts))
    plain = {" ".join(sentence.casefold().split()) for sentence in sentences}
    encoded = (sentence.encode("utf-8", "surrogatepass") for sentence in plain)
    digests = b"".join(hashlib.blake2b(s, digest_size=_DIGEST.itemsize).digest() for s in encoded)
    return np.unique(np.frombuffer(digests, _DIGEST))


def write_digests(digests: np.ndarray) -> dict[str, str]:
    """Returns what the file has of digests."""
    return {"digests": base64.b64encode(digests.astype(_DIGEST).tobytes()).decode()}


def read_digests(folder: str | os.PathLike) -> np.ndarray:
    """Returns the digests in a model's folder; none if it has no such file, as on a hub.

    Raises:
        UserError: If the file is damaged.
    """
    path = pathlib.Path(folder) / FILE
    if not path.exists():
        return np.zeros(0, _DIGEST)
    written = read_json(path, {"digests": str})["digests"]
    try:
        return np.frombuffer(base64.b64decode(written, validate=True), _DIGEST)
    except ValueError as error:
        raise damaged(path) from error


def share_known(texts: Iterable[str], digests: np.ndarray) -> float:
    """Returns which share of the sentences of texts has a digest among some; 0 of no sentence."""
    own = digest_texts(texts)
    return float(np.isin(own, digests).mean()) if own.size else 0.0
