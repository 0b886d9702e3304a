"""Digests of the sentences that a base model was pretrained on, to recognise them in other data."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterable

import numpy as np

from fedpersonal.files import damaged, read_json
from fedpersonal.suite.readers.sentences import split_sentences

# The file of digests, in the model's folder.
FILE = "pretraining_sentences.json"
# A sentence that was not pretrained on has a digest of one that was with probability
# sentences / 2**32.
_DIGEST = np.dtype("<u4")


def digest_texts(texts: Iterable[str]) -> np.ndarray:
    """Returns the sorted digests of sentences, uint32 (n,), independent of case and spaces."""
    sentences = itertools.chain.from_iterable(map(split_sentences, texts))
    plain = {" ".join(sentence.casefold().split()) for sentence in sentences}
    encoded = (sentence.encode("utf-8", "surrogatepass") for sentence in plain)
    digests = b"".join(hashlib.blake2b(s, digest_size=_DIGEST.itemsize).digest() for s in encoded)
    return np.unique(np.frombuffer(digests, _DIGEST))


def write_digests(digests: np.ndarray) -> dict[str, str]:
    """Returns the content of the file of digests."""
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


def pretrained_share(texts: Iterable[str], digests: np.ndarray) -> float:
    """Returns the share of the texts' sentences with one of these digests; 0 without sentences."""
    digests_of_texts = digest_texts(texts)
    if not digests_of_texts.size:
        return 0.0
    return float(np.isin(digests_of_texts, digests).mean())
