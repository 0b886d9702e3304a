"""The models of FedPerC and its baselines, around a frozen base (Silva et al., section 3)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedpersonal.language_models.base_model import BaseModel
from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models import (
    adapted_language_model,
    generated_prefix_model,
    head_language_model,
    prefix_language_model,
)
from fedpersonal.models.frozen_gpt2 import frozen_values
from fedpersonal.models.utterance_prediction import (
    count_utterance_tokens,
    perplexity,
    sum_utterance_losses,
)

HEAD = "wte/embeddings"
_LAYER = f"{prefix_language_model.NAME}/{prefix_language_model.BASE}"

# With 256 or 512 a round takes about as long, with 1,024 a tenth longer.
_CHUNK_PLACES = 384


def freeze(base: BaseModel, folder: str | os.PathLike) -> FrozenVariables:
    """Writes a base model's weights where workers can map them; see `FrozenVariables.write`."""
    return FrozenVariables.write(folder, frozen_values(_LAYER, base.weights))


def build_language_model(
    kind: str,
    base: BaseModel,
    frozen: FrozenVariables,
    *,
    local_layers: Sequence[str],
    num_contexts: int,
    history_length: int,
    is_fresh: bool = False,
    parts: Mapping[str, str] | None = None,
    prefix_length: int = 1,
    lora_rank: int = 8,
    lora_matrices: str = "qkv",
    num_users: int | None = None,
) -> PartitionedModel:
    """Returns a model around a frozen base.

    Args:
        kind: `prefix`, `generated`, `split_head`, `shared_head` or `adapted`.
        base: The base model.
        frozen: Its weights, from `freeze`.
        local_layers: The layers that are each client's own.
        num_contexts: How many contexts there are.
        history_length: Tokens from which a `generated` prefix is made.
        is_fresh: Whether heads start at random, instead of as the base model's.
        parts: Of an `adapted` model: whose each is.
        prefix_length: Vectors of a prefix that is not `generated`.
        lora_rank: The rank of LoRA's factors.
        lora_matrices: The matrices of a block that have them: `qkv` or `all`.
        num_users: Whose parts a server has, of a `prefix` or an `adapted` model; None if none are.
    """
    start = base.weights[HEAD][base.config.bos_token_id]
    if is_fresh:
        initial = head_language_model.fresh(base.config)
    else:
        (full_name,) = frozen_values(_LAYER, {HEAD: base.weights[HEAD]})
        initial = head_language_model.as_base(lambda: tf.transpose(frozen.tensor(full_name)))
    input_spec = dict(prefix_language_model.INPUT_SPEC)
    lookups = {prefix_language_model.PERSONAL: "user", prefix_language_model.CONTEXT: "context"}
    sizes: dict[str, Any] = {"num_contexts": num_contexts, "start": start}
    model: Callable[..., tf.keras.Model] = prefix_language_model.PrefixLanguageModel
    owned: list[str] = []
    if kind == "prefix":
        sizes.update(prefix_length=prefix_length, num_users=num_users or 1)
        owned = [prefix_language_model.PERSONAL]
    elif kind == "adapted":
        model = adapted_language_model.AdaptedLanguageModel
        sizes = {"parts": parts, "start": start}
        sizes.update(prefix_length=prefix_length, num_users=num_users or 1)
        sizes.update(lora_rank=lora_rank, lora_matrices=lora_matrices)
        del input_spec["context"]
        owned = adapted_language_model.own_layers(parts or {})
        lookups = dict.fromkeys(owned, "user")
    elif kind == "generated":
        model = generated_prefix_model.GeneratedPrefixModel
        input_spec["history"] = tf.TensorSpec([None, history_length], tf.int32)
    elif kind == "split_head":
        model = head_language_model.HeadModel
        sizes = {"num_contexts": num_contexts, "initial": initial}
        lookups = {head_language_model.CONTEXT_HEAD: "context"}
        del input_spec["user"]
    elif kind == "shared_head":
        model, sizes, lookups = head_language_model.HeadModel, {"initial": initial}, {}
        input_spec = {"text": input_spec["text"]}
    return PartitionedModel(
        lambda: model(base.config, **sizes),
        local_layers=local_layers,
        frozen_layers=(prefix_language_model.BASE,),
        frozen=frozen,
        loss=sum_utterance_losses,
        metrics=[perplexity()],
        lookups=lookups,
        owned_tables=owned if num_users else [],
        input_spec=input_spec,
        label_spec=tf.TensorSpec([None, None], tf.int32),
        example_weight=count_utterance_tokens,
        unit="tokens",
        sequence_length=lambda features, labels: tf.cast(count_utterance_tokens(labels), tf.int32),
        chunk_places=_CHUNK_PLACES,
    )
