"""What rounds have led to, as a file of the run folder: `model.npz`."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import zipfile
from collections.abc import Mapping

import numpy as np

from fedpersonal.atomic_files import OWNER_ONLY, atomic_write
from fedpersonal.errors import UserError

FILE = "model.npz"
_PARTS = ("global", "names")


@dataclasses.dataclass(frozen=True, eq=False)
class SavedModel:
    """The global variables of a run. What clients keep is in their store.

    Attributes:
        weights: Global variable's name to value.
        names: What the rows of tables stand for: name of an input, such as "user", to (n,) str.
    """

    weights: Mapping[str, np.ndarray]
    names: Mapping[str, np.ndarray]


def write_model(folder: str | os.PathLike, model: SavedModel) -> None:
    """Writes the file, for its owner alone: a table may have a row for each user.

    Args:
        folder: The run folder.
        model: What to write.
    """
    columns = {f"global/{name}": value for name, value in model.weights.items()}
    columns.update({f"names/{n}": np.asarray(v).astype(str) for n, v in model.names.items()})
    with atomic_write(pathlib.Path(folder) / FILE, "wb", permissions=OWNER_ONLY) as file:
        np.savez(file, **columns)


def read_model(folder: str | os.PathLike) -> SavedModel:
    """Reads the file.

    Args:
        folder: The folder of a run that has ended.

    Raises:
        UserError: If there is none, or it cannot be read.
    """
    path = pathlib.Path(folder) / FILE
    if not path.is_file():
        raise UserError(f"{folder} has no {FILE}: it is no run, or its run has not ended.")
    parts: dict[str, dict[str, np.ndarray]] = {part: {} for part in _PARTS}
    try:
        with np.load(path, allow_pickle=False) as file:
            for column in file.files:
                part, _, name = column.partition("/")
                parts[part][name] = file[column]
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged: {error}.") from error
    return SavedModel(parts["global"], parts["names"])
