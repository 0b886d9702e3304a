"""A model with several versions on the server, one for each cluster of clients.

Each clustered variable has an additional last axis: a value for each cluster. A lookup table still
has rows in its first axis. A client has a local variable that is 1 for the cluster that it has
chosen and 0 for the others, and applies the model with that cluster's values. Its gradients for all
other values, and the updates that it sends for them, are therefore 0.

A client's update reveals which cluster it has chosen. The server may have a variable for the
choices: its mean over clients is the share of clients that have chosen each cluster.

Alternatively, a client mixes the clusters: it applies the model with the values of each, and its
local variable holds the weight of each. The probability of a class is then the weighted mean of
the clusters' probabilities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.classes import as_output, check_classes, log_probabilities, safe_log
from fedpersonal.model.keras import are_probabilities, takes_logits
from fedpersonal.model.names import CLUSTER, CLUSTER_SHARES
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec, check_names, each_seed


class ClusteredModel(PartitionedModel):
    """A partitioned model with several values of global variables; each client chooses one."""

    def __init__(
        self,
        base: PartitionedModel,
        num_clusters: int,
        layers: Sequence[str] = (),
        *,
        has_shares: bool = False,
        mixes: bool = False,
    ):
        """Adds the axis of clusters and the client's choice or weights.

        Args:
            base: The model.
            num_clusters: Number of clusters.
            layers: Names of the layers or global variables to cluster; none for all.
            has_shares: Whether the server learns the share of clients that have chosen each
                cluster.
            mixes: Whether a client mixes all clusters, with equal weights at first.

        Raises:
            UserError: If a name chooses no variable, there is none to cluster, all clusters would
                start alike, or clusters are mixed and labels are numbers.
        """
        self._share_state(base)
        check_names("clusters", layers, base.global_variables)
        chosen = [v for v in base.global_variables if not layers or v.first_name(layers)]
        self.num_clusters, self.clustered = num_clusters, frozenset(v.name for v in chosen)
        every = [_for_each_cluster(v, num_clusters) if v in chosen else v for v in base.variables]
        equal, self.mixes = num_clusters * [1.0 / num_clusters], mixes
        if has_shares:
            every.append(_state(CLUSTER_SHARES, equal))
        first = equal if mixes else [1.0] + (num_clusters - 1) * [0.0]
        self.variables = (*every, _state(CLUSTER, first, is_local=True))
        self.global_variables = tuple(v for v in self.variables if not v.is_local)
        self.local_variables = tuple(v for v in self.variables if v.is_local)
        self._check_starts()
        if mixes and base.label_spec.dtype.is_floating and base.label_range is None:
            raise UserError(
                "mixtures of clusters require labels that are classes, and a cross-entropy; the "
                f"loss {base.given_loss!r} is for numbers."
            )
        if mixes and not base.has_mean_loss:
            raise UserError(
                "mixtures of clusters require a loss that is a mean over examples: leave out "
                f"Keras' masks, and the reduction or `__call__` of {base.given_loss!r}."
            )

    def _check_starts(self) -> None:
        """Raises a UserError if all clusters have the same initial values."""
        clustered = [v for v in self.global_variables if v.name in self.clustered]
        for variable in sorted(clustered, key=lambda v: v.size):
            value = self._sample([variable], [0, 0])[variable.name]
            if (value != value[..., :1]).any():
                return
        raise UserError(
            f"clusters: all {self.num_clusters} would start alike, since the model has no global "
            "variable with a random initial value; give a function that builds it, with random "
            "initializers."
        )

    def as_keras_values(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Returns values in which the client's cluster replaces all clusters."""
        if self.mixes:
            raise UserError(
                f"the clients mix {self.num_clusters} models: no single Keras model predicts as "
                "they do."
            )
        choice = values[CLUSTER]
        chosen = {name: tf.reduce_sum(values[name] * choice, -1) for name in self.clustered}
        return {**values, **chosen}

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], **options: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """See `PartitionedModel`; losses that the model adds are averaged over clusters."""
        if not self.mixes:
            return super().predict(values, features, **options)
        weights = safe_log(values[CLUSTER] / tf.reduce_sum(values[CLUSTER]))
        logs, added = [], []
        for number in range(self.num_clusters):
            cluster = {name: values[name][..., number] for name in self.clustered}
            output, losses = self.base.predict({**values, **cluster}, features, **options)
            self._check_mixed(output)
            logs.append(weights[number] + log_probabilities(output))
            added.append(losses)
        mixed = as_output(tf.reduce_logsumexp(tf.stack(logs), 0), output)
        # Added losses do not depend on labels, from which the weights follow: they get equal ones.
        return mixed, [tf.add_n(each) / self.num_clusters for each in zip(*added)]

    def _check_mixed(self, output: tf.Tensor) -> None:
        """Raises a UserError unless an output has logits or probabilities as the loss requires."""
        check_classes(output, self.label_spec, "mixtures of clusters")
        requires_logits = takes_logits(self.given_loss)
        if requires_logits == are_probabilities(output):
            raise UserError(
                "mixtures of clusters require an output as the loss takes it, and Keras' softmax "
                f"or sigmoid for probabilities: {self.given_loss!r} takes "
                f"{'logits' if requires_logits else 'probabilities'}, and the output has others."
            )


def _for_each_cluster(variable: VariableSpec, num_clusters: int) -> VariableSpec:
    def initialize(seed: tf.Tensor) -> tf.Tensor:
        # The first cluster starts as the model without clusters does.
        seeds = [seed + [0, 104729 * cluster] for cluster in range(num_clusters)]
        return tf.stack([variable.initializer(each) for each in seeds], -1)

    def constrain(value: tf.Tensor) -> tf.Tensor:
        assert variable.constraint is not None
        return tf.stack([variable.constraint(one) for one in tf.unstack(value, axis=-1)], -1)

    return dataclasses.replace(
        variable,
        shape=(*variable.shape, num_clusters),
        initializer=each_seed(initialize),
        constraint=None if variable.constraint is None else constrain,
    )


def _state(name: str, start: Sequence[float], *, is_local: bool = False) -> VariableSpec:
    return VariableSpec(
        name=name,
        layer=name,
        shape=(len(start),),
        dtype=tf.float32,
        is_local=is_local,
        initializer=each_seed(lambda seed: tf.constant(start)),
        names=(name,),
        is_personal=is_local,
        is_state=True,
    )
