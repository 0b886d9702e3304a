"""The state of a training that can be interrupted: one file, written twice a minute."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.files import atomic_write, pack_arrays, read_bytes, unpack_arrays
from fedpersonal.language_models.gpt2_training import GPT2Trainer

_SECONDS_BETWEEN_SAVES = 30.0


@dataclasses.dataclass
class Course:
    """How far training has come: steps, what they took, and perplexities by step."""

    step: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float]] = dataclasses.field(default_factory=list)


class SavedState:
    """The file of a training that can be interrupted."""

    def __init__(self, path: str | os.PathLike, about: Mapping[str, object], texts: Sequence[str]):
        """Takes the file, and the settings and texts that tell this training from others."""
        digest = hashlib.sha256()
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        self._path, self._about = pathlib.Path(path), {**about, "texts": digest.hexdigest()}
        self._next = time.monotonic() + _SECONDS_BETWEEN_SAVES

    def restore(self, trainer: GPT2Trainer, random: np.random.Generator) -> Course | None:
        """Goes on from the file, if there is one; returns how far that is."""
        if not self._path.exists():
            return None
        try:
            arrays = unpack_arrays(read_bytes(self._path))
            told = json.loads(str(arrays.pop("told")))
        except (ValueError, KeyError) as error:
            raise UserError(
                f"{self._path} is damaged ({error}); remove it to train from the start."
            ) from None
        other = [name for name, value in self._about.items() if told["about"].get(name) != value]
        if other:
            raise UserError(
                f"{self._path} is of another training, with other {', '.join(other)}; remove it to "
                "train from the start."
            )
        trainer.restore(arrays)
        random.bit_generator.state = told["random"]
        return Course(**{**told["course"], "curve": [tuple(at) for at in told["course"]["curve"]]})

    def save_if_due(
        self, trainer: GPT2Trainer, random: np.random.Generator, course: Course
    ) -> None:
        """Writes the file, unless that was less than half a minute ago."""
        if time.monotonic() < self._next:
            return
        told = {
            "about": self._about,
            "course": dataclasses.asdict(course),
            "random": random.bit_generator.state,
        }
        with atomic_write(self._path, "wb") as file:
            file.write(pack_arrays({**trainer.arrays(), "told": np.array(json.dumps(told))}))
        self._next = time.monotonic() + _SECONDS_BETWEEN_SAVES
