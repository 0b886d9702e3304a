"""The noisy mean of clients' local variables, from which new clients start (FedPerC, section 3.2).

No other tensor that is computed from local variables crosses the boundary. Each client's values are
clipped before they leave, noise is added to their sum, and the crossing is declared to the
boundary's check.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.federated.boundary import Crossing, check_boundary
from fedpersonal.model.partition import PartitionedModel


class NoisyMean:
    """A mean of clients' clipped local variables, with Gaussian noise.

    Attributes:
        computation: Maps clients' local variables, at CLIENTS, to the mean, at SERVER.
        crossings: The tensors that it aggregates.
    """

    def __init__(
        self, model: PartitionedModel, *, clip_norm: float, noise_multiplier: float, seed: int = 0
    ):
        """Builds the computation.

        Args:
            model: The partitioned model, whose local variables are averaged.
            clip_norm: Bound on the Euclidean distance of a client's variables, taken over all of
                them, from the initial values before any training.
            noise_multiplier: Standard deviation of the noise on the sum, in units of `clip_norm`.
            seed: Seed of the noise. Anyone who knows it can remove the noise: use it in simulations
                only.

        Raises:
            ValueError: If a number is out of range, or the model has no local variables.
        """
        if not clip_norm > 0:
            raise ValueError(f"NoisyMean: clip_norm must be positive, not {clip_norm}.")
        if not noise_multiplier >= 0:
            raise ValueError(
                f"NoisyMean: noise_multiplier must be at least 0, not {noise_multiplier}."
            )
        if not model.local_variables:
            raise ValueError("NoisyMean: the model has no local variables.")
        fields = [(v.name, (np.float32, list(v.shape))) for v in model.local_variables]
        kept_type = tff.to_type(collections.OrderedDict(fields))

        def initial_values() -> Mapping[str, tf.Tensor]:
            return model.initial_values(model.local_variables, tf.constant([seed, -2]))

        @tff.tf_computation(kept_type)
        def clip(kept):
            start = initial_values()
            moved = [kept[name] - value for name, value in start.items()]
            clipped, _ = tf.clip_by_global_norm(moved, clip_norm)
            sent = collections.OrderedDict(zip(start, clipped))
            return collections.OrderedDict(clipped=sent, count=tf.ones([]))

        @tff.tf_computation(clip.type_signature.result)
        def add_noise(sums):
            mean = collections.OrderedDict()
            for i, (name, start) in enumerate(initial_values().items()):
                # Seeds of initial values count up from -2.
                noise = tf.random.stateless_normal(
                    tf.shape(start), [seed, -3 - i], stddev=noise_multiplier * clip_norm
                )
                mean[name] = start + (sums["clipped"][name] + noise) / sums["count"]
            return mean

        @tff.federated_computation(tff.FederatedType(kept_type, tff.CLIENTS))
        def noisy_mean(kept):
            return tff.federated_map(add_noise, tff.federated_sum(tff.federated_map(clip, kept)))

        self.computation = noisy_mean
        self.crossings: list[Crossing] = check_boundary(
            model, noisy_mean, declared=[f"clipped.{v.name}" for v in model.local_variables]
        )

    def __call__(self, kept: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Averages clients' local variables: name to values (num_clients, ...)."""
        kept = {name: np.asarray(value, np.float32) for name, value in kept.items()}
        clients = [
            collections.OrderedDict((name, value[i]) for name, value in kept.items())
            for i in range(len(next(iter(kept.values()))))
        ]
        return dict(self.computation(clients))
