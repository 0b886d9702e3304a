"""Training of a small GPT-2, from scratch or further; interrupted training can be resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.errors import UserError
from fedpersonal.files import atomic_write, pack_arrays, read_bytes, unpack_arrays
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.models.gpt2 import (
    MIN_VOCAB_SIZE,
    BaseModel,
    check_is_free,
    save_base_model,
    train_tokenizer,
    weight_name,
)
from fedpersonal.suite.models.pretrained_texts import (
    FILE,
    digest_texts,
    read_digests,
    write_digests,
)

if TYPE_CHECKING:
    import tensorflow as tf
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

# The file in a pretrained model's folder that describes its training.
NOTES = "pretraining.json"
_VALIDATION_SHARE = 0.02
_REPORTS = 20
_ENCODED_AT_ONCE = 10_000
# More texts hardly change a vocabulary of thousands, and take a minute.
_TOKENIZER_TEXTS = 50_000
_WARM_UP_SHARE = 0.05
_WEIGHT_DECAY = 0.01
_SECOND_MOMENT_DECAY = 0.98
_MAX_GRADIENT_NORM = 1.0
_INITIAL_DEVIATION = 0.02
_SECONDS_BETWEEN_SAVES = 30.0


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """Sizes of a GPT-2.

    Attributes:
        vocab_size: Number of tokens, >= 257; there are fewer if the texts have fewer pairs.
        num_layers: Transformer blocks, >= 1.
        num_heads: Attention heads of a block, >= 1; `dim` is a multiple of it.
        dim: Size of embeddings and hidden states.
        positions: The maximum number of tokens that it can read, >= 2, and the length of a window.
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
    """Results of pretraining.

    Attributes:
        num_texts: Number of training texts.
        num_tokens: Number of their tokens, including ends of texts.
        num_validation_texts: Number of held-out texts.
        vocab_size: Number of the tokenizer's tokens.
        num_parameters: Number of the weights' scalars.
        steps: Number of training steps.
        seconds: Duration of the steps, with tracing and without validation.
        curve: Pairs of a number of steps, from 0 on, and the perplexity per token of the held-out
            texts after these.
    """

    num_texts: int
    num_tokens: int
    num_validation_texts: int
    vocab_size: int
    num_parameters: int
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

    It saves its state every half minute in a file next to the folder. Called again with the same
    arguments after an interruption, it resumes from this file, with bitwise equal results. The
    file's name depends on the arguments.

    Args:
        folder: The folder to create; it appears when training has ended.
        texts: The texts to train on.
        settings: Settings to write to `NOTES` with the report; digests of the texts are in `FILE`.
        **options: Arguments of `pretrain`.

    Raises:
        UserError: If the folder is not empty or cannot be written to, or `pretrain` raises it.
    """
    check_is_free(folder)
    folder = pathlib.Path(folder).resolve()
    digest = _digest(texts, {k: v for k, v in options.items() if k != "progress"})
    state_file = folder.with_name(f"{folder.name}.{digest}.training")
    model, tokenizer, report = pretrain(texts, state_file=state_file, **options)
    notes = {"settings": settings, "report": dataclasses.asdict(report)}
    digests, start = digest_texts(texts), options["start"]
    if isinstance(start, BaseModel):
        digests = np.union1d(digests, read_digests(start.source))
    sentences = {FILE: write_digests(digests)}
    save_base_model(folder, model, tokenizer, notes={NOTES: notes, **sentences})
    state_file.unlink(missing_ok=True)
    return report


def _digest(texts: Sequence[str], options: Mapping[str, object]) -> str:
    """Returns a digest of a training's arguments."""
    start = options["start"]
    weights = start.weights.values() if isinstance(start, BaseModel) else []
    others = {k: v for k, v in options.items() if k != "start" or not weights}
    digest = hashlib.sha256(repr(sorted(others.items())).encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    for weight in weights:
        digest.update(weight.tobytes())
    return digest.hexdigest()[:12]


def pretrain(
    texts: Sequence[str],
    *,
    start: ModelSizes | BaseModel,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    progress: bool,
    state_file: pathlib.Path | None = None,
) -> tuple[TFGPT2LMHeadModel, GPT2TokenizerFast, PretrainingReport]:
    """Trains a tokenizer and a GPT-2 on texts, or trains a base model further.

    The texts form one stream, with `<eos>` after each. A batch has random windows of this stream,
    with as many tokens as the model has positions. A window may thus start with any token. Where
    neighbouring texts are by one author or of one conversation, its start is informative of the
    rest; the model learns to use it, which prefixes in its place require. 2 % of the texts, at
    least one and all neighbours, are held out; the tokenizer learns from at most 50,000 of the
    others. The optimizer is AdamW with warm-up, cosine decay and clipped gradients; there is no
    dropout. On one machine equal arguments give equal weights; the global random state of NumPy is
    not changed.

    Args:
        texts: The texts, with related texts next to each other; blank ones are ignored.
        start: Sizes of a new model, or a base model to train further with its tokenizer.
        steps: Training steps, >= 1.
        batch_size: Windows of a step, >= 1.
        learning_rate: The highest learning rate, > 0.
        seed: Fixes the held-out texts, the initial weights and the windows, >= 0.
        progress: Whether to show progress on stderr.
        state_file: The file in which the state is saved twice a minute, and from which an
            interrupted training with the same arguments resumes; None for no file.

    Raises:
        UserError: If there are too few texts, the loss is no longer finite, or the file is damaged.
    """
    check_counts(1, steps=steps, batch_size=batch_size)
    check_count("seed", seed)
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise UserError(f"learning_rate must be a finite number > 0, got {learning_rate!r}")
    texts = [text for text in texts if text.strip()]
    if len(texts) < 2:
        raise UserError(f"at least 2 texts that are not blank are needed, got {len(texts)}")

    def show(line: str) -> None:
        if progress:
            print(line, file=sys.stderr, flush=True)

    random = generator(Purpose.PRETRAINING_TEXTS, seed)
    num_held_out = max(1, round(_VALIDATION_SHARE * len(texts)))
    first = int(random.integers(len(texts) - num_held_out + 1))
    last = first + num_held_out
    training_texts = texts[:first] + texts[last:]
    tokenizer_texts = random.permutation(len(training_texts))[:_TOKENIZER_TEXTS]
    if isinstance(start, BaseModel):
        show(f"encoding {len(texts):,} texts")
        tokenizer, positions, model = start.tokenizer, start.config.n_positions, _copy_model(start)
    else:
        show(f"training a tokenizer and encoding {len(texts):,} texts")
        tokenizer = train_tokenizer(
            [training_texts[i] for i in tokenizer_texts], vocab_size=start.vocab_size
        )
        positions, model = start.positions, _new_model(start, tokenizer, seed)
    held_out, training = (_encode(part, tokenizer) for part in (texts[first:last], training_texts))
    length = min(positions, len(training))
    take_step, sum_losses, variables = _compile_steps(model, steps, learning_rate)
    state = _State(state_file, variables, random)

    def perplexity() -> float:
        windows = _consecutive_windows(held_out, length, batch_size)
        loss, count = np.sum([np.float64(sum_losses(batch)) for batch in windows], axis=0)
        with np.errstate(over="ignore"):
            return float(np.exp(loss / count))

    first_step, seconds, curve = state.read() or (1, 0.0, [(0, perplexity())])
    if first_step > 1:
        show(f"resuming after step {first_step - 1}/{steps}")
    every = math.ceil(steps / _REPORTS)
    since = time.monotonic()
    for step in range(first_step, steps + 1):
        begin = time.monotonic()
        starts = random.integers(len(training) - length + 1, size=(batch_size, 1))
        loss = take_step(training[starts + np.arange(length)])
        seconds += time.monotonic() - begin
        if step % every == 0 or step == steps:
            if not math.isfinite(loss):
                raise UserError(
                    f"the loss is {float(loss)} at step {step}: learning_rate={learning_rate} is "
                    "too high"
                )
            curve.append((step, perplexity()))
            line = f"loss {float(loss):.3f}, held-out perplexity {curve[-1][1]:.1f}"
            left = (steps - step) * (time.monotonic() - since) / (step + 1 - first_step)
            show(f"step {step}/{steps}, {seconds:.0f} s, about {left:.0f} s left: {line}")
        state.write_if_due(step + 1, seconds, curve)
    report = PretrainingReport(
        num_texts=len(training_texts),
        num_tokens=len(training),
        num_validation_texts=num_held_out,
        vocab_size=len(tokenizer),
        num_parameters=sum(math.prod(variable.shape) for variable in model.weights),
        steps=steps,
        seconds=seconds,
        curve=tuple(curve),
    )
    return model, tokenizer, report


class _State:
    """The state of a training, which steps change, in a file."""

    def __init__(
        self, path: pathlib.Path | None, variables: list[tf.Variable], random: np.random.Generator
    ):
        self._path, self._variables, self._random = path, variables, random
        self._time = time.monotonic()

    def read(self) -> tuple[int, float, list[tuple[int, float]]] | None:
        """Restores the state, and returns the next step, seconds and curve; None without a file."""
        if self._path is None or not self._path.exists():
            return None
        try:
            arrays = unpack_arrays(read_bytes(self._path))
            course = json.loads(str(arrays.pop("course")))
        except (ValueError, KeyError) as error:
            raise UserError(
                f"{self._path} is damaged ({error}); remove it to train from the start."
            ) from None
        for name, value in arrays.items():
            self._variables[int(name)].assign(value)
        self._random.bit_generator.state = course["random"]
        return course["step"], course["seconds"], [tuple(point) for point in course["curve"]]

    def write_if_due(self, step: int, seconds: float, curve: list[tuple[int, float]]) -> None:
        """Writes the file, unless it was written less than half a minute ago."""
        if self._path is None or time.monotonic() < self._time + _SECONDS_BETWEEN_SAVES:
            return
        course = {"step": step, "seconds": seconds, "curve": curve}
        course["random"] = self._random.bit_generator.state
        arrays = {str(i): variable.numpy() for i, variable in enumerate(self._variables)}
        with atomic_write(self._path, "wb") as file:
            file.write(pack_arrays({**arrays, "course": np.array(json.dumps(course))}))
        self._time = time.monotonic()


def _encode(texts: Sequence[str], tokenizer: GPT2TokenizerFast) -> np.ndarray:
    """Returns the tokens of all texts, the end of a text after each, (n,) int32."""
    end = [tokenizer.eos_token_id]
    parts = []
    for first in range(0, len(texts), _ENCODED_AT_ONCE):
        chunk = list(texts[first : first + _ENCODED_AT_ONCE])
        encoded = tokenizer(chunk, return_attention_mask=False, verbose=False)["input_ids"]
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


def _new_model(sizes: ModelSizes, tokenizer: GPT2TokenizerFast, seed: int) -> TFGPT2LMHeadModel:
    """Returns a model without dropout, with random weights distributed as GPT-2's."""
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel

    model = TFGPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=sizes.positions,
            n_embd=sizes.dim,
            n_layer=sizes.num_layers,
            n_head=sizes.num_heads,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.build_in_name_scope()
    random = generator(Purpose.PRETRAINED_WEIGHTS, seed)
    # Keras' random values depend on those before; biases and scales are 0 and 1 already.
    for variable in model.weights:
        if "/ln_" not in variable.name and "bias" not in variable.name:
            # As published: projections onto the residual stream shrink with their number.
            shrink = math.sqrt(2 * sizes.num_layers) if "c_proj" in variable.name else 1.0
            values = random.normal(0.0, _INITIAL_DEVIATION / shrink, variable.shape)
            variable.assign(values.astype(np.float32))
    return model


def _copy_model(base: BaseModel) -> TFGPT2LMHeadModel:
    """Returns a trainable model with the weights of a base model."""
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel

    model = TFGPT2LMHeadModel(base.config)
    model.build_in_name_scope()
    for variable in model.weights:
        variable.assign(base.weights[weight_name(variable)])
    return model


def _compile_steps(
    model: TFGPT2LMHeadModel, steps: int, learning_rate: float
) -> tuple[Callable[[np.ndarray], Any], Callable[[np.ndarray], Any], list[tf.Variable]]:
    """Returns two functions of windows (batch, time), and the variables that steps change.

    The first takes a step and returns its mean loss. The second returns the sum of the losses of
    all predicted tokens, and their number.
    """
    import tensorflow as tf

    from fedpersonal.model.keras import keras

    warm_up_steps = max(1, round(_WARM_UP_SHARE * steps))
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(
            learning_rate / warm_up_steps,
            max(1, steps - warm_up_steps),
            warmup_target=learning_rate,
            warmup_steps=warm_up_steps,
        ),
        weight_decay=_WEIGHT_DECAY,
        beta_2=_SECOND_MOMENT_DECAY,
        global_clipnorm=_MAX_GRADIENT_NORM,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "/ln_"])
    optimizer.build(model.trainable_variables)

    def sum_losses(tokens: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        targets = tokens[:, 1:]
        logits = model(tokens[:, :-1], use_cache=False).logits
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(losses), tf.cast(tf.size(targets), tf.float32)

    def take_step(tokens: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss, count = sum_losses(tokens)
            loss /= count
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    batch = [tf.TensorSpec([None, None], tf.int32)]
    variables = [*model.weights, *optimizer.variables]
    return tf.function(take_step, input_signature=batch), tf.function(sum_losses, batch), variables
