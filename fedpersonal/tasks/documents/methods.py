"""The configurations that document classification compares (Bui et al., Table 2), and more.

A method says who trains, where users' embeddings are, and which layers are each user's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm, GradientPhase, Phase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_per import fed_per
from fedpersonal.algorithms.fed_rep import fed_rep
from fedpersonal.algorithms.furl import furl
from fedpersonal.algorithms.lg_fed_avg import lg_fed_avg
from fedpersonal.model.metrics import binary_accuracy, class_accuracy
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.document_classifier import count_characters, document_classifier
from fedpersonal.optimizers.rate_schedule import LinearDecay, ScheduledOptimizer
from fedpersonal.tasks.documents.data import DocumentData

USER_LAYER = "user_embedding"
LOCAL_STATES = ("kept", "rebuilt")


@dataclasses.dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        title: Its name in the paper's tables, or its own.
        is_federated: Whether clients train, or one server on all data.
        knows_users: Whether the model has user embeddings.
        local_layers: The layers that are each user's own.
    """

    title: str
    is_federated: bool
    knows_users: bool
    local_layers: tuple[str, ...] = ()


METHODS = {
    "centralized": Method("Global Server", False, False),
    "centralized_personalized": Method("Personalized Server", False, True),
    "fed_avg": Method("Global FL", True, False),
    "furl": Method("Personalized FL", True, True, (USER_LAYER,)),
    "fed_per": Method("FedPer", True, False, ("logits",)),
    "fed_rep": Method("FedRep", True, False, ("logits",)),
    "lg_fed_avg": Method("LG-FedAvg", True, False, ("characters", "encoder")),
}


def build_model(data: DocumentData, method: Method, **sizes: Any) -> PartitionedModel:
    """Returns the document model, split as a method wants it.

    Args:
        data: The texts, for the numbers of characters, labels and users.
        method: The method.
        **sizes: Of `document_classifier`.
    """
    has_table = method.knows_users and not method.local_layers
    num_users = data.num_users if has_table else 1
    if data.is_binary:
        loss: Any = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    else:
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return PartitionedModel(
        document_classifier(
            num_characters=data.characters.size,
            num_outputs=1 if data.is_binary else len(data.label_names),
            num_users=num_users if method.knows_users else None,
            **sizes,
        ),
        local_layers=method.local_layers,
        loss=loss,
        metrics=[binary_accuracy() if data.is_binary else class_accuracy()],
        lookups={USER_LAYER: "user"} if method.knows_users else {},
        owned_tables=[USER_LAYER] if has_table else [],
        label_spec=tf.TensorSpec([None], tf.float32 if data.is_binary else tf.int32),
        sequence_length=count_characters,
    )


def build_algorithm(name: str, options: Any) -> Algorithm:
    """Returns what a client does in a round.

    Args:
        name: One of `METHODS`.
        options: `DocumentOptions`.
    """
    sgd = tff.learning.optimizers.build_sgdm
    private = sgd(options.local_learning_rate)
    if options.decay_rounds and METHODS[name].is_federated:
        private = ScheduledOptimizer(private, LinearDecay(options.decay_rounds))
    shared = {
        "client_optimizer": sgd(options.client_learning_rate),
        "epochs": options.local_epochs,
        "max_steps": options.max_steps,
        "weighting": options.weighting,
        "max_update_norm": options.max_update_norm,
    }
    if name == "centralized_personalized":
        algorithm = fed_avg(**shared, optimizers={USER_LAYER: private})
    elif name in ("centralized", "fed_avg"):
        algorithm = fed_avg(**shared)
    elif name == "fed_rep":
        algorithm = fed_rep(
            **shared, local_optimizer=private, local_only_epochs=options.local_only_epochs
        )
    else:
        build = {"furl": furl, "fed_per": fed_per, "lg_fed_avg": lg_fed_avg}[name]
        algorithm = build(**shared, local_optimizer=private)
    has_state = algorithm.keeps and options.local_state == "rebuilt"
    return algorithm.stateless_twin() if has_state else algorithm


def rebuilding_phases(options: Any) -> tuple[Phase, ...]:
    """Returns what builds a user's local variables where none are kept: FedRecon's reconstruction.

    Args:
        options: `DocumentOptions`.
    """
    return (
        GradientPhase(
            variables="local",
            data="all",
            optimizer=tff.learning.optimizers.build_sgdm(options.reconstruction_learning_rate),
            epochs=options.reconstruction_epochs,
        ),
    )
