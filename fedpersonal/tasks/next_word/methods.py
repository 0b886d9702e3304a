"""The methods that next word prediction compares (Singhal et al., section 5.2 and Table 2).

A method is a way to train and a way to personalise the trained model before it predicts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm, GradientPhase, Phase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.data.vocabulary import EOS, Vocabulary
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.next_word_lstm import next_word_lstm
from fedpersonal.models.token_prediction import count_tokens, sum_cross_entropy, token_accuracy

LOCAL_LAYER = "oov_embedding"


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        rebuilds: Whether training is FedRecon's, with local OOV embeddings, or FedAvg's of a
            wholly global model.
        fine_tunes: The layers that a client fine-tunes from their global values, `all`, or none.
        server_optimizer: Its usual server optimizer.
        num_oov_buckets: Its usual number of hash buckets.
    """

    rebuilds: bool
    fine_tunes: str | tuple[str, ...] | None
    server_optimizer: str
    num_oov_buckets: int

    @property
    def trains_like(self) -> tuple[bool, str]:
        """Methods with equal values here train the same model."""
        return self.rebuilds, self.server_optimizer


METHODS = {
    "fed_yogi": Method(False, None, "yogi", 1),
    "fed_adam": Method(False, None, "adam", 1),
    "fed_avg": Method(False, None, "sgd", 1),
    "fed_recon": Method(True, None, "yogi", 500),
    "oov_finetuning": Method(False, (LOCAL_LAYER,), "yogi", 500),
    "full_finetuning": Method(False, "all", "yogi", 500),
    "fed_recon_finetuning": Method(True, "global", "yogi", 500),
}


def build_model(vocabulary: Vocabulary, *, rebuilds: bool, **sizes: Any) -> PartitionedModel:
    """Returns the next word model, its OOV embedding local where a method rebuilds it.

    Args:
        vocabulary: The words' ids.
        rebuilds: Whether the OOV embedding is local.
        **sizes: Of `next_word_lstm`.
    """
    num_known = vocabulary.num_known
    return PartitionedModel(
        next_word_lstm(num_known=num_known, num_oov_buckets=vocabulary.num_oov_buckets, **sizes),
        local_layers=(LOCAL_LAYER,) if rebuilds else (),
        loss=sum_cross_entropy,
        metrics=(
            token_accuracy("accuracy"),
            token_accuracy("accuracy_without_oov", num_known=num_known),
            token_accuracy("accuracy_without_oov_or_eos", num_known=num_known, without=(EOS,)),
            token_accuracy(
                "accuracy_among_known", num_known=num_known, without=(EOS,), among_known=True
            ),
        ),
        lookups={"known_embedding": "known_token", LOCAL_LAYER: "oov_token"},
        label_spec=tf.TensorSpec([None, None], tf.int32),
        example_weight=count_tokens,
        unit="tokens",
        sequence_length=lambda features, labels: count_tokens(labels),
    )


def build_algorithm(method: Method, options: Any) -> Algorithm:
    """Returns what clients do in training.

    Args:
        method: The method.
        options: `NextWordOptions`.
    """
    sgd = tff.learning.optimizers.build_sgdm
    common = {"weighting": options.weighting, "max_update_norm": options.max_update_norm}
    if not method.rebuilds:
        return fed_avg(
            client_optimizer=sgd(options.client_learning_rate),
            epochs=options.local_epochs,
            max_steps=options.max_local_steps,
            **common,
        )
    return fed_recon(
        client_optimizer=sgd(options.client_learning_rate),
        reconstruction_optimizer=sgd(options.reconstruction_learning_rate),
        split=options.split,
        reconstruction_epochs=options.reconstruction_epochs,
        max_reconstruction_steps=options.max_reconstruction_steps,
        local_epochs=options.local_epochs,
        max_local_steps=options.max_local_steps,
        joint_training=options.joint_training,
        **common,
    )


def build_personalization(method: Method, options: Any) -> tuple[Phase, ...]:
    """Returns the phases, on a client's support set, before it predicts its query set.

    Args:
        method: The method.
        options: `NextWordOptions`.
    """
    phases = build_algorithm(method, options).phases[:1] if method.rebuilds else ()
    if method.fine_tunes is None:
        return phases
    # The OOV embedding alone is fine-tuned as FedRecon rebuilds it, for a fair comparison.
    part = "reconstruction" if method.fine_tunes == (LOCAL_LAYER,) else "finetuning"
    finetuning = GradientPhase(
        variables=method.fine_tunes,
        data="all",
        optimizer=tff.learning.optimizers.build_sgdm(getattr(options, f"{part}_learning_rate")),
        epochs=getattr(options, f"{part}_epochs"),
        max_steps=getattr(options, f"max_{part}_steps"),
    )
    return (*phases, finetuning)
