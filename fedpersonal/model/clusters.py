"""A model of which the server has several, one for each cluster of clients.

Each clustered variable has one axis more, the last: a value for each cluster. A client has a local
variable that is 1 for the cluster that it has chosen and 0 for the others, and applies the model
with that cluster's values. So its gradients of all other values are 0, and what it sends of them
is, too. Of a lookup table the first axis still is that of rows.

What a client sends tells which cluster it has chosen. The server may have a variable for that, of
which the mean over clients is how many have chosen each.

Or a client mixes the clusters: it applies the model with the values of each, and its local variable
says how much each weighs. A class is then as likely as the clusters make it on average.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.classes import as_output, check_classes, log_likely, log_of
from fedpersonal.model.keras import are_probabilities, takes_logits
from fedpersonal.model.names import CLUSTER, CLUSTER_SHARES
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec, check_names, each_seed


class ClusteredModel(PartitionedModel):
    """A partitioned model with several values of global variables, of which clients choose."""

    def __init__(
        self,
        base: PartitionedModel,
        num_clusters: int,
        layers: Sequence[str] = (),
        *,
        has_shares: bool = False,
        mixes: bool = False,
    ):
        """Adds the axis of clusters, and the client's choice, or weights.

        Args:
            base: The model.
            num_clusters: How many clusters there are.
            layers: What is clustered: names of layers or global variables; none for all.
            has_shares: Whether the server learns how many have chosen each cluster.
            mixes: Whether a client mixes all clusters. They weigh the same at first.

        Raises:
            UserError: If a name chooses no variable, there is none to cluster, clusters would all
                start alike, or labels are numbers and clusters mixed.
        """
        self._take_over(base)
        check_names("clusters", layers, base.global_variables)
        chosen = [v for v in base.global_variables if not layers or v.first_name(layers)]
        self.num_clusters, self.clustered = num_clusters, frozenset(v.name for v in chosen)
        every = [_of_each(v, num_clusters) if v in chosen else v for v in base.variables]
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
                "mixtures of clusters are for labels that are classes, and a cross-entropy; the "
                f"loss {base.given_loss!r} is for numbers."
            )
        if mixes and not base.has_mean_loss:
            raise UserError(
                "mixtures of clusters need a loss that is a mean over examples: leave out Keras' "
                f"masks, and the reduction or `__call__` of {base.given_loss!r}."
            )

    def _check_starts(self) -> None:
        """Raises a UserError where nothing would tell one cluster from another."""
        clustered = [v for v in self.global_variables if v.name in self.clustered]
        for variable in sorted(clustered, key=lambda v: v.size):
            drawn = self._draw([variable], [0, 0])[variable.name]
            if (drawn != drawn[..., :1]).any():
                return
        raise UserError(
            f"clusters: all {self.num_clusters} would start alike, since the model has no global "
            "variable whose initial value is drawn; give a function that builds it, with random "
            "initializers."
        )

    def applied(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Returns values with those of the client's cluster in place of all clusters'."""
        if self.mixes:
            raise UserError(
                f"the clients mix {self.num_clusters} models: no single Keras model predicts as "
                "they do."
            )
        choice = values[CLUSTER]
        own = {name: tf.reduce_sum(values[name] * choice, -1) for name in self.clustered}
        return {**values, **own}

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], **options: Any
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """As of `PartitionedModel`; the losses that the model adds are the mean of clusters'."""
        if not self.mixes:
            return super().predict(values, features, **options)
        weights = log_of(values[CLUSTER] / tf.reduce_sum(values[CLUSTER]))
        logs, added = [], []
        for number in range(self.num_clusters):
            own = {name: values[name][..., number] for name in self.clustered}
            output, losses = self.base.predict({**values, **own}, features, **options)
            self._check_mixed(output)
            logs.append(weights[number] + log_likely(output))
            added.append(losses)
        mixed = as_output(tf.reduce_logsumexp(tf.stack(logs), 0), output)
        # They say nothing of labels, by which the weights are found.
        return mixed, [tf.add_n(each) / self.num_clusters for each in zip(*added)]

    def _check_mixed(self, output: tf.Tensor) -> None:
        """Raises a UserError unless an output says how likely classes are, as the loss wants it."""
        check_classes(output, self.label_spec, "mixtures of clusters")
        wants = takes_logits(self.given_loss)
        if wants == are_probabilities(output):
            raise UserError(
                "mixtures of clusters need an output as the loss takes it, and Keras' own softmax "
                f"or sigmoid for probabilities: {self.given_loss!r} takes "
                f"{'logits' if wants else 'probabilities'}, and the output has others."
            )


def _of_each(variable: VariableSpec, num_clusters: int) -> VariableSpec:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        # The first cluster starts as the model without clusters does.
        seeds = [seed + [0, 104729 * cluster] for cluster in range(num_clusters)]
        return tf.stack([variable.initializer(own) for own in seeds], -1)

    def constrain(value: tf.Tensor) -> tf.Tensor:
        assert variable.constraint is not None
        return tf.stack([variable.constraint(one) for one in tf.unstack(value, axis=-1)], -1)

    return dataclasses.replace(
        variable,
        shape=(*variable.shape, num_clusters),
        initializer=each_seed(draw),
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
