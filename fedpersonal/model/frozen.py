"""Frozen variables: values in files that each process maps into its memory.

A frozen language model is much larger than the parts trained with it. As part of a computation it
would be sent with every call. A process maps a file once and never copies it; clients and processes
on one machine share it. A process on another machine needs the same folder.
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

# Variables of at most this many numbers (a megabyte) are copied, which is fast; larger ones are
# only mapped.
_MOST_COPIED = 2**18


class FrozenVariables:
    """Values of frozen variables, each in its own file.

    Attributes:
        paths: Variable name to file; files are named by their content.
        shapes: Variable name to shape.
        num_bytes: The total size.
    """

    def __init__(self, paths: Mapping[str, pathlib.Path], shapes: Mapping[str, tuple[int, ...]]):
        """Takes variable name to file and to shape; `write` makes both."""
        self.paths = dict(paths)
        self.shapes = dict(shapes)
        self.num_bytes = sum(
            self._dtype(name).size * int(np.prod(shape)) for name, shape in self.shapes.items()
        )

    @classmethod
    def write(cls, folder: str | os.PathLike, values: Mapping[str, np.ndarray]) -> FrozenVariables:
        """Writes values by variable name, unless the folder has them already.

        Files are named by their content, so that several models can share the folder.

        Raises:
            ValueError: If a value is empty, or neither float32 nor of integers or booleans.
        """
        folder = pathlib.Path(folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        paths, shapes = {}, {}
        for name, value in values.items():
            value = np.asarray(value)
            is_supported = value.dtype == np.float32 or value.dtype.kind in "iub"
            if not is_supported or not value.size:
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
        """Writes values by variable name to a temporary folder, deleted when the process ends."""
        return cls.write(_process_folder(), values) if values else cls({}, {})

    def followed_by(self, other: FrozenVariables) -> FrozenVariables:
        """Returns these variables updated with others, which take precedence."""
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
        # TensorFlow may write a result over its operand, such as where batch normalisation adds to
        # a variance. Writing to a file mapped as read-only would end the process.
        return tf.reshape(tf.gather(mapped(shape=[count]), tf.range(count)), shape)

    def array(self, name: str) -> np.ndarray:
        """Returns a variable's value."""
        dtype = self._dtype(name).as_numpy_dtype
        return np.fromfile(self.paths[name], dtype).reshape(self.shapes[name])

    def _dtype(self, name: str) -> tf.DType:
        return tf.as_dtype(self.paths[name].suffix[1:])


@functools.cache
def _process_folder() -> str:
    """Returns a temporary folder of this process: traced functions may outlive their model."""
    folder = tempfile.mkdtemp(prefix="fedpersonal_frozen_")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # A fork of the process must not delete the folder.
        shutil.rmtree(folder, ignore_errors=True)
