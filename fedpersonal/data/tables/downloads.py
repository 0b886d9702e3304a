"""Data that others keep: columns of TensorFlow Datasets, and one line of what goes wrong."""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedpersonal.errors import UserError, escaped


@contextlib.contextmanager
def one_line(what: str, advice: str) -> Iterator[None]:
    """Turns whatever another library raises into a `UserError` of one line."""
    try:
        yield
    except Exception as error:  # Of many kinds: network, checksum, disk, parsing.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{what} ({escaped(reason[:120])}): {advice}") from None


def check_reachable(url: str, advice: str) -> None:
    """Raises a `UserError` unless a server answers: a download without a network waits minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        pass  # A server answered; let the download find out.
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url} cannot be reached ({reason}): {advice}") from None


def open_tfds(
    dataset: str, *, title: str, url: str, advice: str, data_dir: str | os.PathLike | None
) -> Callable[[Sequence[str]], Iterator[tuple[np.ndarray, ...]]]:
    """Opens a data set of TensorFlow Datasets, downloading and preparing it first if need be.

    Args:
        dataset: Its name there, such as "movielens/1m-ratings".
        title: Its name in messages.
        url: What is asked for before a download, to see whether there is a network.
        advice: What else to do, for messages.
        data_dir: Where TensorFlow Datasets keeps its data; None for its usual place.

    Returns:
        A function of names of features of one value each, which reads these columns of the training
        split in batches, in the same order each time: a (n,) array a column, texts as UTF-8 bytes.

    Raises:
        UserError: If TensorFlow Datasets is missing, or the data cannot be downloaded or prepared.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise UserError(
            f"the package tensorflow_datasets is not installed: install it or {advice}"
        ) from None
    builder = tfds.builder(dataset, data_dir=data_dir)
    if not os.path.isdir(builder.data_dir):
        check_reachable(url, advice)
    with one_line(f"TensorFlow Datasets cannot prepare {title}", advice):
        builder.download_and_prepare()

    def read(columns: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
        data = builder.as_dataset(split="train", shuffle_files=False)
        # Other columns may differ in length, and cannot be batched then.
        data = data.map(lambda example: tuple(example[name] for name in columns))
        return iter(tfds.as_numpy(data.batch(1 << 16)))

    return read
