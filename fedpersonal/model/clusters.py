"""A model of which the server has several, one for each cluster of clients.

Each clustered variable has one axis more, the last: a value for each cluster. A client has a local
variable that is 1 for the cluster that it has chosen and 0 for the others, and applies the model
with that cluster's values. So its gradients of all other values are 0, and what it sends of them
is, too. Of a lookup table the first axis still is that of rows.

What a client sends tells which cluster it has chosen. The server may have a variable for that, of
which the mean over clients is how many have chosen each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from fedpersonal.errors import UserError
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
    ):
        """Adds the axis of clusters, and the client's choice.

        Args:
            base: The model.
            num_clusters: How many clusters there are.
            layers: What is clustered: names of layers or global variables; none for all.
            has_shares: Whether the server learns how many have chosen each cluster.

        Raises:
            UserError: If a name chooses no variable, there is none to cluster, or clusters would
                all start alike.
        """
        self._take_over(base)
        check_names("clusters", layers, base.global_variables)
        chosen = [v for v in base.global_variables if not layers or v.first_name(layers)]
        self.num_clusters, self.clustered = num_clusters, frozenset(v.name for v in chosen)
        every = [_of_each(v, num_clusters) if v in chosen else v for v in base.variables]
        if has_shares:
            every.append(_state(CLUSTER_SHARES, num_clusters * [1.0 / num_clusters]))
        first = [1.0] + (num_clusters - 1) * [0.0]
        self.variables = (*every, _state(CLUSTER, first, is_local=True))
        self.global_variables = tuple(v for v in self.variables if not v.is_local)
        self.local_variables = tuple(v for v in self.variables if v.is_local)
        self._check_starts()

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
        choice = values[CLUSTER]
        own = {name: tf.reduce_sum(values[name] * choice, -1) for name in self.clustered}
        return {**values, **own}


def _of_each(variable: VariableSpec, num_clusters: int) -> VariableSpec:
    def draw(seed: tf.Tensor) -> tf.Tensor:
        # The first cluster starts as the model without clusters does.
        seeds = [seed + [0, 104729 * cluster] for cluster in range(num_clusters)]
        return tf.stack([variable.initializer(own) for own in seeds], -1)

    shape = (*variable.shape, num_clusters)
    return dataclasses.replace(variable, shape=shape, initializer=each_seed(draw))


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
