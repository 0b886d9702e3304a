"""Training of a small GPT-2 from scratch, which can be interrupted at any time and goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tqdm

from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.files import atomic_write, pack_arrays, read_bytes, unpack_arrays
from fedpersonal.models.gpt2 import BaseModel, check_is_free, save_base_model
from fedpersonal.models.gpt2_training import (
    MIN_VOCAB_SIZE,
    GPT2Trainer,
    copy_model,
    new_model,
    train_tokenizer,
)

if TYPE_CHECKING:
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

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


# The file beside a pretrained model's that says how it was made.
NOTES = "pretraining.json"
_STATE_SUFFIX = ".training"
_VALIDATION_SHARE = 0.02
_REPORTS = 20
_ENCODED_AT_ONCE = 10_000
# More texts hardly change a vocabulary of thousands, and take a minute.
_TOKENIZER_TEXTS = 50_000


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """Sizes of a GPT-2.

    Attributes:
        vocab_size: Tokens, >= 257; fewer come of texts that do not have so many pairs.
        num_layers: Transformer blocks, >= 1.
        num_heads: Attention heads of a block, >= 1; `dim` is a multiple of it.
        dim: Size of embeddings and hidden states.
        positions: The most tokens that it can read, >= 2; a window has as many.
    """

    vocab_size: int = 4096
    num_layers: int = 4
    num_heads: int = 4
    dim: int = 128
    positions: int = 64

    def __post_init__(self):
        check_count("vocab_size", self.vocab_size, minimum=MIN_VOCAB_SIZE)
        check_counts(1, num_layers=self.num_layers, num_heads=self.num_heads, dim=self.dim)
        check_count("positions", self.positions, minimum=2)
        if self.dim % self.num_heads:
            raise UserError(f"dim={self.dim} is not a multiple of num_heads={self.num_heads}")


@dataclasses.dataclass(frozen=True)
class PretrainingReport:
    """What came of pretraining.

    Attributes:
        num_texts: Texts trained on.
        num_tokens: Tokens of these, their ends among them.
        num_validation_texts: Texts held out.
        vocab_size: Tokens of the tokenizer.
        num_parameters: Entries of all weights.
        initial_perplexity: Per token of the held-out texts, before training.
        final_perplexity: The same after training.
        steps: Training steps.
        seconds: What the steps took, with tracing and without validation.
        curve: The perplexity of the held-out texts after so many steps.
    """

    num_texts: int
    num_tokens: int
    num_validation_texts: int
    vocab_size: int
    num_parameters: int
    initial_perplexity: float
    final_perplexity: float
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]


def pretrain_into(
    folder: str | os.PathLike,
    texts: Sequence[str],
    *,
    settings: Mapping[str, object],
    **options: Any,
) -> PretrainingReport:
    """Trains a model and writes it with `save_base_model`.

    Its state is in `<folder>.training` until then: called again with the same arguments, it goes
    on from there to the same bits, and a process killed at any time loses half a minute.

    Args:
        folder: The folder to make.
        texts: As of `pretrain`.
        settings: What to note beside the report, in `NOTES`.
        **options: Of `pretrain`.

    Raises:
        UserError: As of `pretrain` and `check_is_free`.
    """
    check_is_free(folder)
    state_file = pathlib.Path(folder).resolve().with_name(pathlib.Path(folder).name + _STATE_SUFFIX)
    model, tokenizer, report = pretrain(texts, state_file=state_file, **options)
    notes = {"settings": settings, "report": dataclasses.asdict(report)}
    save_base_model(folder, model, tokenizer, notes={NOTES: notes})
    state_file.unlink(missing_ok=True)
    return report


def pretrain(
    texts: Sequence[str],
    *,
    start: ModelSizes | BaseModel,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    progress: bool,
    state_file: str | os.PathLike | None = None,
) -> tuple[TFGPT2LMHeadModel, GPT2TokenizerFast, PretrainingReport]:
    """Trains a tokenizer and a GPT-2 on texts, or trains a base model further.

    The texts become one stream, `<eos>` after each, of which a batch takes windows of as many
    tokens as the model has positions, wherever they begin. A window thus starts with any token, and
    what comes first tells of what follows where neighbouring texts are by one author or of one
    conversation: the model learns to make use of it, as prefixes in its place will need. 2 % of the
    texts, at least one and neighbours all, are held out; the tokenizer learns from at most 50,000
    of the others. The optimizer is AdamW with warm-up, cosine decay and clipped gradients; there is
    no dropout. On one machine equal arguments give equal weights; the global random state of NumPy
    is left alone.

    Args:
        texts: The texts, those that belong together next to each other; blank ones are left out.
        start: Sizes of a new model, or a base model to train further, whose tokenizer stays.
        steps: Training steps, >= 1.
        batch_size: Windows of a step, >= 1.
        learning_rate: The highest learning rate, > 0.
        seed: Fixes the held-out texts, the initial weights and the windows, >= 0.
        progress: Whether to show on stderr how far training has come.
        state_file: Where the state is saved twice a minute, and from which an interrupted training
            with the same arguments goes on; None for nowhere.

    Raises:
        UserError: If there are too few texts, the loss is no longer finite, or the state is
            damaged or of another training.
    """
    check_counts(1, steps=steps, batch_size=batch_size)
    check_count("seed", seed)
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise UserError(f"learning_rate must be a finite number > 0, got {learning_rate!r}")
    texts = [text for text in texts if text.strip()]
    if len(texts) < 2:
        raise UserError(f"at least 2 texts that are not blank are needed, got {len(texts)}")

    state = None
    if state_file is not None:
        about = {"steps": steps, "batch_size": batch_size, "rate": learning_rate, "seed": seed}
        state = SavedState(state_file, {**about, "start": _told(start)}, texts)
    random = generator(Purpose.PRETRAINING_TEXTS, seed)
    num_held_out = max(1, round(_VALIDATION_SHARE * len(texts)))
    first = int(random.integers(len(texts) - num_held_out + 1))
    last = first + num_held_out
    training_texts = texts[:first] + texts[last:]
    some = random.permutation(len(training_texts))[:_TOKENIZER_TEXTS]
    if progress:
        line = "encoding" if isinstance(start, BaseModel) else "training a tokenizer and encoding"
        print(f"{line} {len(texts):,} texts", file=sys.stderr, flush=True)
    if isinstance(start, BaseModel):
        tokenizer, positions, model = start.tokenizer, start.config.n_positions, copy_model(start)
    else:
        tokenizer = train_tokenizer([training_texts[i] for i in some], vocab_size=start.vocab_size)
        positions, model = start.positions, new_model(start, tokenizer, seed)
    held_out = _encode(texts[first:last], tokenizer)
    training = _encode(training_texts, tokenizer)
    length = min(positions, len(training))

    trainer = GPT2Trainer(model, steps=steps, learning_rate=learning_rate)

    def perplexity() -> float:
        return trainer.perplexity(_consecutive_windows(held_out, length, batch_size))

    course = state.restore(trainer, random) if state else None
    if course is None:
        course = Course(curve=[(0, perplexity())])
    with contextlib.closing(_Progress(course.step, steps, show=progress)) as shown:
        for step in range(course.step + 1, steps + 1):
            begun = time.monotonic()
            starts = random.integers(len(training) - length + 1, size=(batch_size, 1))
            loss = trainer.train(training[starts + np.arange(length)])
            course.step, course.seconds = step, course.seconds + time.monotonic() - begun
            if shown.is_due(step):
                if not math.isfinite(loss):
                    raise UserError(
                        f"the loss is {float(loss)} at step {step}: learning_rate={learning_rate} "
                        "is too high"
                    )
                course.curve.append((step, perplexity()))
                shown.advance(course, float(loss))
            if state:
                state.save_if_due(trainer, random, course)
    report = PretrainingReport(
        num_texts=len(training_texts),
        num_tokens=len(training),
        num_validation_texts=num_held_out,
        vocab_size=len(tokenizer),
        num_parameters=sum(math.prod(variable.shape) for variable in model.weights),
        initial_perplexity=course.curve[0][1],
        final_perplexity=course.curve[-1][1],
        steps=steps,
        seconds=course.seconds,
        curve=tuple(course.curve),
    )
    return model, tokenizer, report


def _told(start: ModelSizes | BaseModel) -> str:
    """Returns what tells a start from others."""
    if isinstance(start, ModelSizes):
        return repr(start)
    content = b"".join(value.tobytes() for value in start.weights.values())
    return hashlib.sha256(content).hexdigest()


def _encode(texts: Sequence[str], tokenizer: GPT2TokenizerFast) -> np.ndarray:
    """Returns the tokens of all texts, the end of a text after each, (n,) int32."""
    end = [tokenizer.eos_token_id]
    parts = []
    for first in range(0, len(texts), _ENCODED_AT_ONCE):
        some = list(texts[first : first + _ENCODED_AT_ONCE])
        encoded = tokenizer(some, return_attention_mask=False, verbose=False)["input_ids"]
        parts += [np.array(ids + end, np.int32) for ids in encoded]
    return np.concatenate(parts)


def _consecutive_windows(tokens: np.ndarray, length: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yields all tokens in windows (at most batch_size, length); the last one is shorter."""
    whole = len(tokens) // length * length
    windows = tokens[:whole].reshape(-1, length)
    for first in range(0, len(windows), batch_size):
        yield windows[first : first + batch_size]
    if len(tokens) - whole > 1:
        yield tokens[np.newaxis, whole:]


class _Progress:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self, step: int, steps: int, *, show: bool):
        self._steps, self._every, self._show = steps, math.ceil(steps / _REPORTS), show
        on_terminal = show and sys.stderr.isatty()
        self._bar = tqdm.tqdm(
            total=steps, initial=step, unit="step", dynamic_ncols=True, disable=not on_terminal
        )
        if step and show:
            print(f"going on after step {step}/{steps}", file=sys.stderr, flush=True)

    def is_due(self, step: int) -> bool:
        return step % self._every == 0 or step == self._steps

    def advance(self, course: Course, loss: float) -> None:
        """Shows how far training has come, the last batch's loss and the held-out perplexity."""
        told = f"loss {loss:.3f}, held-out perplexity {course.curve[-1][1]:.1f}"
        if not self._bar.disable:
            self._bar.set_postfix_str(told, refresh=False)
            self._bar.update(course.step - self._bar.n)
        elif self._show:
            line = f"step {course.step}/{self._steps}, {course.seconds:.0f} s: {told}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
