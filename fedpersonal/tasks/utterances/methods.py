"""FedPerC and its baselines (Silva et al., section 4): who has which variables, and what moves."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm, GradientPhase, Phase
from fedpersonal.algorithms.fedperc import fedperc
from fedpersonal.language_models.base_model import BaseModel
from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models import generated_prefix_model, head_language_model, prefix_language_model
from fedpersonal.models.frozen_gpt2 import frozen_values
from fedpersonal.models.utterance_prediction import (
    count_utterance_tokens,
    perplexity,
    sum_utterance_losses,
)

HEAD = "wte/embeddings"

# With 256 or 512 a round takes about as long, with 1,024 a tenth longer.
_CHUNK_PLACES = 384


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        title: Its name in the paper's tables.
        local_layers: The layers that are each client's own.
        keeps: Whether clients keep them from round to round.
        moving_layers: Those that training moves, or None for all that are not frozen.
        fine_tunes: Whether a client's copy is trained further at test.
        reads_history: Whether the model reads other texts of the client.
        fresh_heads: Whether heads start at random, instead of as the base model's.
    """

    title: str
    local_layers: tuple[str, ...] = ()
    keeps: bool = False
    moving_layers: tuple[str, ...] | None = None
    fine_tunes: bool = True
    reads_history: bool = False
    fresh_heads: bool = False


METHODS = {
    "fedperc": Method("FedPerC", (prefix_language_model.PERSONAL,), keeps=True),
    "fedperc_generated": Method(
        "FedPerC (Generated)",
        (prefix_language_model.PERSONAL,),
        moving_layers=(
            prefix_language_model.CONTEXT,
            generated_prefix_model.PERSONAL_GENERATOR,
            generated_prefix_model.CONTEXT_GENERATOR,
        ),
        fine_tunes=False,
        reads_history=True,
    ),
    "split_learning": Method("Split-Learning", (head_language_model.PERSONAL_HEAD,), keeps=True),
    "split_learning_fresh": Method(
        "Split-Learning (Fresh)",
        (head_language_model.PERSONAL_HEAD,),
        keeps=True,
        fresh_heads=True,
    ),
    "meta_learning": Method("Meta-Learning"),
    "meta_learning_fresh": Method("Meta-Learning (Fresh)", fresh_heads=True),
}


def freeze(base: BaseModel, folder: Any) -> FrozenVariables:
    """Writes a base model's weights where workers can map them; see `FrozenVariables.write`."""
    layer = f"{prefix_language_model.NAME}/{prefix_language_model.BASE}"
    return FrozenVariables.write(folder, frozen_values(layer, base.weights))


def build_model(
    name: str,
    base: BaseModel,
    frozen: FrozenVariables,
    *,
    num_contexts: int,
    history_length: int,
) -> PartitionedModel:
    """Returns a method's model around a frozen base.

    Args:
        name: One of `METHODS`.
        base: The base model.
        frozen: Its weights, from `freeze`.
        num_contexts: How many contexts there are.
        history_length: Tokens from which a method that reads a history generates embeddings.
    """
    method = METHODS[name]
    start = base.weights[HEAD][base.config.bos_token_id]
    if method.fresh_heads:
        initial = head_language_model.fresh(base.config)
    else:
        layer = f"{prefix_language_model.NAME}/{prefix_language_model.BASE}"
        (full_name,) = frozen_values(layer, {HEAD: None})
        initial = head_language_model.as_base(lambda: tf.transpose(frozen.tensor(full_name)))
    input_spec = dict(prefix_language_model.INPUT_SPEC)
    lookups = {
        prefix_language_model.PERSONAL: "user",
        prefix_language_model.CONTEXT: "context",
    }
    if name == "fedperc":
        build = prefix_language_model.prefix_language_model(
            base.config, num_contexts=num_contexts, start=start
        )
    elif name == "fedperc_generated":
        build = generated_prefix_model.generated_prefix_model(
            base.config, num_contexts=num_contexts, start=start
        )
        input_spec["history"] = tf.TensorSpec([None, history_length], tf.int32)
    elif head_language_model.PERSONAL_HEAD in method.local_layers:
        build = head_language_model.split_head_model(
            base.config, num_contexts=num_contexts, initial=initial
        )
        lookups = {head_language_model.CONTEXT_HEAD: "context"}
        del input_spec["user"]
    else:
        build = head_language_model.shared_head_model(base.config, initial=initial)
        lookups = {}
        input_spec = {"text": input_spec["text"]}
    return PartitionedModel(
        build,
        local_layers=method.local_layers,
        frozen_layers=(prefix_language_model.BASE,),
        frozen=frozen,
        loss=sum_utterance_losses,
        metrics=[perplexity()],
        lookups=lookups,
        input_spec=input_spec,
        label_spec=tf.TensorSpec([None, None], tf.int32),
        example_weight=count_utterance_tokens,
        unit="tokens",
        sequence_length=_sequence_length,
        chunk_places=_CHUNK_PLACES,
    )


def _sequence_length(features: Any, labels: tf.Tensor) -> tf.Tensor:
    del features
    return tf.cast(count_utterance_tokens(labels), tf.int32)


def build_algorithm(name: str, options: Any) -> Algorithm:
    """Returns what a client does in a round.

    Args:
        name: One of `METHODS`.
        options: `UtteranceOptions`.
    """
    method = METHODS[name]
    algorithm = fedperc(
        client_optimizer=tff.learning.optimizers.build_adam(options.client_learning_rate),
        local_steps=options.local_steps,
        proximal=options.proximal,
        layers=method.moving_layers,
        weighting=options.weighting,
    )
    local = "kept" if method.keeps else "rebuilt" if method.local_layers else "none"
    return dataclasses.replace(algorithm, name=name, local_variables=local)


def finetuning_phases(name: str, options: Any) -> tuple[Phase, ...]:
    """Returns what trains a client's copy at test (appendix B): nothing for generated embeddings.

    Args:
        name: One of `METHODS`.
        options: `UtteranceOptions`.
    """
    if not METHODS[name].fine_tunes or not options.finetuning_steps:
        return ()
    return (
        GradientPhase(
            variables="all",
            data="all",
            optimizer=tff.learning.optimizers.build_adam(options.finetuning_learning_rate),
            epochs=options.finetuning_steps,
            max_steps=options.finetuning_steps,
        ),
    )
