"""Training of a small GPT-2 from scratch."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tqdm

from fedpersonal.data.checks import check_count, check_counts
from fedpersonal.errors import UserError
from fedpersonal.language_models.tokenizer_training import MIN_VOCAB_SIZE, train_tokenizer

if TYPE_CHECKING:
    import tensorflow as tf
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

_VALIDATION_SHARE = 0.02
_WARM_UP_SHARE = 0.05
_WEIGHT_DECAY = 0.01
_SECOND_MOMENT_DECAY = 0.98
_MAX_GRADIENT_NORM = 1.0
_INITIAL_DEVIATION = 0.02
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
        num_parameters: Entries of all weights.
        initial_perplexity: Per token of the held-out texts, before training.
        final_perplexity: The same after training.
        steps: Training steps.
        seconds: What the steps took, with tracing and without validation.
    """

    num_texts: int
    num_tokens: int
    num_validation_texts: int
    num_parameters: int
    initial_perplexity: float
    final_perplexity: float
    steps: int
    seconds: float


def pretrain(
    texts: Sequence[str],
    *,
    sizes: ModelSizes,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    progress: bool,
) -> tuple[TFGPT2LMHeadModel, GPT2TokenizerFast, PretrainingReport]:
    """Trains a tokenizer and a GPT-2 on texts.

    The texts become one stream, `<eos>` after each, of which a batch takes windows of
    `sizes.positions` tokens wherever they begin. A window thus starts with any token, and what
    comes first tells of what follows where neighbouring texts are by one author or of one
    conversation: the model learns to make use of it, as prefixes in its place will need. 2 % of the
    texts, at least one and neighbours all, are held out; the tokenizer learns from at most 50,000
    of the others. The optimizer is AdamW with warm-up, cosine decay and clipped gradients; there is
    no dropout. On one machine equal arguments give equal weights; the global random state of NumPy
    is left alone.

    Args:
        texts: The texts, those that belong together next to each other; blank ones are left out.
        sizes: Sizes of the model.
        steps: Training steps, >= 1.
        batch_size: Windows of a step, >= 1.
        learning_rate: The highest learning rate, > 0.
        seed: Fixes the held-out texts, the initial weights and the windows, >= 0.
        progress: Whether to show on stderr how far training has come.

    Raises:
        UserError: If there are too few texts, or the loss is no longer finite.
    """
    check_counts(1, steps=steps, batch_size=batch_size)
    check_count("seed", seed)
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise UserError(f"learning_rate must be a finite number > 0, got {learning_rate!r}")
    texts = [text for text in texts if text.strip()]
    if len(texts) < 2:
        raise UserError(f"at least 2 texts that are not blank are needed, got {len(texts)}")

    order_seed, weight_seed = np.random.SeedSequence(seed).spawn(2)
    random = np.random.default_rng(order_seed)
    num_held_out = max(1, round(_VALIDATION_SHARE * len(texts)))
    first = int(random.integers(len(texts) - num_held_out + 1))
    last = first + num_held_out
    training_texts = texts[:first] + texts[last:]
    some = random.permutation(len(training_texts))[:_TOKENIZER_TEXTS]
    if progress:
        line = f"training a tokenizer and encoding {len(texts):,} texts"
        print(line, file=sys.stderr, flush=True)
    tokenizer = train_tokenizer([training_texts[i] for i in some], vocab_size=sizes.vocab_size)
    held_out = _encode(texts[first:last], tokenizer)
    training = _encode(training_texts, tokenizer)
    length = min(sizes.positions, len(training))

    model = _new_model(sizes, tokenizer, weight_seed)
    trainer = _Trainer(model, steps=steps, learning_rate=learning_rate)
    initial = trainer.perplexity(_consecutive_windows(held_out, length, batch_size))
    start = time.monotonic()
    with contextlib.closing(_Progress(steps, show=progress)) as shown:
        for step in range(1, steps + 1):
            starts = random.integers(len(training) - length + 1, size=(batch_size, 1))
            loss = trainer.train(training[starts + np.arange(length)])
            if shown.is_due(step):
                if not math.isfinite(loss):
                    raise UserError(
                        f"the loss is {float(loss)} at step {step}: learning_rate={learning_rate} "
                        "is too high"
                    )
                shown.advance(step, float(loss))
    seconds = time.monotonic() - start
    report = PretrainingReport(
        num_texts=len(training_texts),
        num_tokens=len(training),
        num_validation_texts=num_held_out,
        num_parameters=sum(math.prod(variable.shape) for variable in model.weights),
        initial_perplexity=initial,
        final_perplexity=trainer.perplexity(_consecutive_windows(held_out, length, batch_size)),
        steps=steps,
        seconds=seconds,
    )
    return model, tokenizer, report


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


def _new_model(
    sizes: ModelSizes, tokenizer: GPT2TokenizerFast, seed: np.random.SeedSequence
) -> TFGPT2LMHeadModel:
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel

    config = GPT2Config(
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
    model = TFGPT2LMHeadModel(config)
    model.build_in_name_scope()
    random = np.random.default_rng(seed)
    # What Keras draws depends on what was drawn before; biases and scales are 0 and 1 already.
    for variable in model.weights:
        if "/ln_" not in variable.name and "bias" not in variable.name:
            # As published: projections onto the residual stream shrink with their number.
            shrink = math.sqrt(2 * sizes.num_layers) if "c_proj" in variable.name else 1.0
            drawn = random.normal(0.0, _INITIAL_DEVIATION / shrink, variable.shape)
            variable.assign(drawn.astype(np.float32))
    return model


class _Trainer:
    """A model with its optimizer, compiled."""

    def __init__(self, model: TFGPT2LMHeadModel, *, steps: int, learning_rate: float):
        import tensorflow as tf

        warm_up_steps = max(1, round(_WARM_UP_SHARE * steps))
        self._model = model
        self._optimizer = tf.keras.optimizers.AdamW(
            tf.keras.optimizers.schedules.CosineDecay(
                learning_rate / warm_up_steps,
                max(1, steps - warm_up_steps),
                warmup_target=learning_rate,
                warmup_steps=warm_up_steps,
            ),
            weight_decay=_WEIGHT_DECAY,
            beta_2=_SECOND_MOMENT_DECAY,
            global_clipnorm=_MAX_GRADIENT_NORM,
        )
        self._optimizer.exclude_from_weight_decay(var_names=["bias", "/ln_"])
        self._optimizer.build(model.trainable_variables)
        batch = [tf.TensorSpec([None, None], tf.int32)]
        self._train = tf.function(self._train_step, input_signature=batch)
        self._evaluate = tf.function(self._sums, input_signature=batch)

    def train(self, tokens: np.ndarray) -> tf.Tensor:
        """Makes a step on windows (batch, time) and returns its mean loss, a scalar."""
        return self._train(tokens)

    def perplexity(self, batches: Iterator[np.ndarray]) -> float:
        """Returns the perplexity per token."""
        loss, count = 0.0, 0.0
        for batch in batches:
            batch_loss, batch_count = self._evaluate(batch)
            loss, count = loss + float(batch_loss), count + float(batch_count)
        with np.errstate(over="ignore"):
            return float(np.exp(loss / count))

    def _sums(self, tokens):
        """Returns the sum of the losses of all predicted tokens and how many these are."""
        import tensorflow as tf

        targets = tokens[:, 1:]
        logits = self._model(tokens[:, :-1], use_cache=False).logits
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(losses), tf.cast(tf.size(targets), tf.float32)

    def _train_step(self, tokens):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss, count = self._sums(tokens)
            loss /= count
        variables = self._model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss


class _Progress:
    """A progress bar on a terminal, a line now and then elsewhere."""

    def __init__(self, steps: int, *, show: bool):
        self._steps, self._every, self._show = steps, math.ceil(steps / _REPORTS), show
        self._start = time.monotonic()
        on_terminal = show and sys.stderr.isatty()
        self._bar = tqdm.tqdm(total=steps, unit="step", dynamic_ncols=True, disable=not on_terminal)

    def is_due(self, step: int) -> bool:
        return step % self._every == 0 or step == self._steps

    def advance(self, step: int, loss: float) -> None:
        """Shows how far training has come, and the loss of the last batch."""
        if not self._bar.disable:
            self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._show:
            seconds = time.monotonic() - self._start
            line = f"step {step}/{self._steps}, {seconds:.0f} s: loss {loss:.3f}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
