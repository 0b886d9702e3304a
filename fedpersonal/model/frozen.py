"""Variables that never move: files that each process maps into its memory.

A frozen language model is much larger than what is trained beside it. As part of a computation it
would be sent with every call. From a file it reaches a process once, is never copied, and clients
and processes on one machine share it; one elsewhere needs the same folder.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from fedpersonal.files import atomic_write

# So many numbers of a variable, a megabyte, are copied in no time; what is larger is mapped alone.
_MOST_COPIED = 2**18


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
        self.num_bytes = sum(
            self._dtype(name).size * int(np.prod(shape)) for name, shape in self.shapes.items()
        )

    @classmethod
    def write(cls, folder: str | os.PathLike, values: Mapping[str, np.ndarray]) -> FrozenVariables:
        """Writes values by variable name, unless the folder has them already.

        Files are named by their content, so that many models can share the folder.

        Raises:
            ValueError: If a value is neither float32 nor of integers or booleans, or has nothing
                in it.
        """
        folder = pathlib.Path(folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        paths, shapes = {}, {}
        for name, value in values.items():
            value = np.asarray(value)
            is_known = value.dtype == np.float32 or value.dtype.kind in "iub"
            if not is_known or not value.size:
                raise ValueError(
                    f"frozen {name!r} must be float32 with at least one number, not {value.dtype} "
                    f"of shape {value.shape}."
                )
            content = value.tobytes()
            path = folder / f"{hashlib.sha256(content).hexdigest()[:32]}.{value.dtype.name}"
            if not path.exists() or path.stat().st_size != len(content):
                with atomic_write(path, "wb") as file:
                    file.write(content)
            paths[name], shapes[name] = path, value.shape
        return cls(paths, shapes)

    @classmethod
    def of(cls, values: Mapping[str, np.ndarray]) -> FrozenVariables:
        """Writes values by variable name where this process has its own, until it ends."""
        return cls.write(_own_folder(), values) if values else cls({}, {})

    def followed_by(self, other: FrozenVariables) -> FrozenVariables:
        """Returns these with others, whose values count."""
        return FrozenVariables({**self.paths, **other.paths}, {**self.shapes, **other.shapes})

    def tensor(self, name: str) -> tf.Tensor:
        """Returns a variable's value, in a graph."""
        shape, count = self.shapes[name], int(np.prod(self.shapes[name]))
        mapped = functools.partial(
            tf.raw_ops.ImmutableConst,
            dtype=self._dtype(name),
            memory_region_name=str(self.paths[name]),
        )
        if count > _MOST_COPIED:
            return mapped(shape=shape)
        # TensorFlow may write a result over its operand, as of what batch normalisation adds to a
        # variance: into a file that is only read, the process would end.
        return tf.reshape(tf.gather(mapped(shape=[count]), tf.range(count)), shape)

    def array(self, name: str) -> np.ndarray:
        """Returns a variable's value."""
        dtype = self._dtype(name).as_numpy_dtype
        return np.fromfile(self.paths[name], dtype).reshape(self.shapes[name])

    def _dtype(self, name: str) -> tf.DType:
        return tf.as_dtype(self.paths[name].suffix[1:])


@functools.cache
def _own_folder() -> str:
    """Returns a folder of this process: what is traced may outlive the model that it was for."""
    folder = tempfile.mkdtemp(prefix="fedpersonal_frozen_")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # And no fork of it.
        shutil.rmtree(folder, ignore_errors=True)
