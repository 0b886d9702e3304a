"""Variables that never move: files that each process maps into its memory.

A frozen language model is much larger than what is trained beside it. As part of a computation it
would be sent with every call. From a file it reaches a process once, is never copied, and clients
and processes on one machine share it; one elsewhere needs the same folder.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from fedpersonal.files import atomic_write


class FrozenVariables:
    """Values by variable name, each in a file of its own.

    Attributes:
        paths: Variable name to its file, which is named by its content.
        shapes: Variable name to shape.
        num_bytes: The size of all.
    """

    def __init__(self, paths: Mapping[str, pathlib.Path], shapes: Mapping[str, tuple[int, ...]]):
        """Takes variable name to its file and to its shape; `write` makes both."""
        self.paths = dict(paths)
        self.shapes = dict(shapes)
        self.num_bytes = sum(4 * int(np.prod(shape)) for shape in self.shapes.values())

    @classmethod
    def write(cls, folder: str | os.PathLike, values: Mapping[str, np.ndarray]) -> FrozenVariables:
        """Writes float32 values by variable name, unless the folder has them already.

        Files are named by their content, so that many models can share the folder.

        Raises:
            ValueError: If a value is not float32, or has nothing in it.
        """
        folder = pathlib.Path(folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        paths, shapes = {}, {}
        for name, value in values.items():
            value = np.asarray(value)
            if value.dtype != np.float32 or not value.size:
                raise ValueError(
                    f"frozen {name!r} must be float32 with at least one number, not {value.dtype} "
                    f"of shape {value.shape}."
                )
            content = value.tobytes()
            path = folder / f"{hashlib.sha256(content).hexdigest()[:32]}.float32"
            if not path.exists() or path.stat().st_size != len(content):
                with atomic_write(path, "wb") as file:
                    file.write(content)
            paths[name], shapes[name] = path, value.shape
        return cls(paths, shapes)

    def tensor(self, name: str) -> tf.Tensor:
        """Returns a variable's value, in a graph."""
        return tf.raw_ops.ImmutableConst(
            dtype=tf.float32, shape=self.shapes[name], memory_region_name=str(self.paths[name])
        )

    def array(self, name: str) -> np.ndarray:
        """Returns a variable's value."""
        return np.fromfile(self.paths[name], np.float32).reshape(self.shapes[name])
