"""A GPT-2 and its optimizer: first weights, steps, perplexity, and all of it as arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.data.sources import check_count
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError
from fedpersonal.models.gpt2 import BaseModel, weight_name

if TYPE_CHECKING:
    import tensorflow as tf
    from tokenizers import Tokenizer, models
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    from fedpersonal.models.pretraining import ModelSizes

_WARM_UP_SHARE = 0.05
_WEIGHT_DECAY = 0.01
_SECOND_MOMENT_DECAY = 0.98
_MAX_GRADIENT_NORM = 1.0
_INITIAL_DEVIATION = 0.02


def new_model(sizes: ModelSizes, tokenizer: GPT2TokenizerFast, seed: int) -> TFGPT2LMHeadModel:
    """Returns a model without dropout, its weights drawn as GPT-2's were."""
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
    random = generator(Purpose.PRETRAINED_WEIGHTS, seed)
    # What Keras draws depends on what was drawn before; biases and scales are 0 and 1 already.
    for variable in model.weights:
        if "/ln_" not in variable.name and "bias" not in variable.name:
            # As published: projections onto the residual stream shrink with their number.
            shrink = math.sqrt(2 * sizes.num_layers) if "c_proj" in variable.name else 1.0
            drawn = random.normal(0.0, _INITIAL_DEVIATION / shrink, variable.shape)
            variable.assign(drawn.astype(np.float32))
    return model


def copy_model(base: BaseModel) -> TFGPT2LMHeadModel:
    """Returns a model with the weights of a base model, to be trained on."""
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel

    model = TFGPT2LMHeadModel(base.config)
    model.build_in_name_scope()
    for variable in model.weights:
        variable.assign(base.weights[weight_name(variable)])
    return model


class GPT2Trainer:
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

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns all that steps change, by name."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on from what `arrays` has returned."""
        for name, variable in self._variables().items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, tf.Variable]:
        kinds = {"model": self._model.weights, "optimizer": self._optimizer.variables}
        return {f"{kind}/{i}": v for kind, own in kinds.items() for i, v in enumerate(own)}

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


END_OF_TEXT = "<|endoftext|>"
# All bytes and the end of a text.
MIN_VOCAB_SIZE = 257


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> GPT2TokenizerFast:
    """Trains a tokenizer that can encode any text and give it back unchanged.

    Equal texts, in whatever order, give equal tokenizers; without any there is a `UserError`.

    Args:
        texts: The texts.
        vocab_size: How many tokens there are to be, >= 257: the 256 bytes, pairs, and as the last
            one `<|endoftext|>`, which begins and ends texts. It becomes fewer if the texts do not
            have so many pairs.
    """
    from tokenizers import models, pre_tokenizers, trainers
    from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

    vocab_size = check_count("vocab_size", vocab_size, minimum=MIN_VOCAB_SIZE)
    texts = [text for text in texts if text]
    if not texts:
        raise UserError("there is no text to train a tokenizer on")
    learned = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    # The trainer would put it first, and the tokenizer beside the vocabulary instead of into it.
    vocabulary = {**model["vocab"], END_OF_TEXT: len(model["vocab"])}
    merges = [tuple(merge.split(" ")) for merge in model["merges"]]
    return GPT2TokenizerFast(
        tokenizer_object=_byte_level(models.BPE(vocabulary, merges)),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def _byte_level(model: models.Model) -> Tokenizer:
    """Returns a tokenizer that cuts texts as GPT-2 does."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
