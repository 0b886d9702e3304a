"""Differential privacy of the global variables' updates, at the level of clients.

Each client's whole update is clipped to a norm, updates are summed, Gaussian noise is added, and
the sum is divided by the expected number of clients in a round, which is public (McMahan et al.,
"Learning differentially private recurrent language models", 2018). A shard sends its clients' sum.
Clients' changes of the server's states (SCAFFOLD) are a second sum, with a separate bound and
separate noise. The states of FedDyn's server follow from the noisy sum of updates, without further
privacy cost.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.steps import ClientOutput, squared_norms
from fedpersonal.client.values import Examples, align
from fedpersonal.errors import UserError, check_choice
from fedpersonal.federated.server import (
    Averaging,
    Mean,
    Server,
    ShardReduction,
    sum_clients,
    summing_server,
)
from fedpersonal.federated.states import StatefulServer, sum_states
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.model.variables import VariableSpec

CLIPPINGS = ("adaptive", "fixed")
NOISES = ("seeded", "secret")

# Andrew et al. recommend both.
_CLIPPING_RATE = 0.2
_COUNT_NOISE = 0.05
# Separates the noise from other random numbers of the same seed.
_NOISE = 0x6E6F6973


@dataclasses.dataclass(frozen=True)
class DifferentialPrivacy:
    """Clipping and noise that protect clients' updates.

    The resulting epsilon depends on how clients are sampled: see `PrivacyBudget`.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum, as a multiple of the bound on
            a client's update; if clipping is adaptive, of the whole mechanism. 0 gives no privacy.
        clip_norm: Bound on the Euclidean norm of a client's update, over all global variables; if
            clipping is adaptive, the initial bound.
        clipping: `fixed`, or `adaptive`: the bound follows a quantile of the updates' norms (Andrew
            et al., "Differentially private learning with adaptive clipping", 2021, algorithm 1).
        target_quantile: The share of clients whose updates an adaptive bound should not clip.
        noise: `seeded`: the noise and the sampled clients follow from the run's seed, so anyone who
            knows the seed knows both, and can remove the noise. `secret`: both follow from a random
            secret of the operating system, which no file keeps after the run.
        delta: The chance that the epsilon does not hold; None for the number of clients to the
            power of -1.1.
        expected_clients: The mean number of clients in a round, by which the sum is divided; None
            for the `clients_per_round` of the `Trainer`.
        state_clip_norm: Bound on the Euclidean norm of a client's changes of the server's states,
            over all states, for a method with states (`scaffold`). Their sum gets separate noise:
            both sums then have the square root of 2 times the noise, and jointly form one Gaussian
            mechanism of `noise_multiplier`.

    Examples:
        With `model` and `clients` of `Trainer`'s example:

        >>> sgd = tf.keras.optimizers.SGD(0.1)
        >>> algorithm = fp.fed_per(client_optimizer=sgd, weighting="uniform")
        >>> privacy = fp.DifferentialPrivacy(4.0, clip_norm=0.5, clipping="fixed", delta=1e-3)
        >>> trainer = fp.Trainer(model, algorithm, clients, clients_per_round=2, privacy=privacy)
        >>> round(trainer.budget.epsilon(rounds=10), 1)
        6.0
    """

    noise_multiplier: float
    clip_norm: float = 0.1
    clipping: str = "adaptive"
    target_quantile: float = 0.5
    noise: str = "seeded"
    delta: float | None = None
    expected_clients: float | None = None
    state_clip_norm: float | None = None

    def __post_init__(self):
        check_choice("DifferentialPrivacy", "clipping", self.clipping, CLIPPINGS)
        check_choice("DifferentialPrivacy", "noise", self.noise, NOISES)
        is_in_range = {
            "noise_multiplier": 0 <= self.noise_multiplier < math.inf,
            "clip_norm": 0 < self.clip_norm < math.inf,
            "target_quantile": 0 <= self.target_quantile <= 1,
            "expected_clients": self.expected_clients is None or self.expected_clients > 0,
            "state_clip_norm": self.state_clip_norm is None or 0 < self.state_clip_norm < math.inf,
        }
        for name, is_valid in is_in_range.items():
            if not is_valid:
                value = getattr(self, name)
                raise UserError(f"DifferentialPrivacy: {name}={value} is out of range.")
        if self.clipping == "fixed" and self.target_quantile != DifferentialPrivacy.target_quantile:
            raise UserError(
                f"DifferentialPrivacy: target_quantile={self.target_quantile} has no effect with "
                "clipping='fixed': leave it out."
            )

    @property
    def is_secret(self) -> bool:
        """Whether the noise and the sampled clients follow from a secret."""
        return self.noise == "secret"

    @property
    def count_noise(self) -> float:
        """Standard deviation of the noise on the number of clients within an adaptive bound."""
        # At least the noise multiplier: with less, none of the multiplier were left for updates.
        assert self.expected_clients
        is_noisy = self.noise_multiplier > 0
        return max(_COUNT_NOISE * self.expected_clients, self.noise_multiplier) if is_noisy else 0.0

    @property
    def update_noise_multiplier(self) -> float:
        """Standard deviation of the noise on the sum of updates, as a multiple of the bound.

        Both the sum and the count are released, the count with a sensitivity of 1/2; jointly they
        form one Gaussian mechanism of `noise_multiplier` (Andrew et al., theorem 1). A sum of
        states is part of it, with the same noise in units of its bound.
        """
        if not self.noise_multiplier:
            return 0.0
        precision = self.noise_multiplier**-2
        if self.clipping == "adaptive":
            precision -= (2 * self.count_noise) ** -2
        sums = 1 if self.state_clip_norm is None else 2
        return (precision / sums) ** -0.5


def private_server(
    model: PartitionedModel,
    algorithm: Algorithm,
    optimizer: StatefulServer,
    privacy: DifferentialPrivacy,
    *,
    seed: int,
    secret_seed: int | None = None,
) -> Server:
    """Returns the server for shards that send the sum of their clients' clipped updates.

    Secret noise follows from `secret_seed`, of 126 bits.

    Raises:
        UserError: If the algorithm or the model would let a client's contribution escape its bound.
    """
    if algorithm.weighting != "uniform":
        raise UserError(
            "differential privacy bounds every client alike: weighting must be uniform, not "
            f"{algorithm.weighting}."
        )
    if model.server_rows_per_client:
        raise UserError(
            f"each row of {sorted(model.server_rows_per_client)} belongs to one client, which "
            "noise on the row could not hide; make the layer local, or train without differential "
            "privacy."
        )
    expected = privacy.expected_clients
    if expected is None:
        raise UserError("DifferentialPrivacy: expected_clients is missing.")
    if optimizer.sent_states and privacy.state_clip_norm is None:
        raise UserError(
            f"{algorithm.name} sends changes of the server's states, which need a separate bound: "
            "pass DifferentialPrivacy(state_clip_norm=...), or use a method without server states."
        )
    if privacy.state_clip_norm is not None and not optimizer.sent_states:
        raise UserError(
            f"DifferentialPrivacy: state_clip_norm={privacy.state_clip_norm} has no effect, since "
            f"clients of {algorithm.name} send no states: leave it out."
        )
    is_adaptive = privacy.clipping == "adaptive"
    first = collections.OrderedDict(clip_norm=np.float32(privacy.clip_norm)) if is_adaptive else ()
    base = [seed, _NOISE]
    if privacy.is_secret:
        if secret_seed is None:
            raise UserError("DifferentialPrivacy: secret noise needs a secret_seed.")
        base = [*divmod(secret_seed, 2**63)]

    def reduction(start: Values, received: Any) -> ShardReduction:
        bound = received["clip_norm"] if is_adaptive else tf.constant(privacy.clip_norm)

        def reduce(examples: Examples, output: ClientOutput) -> collections.OrderedDict:
            sums = _sum_clipped(model, start, examples, output, bound, with_count=is_adaptive)
            if optimizer.sent_states:
                sums["states"] = _sum_clipped_states(
                    optimizer.sent_states, examples, output, privacy
                )
            return sums

        return ShardReduction(reduce)

    def average(state: Any, sums: Any, round_number: tf.Tensor) -> Mean:
        sample_noise = _GaussianNoise(base, round_number)
        bound = state["clip_norm"] if is_adaptive else privacy.clip_norm
        multiplier = privacy.update_noise_multiplier

        def add_noise(totals: Values, bound: Any) -> collections.OrderedDict:
            deviation = multiplier * bound if multiplier else 0.0
            return collections.OrderedDict(
                (name, total + sample_noise(total.shape, deviation))
                for name, total in totals.items()
            )

        updates = add_noise(sums["updates"], bound)
        states: Values = {}
        if "states" in sums:
            states = add_noise(sums["states"], privacy.state_clip_norm)
        mean = collections.OrderedDict((name, sum_ / expected) for name, sum_ in updates.items())
        if not is_adaptive:
            return Mean(mean, (), {}, states, updates, None)
        excess = sums["excess_within"] + sample_noise([], privacy.count_noise)
        within = tf.clip_by_value(excess / expected + 0.5, 0.0, 1.0)
        factor = tf.exp(-_CLIPPING_RATE * (within - privacy.target_quantile))
        next_state = collections.OrderedDict(clip_norm=bound * factor)
        return Mean(mean, next_state, {"clip_norm": bound}, states, updates, None)

    server = summing_server(model, optimizer, seed=seed, averaging=Averaging(first, average))
    server = server._replace(reduction=reduction)
    if not is_adaptive:
        return server
    broadcast_type = tff.to_type(collections.OrderedDict(clip_norm=np.float32))
    return server._replace(
        broadcast=lambda state: tff.federated_broadcast(state.aggregator),
        broadcast_type=broadcast_type,
    )


def _sum_clipped(
    model: PartitionedModel,
    start: Values,
    examples: Examples,
    output: ClientOutput,
    bound: tf.Tensor,
    *,
    with_count: bool,
) -> collections.OrderedDict:
    """Sums a shard's clipped updates; for adaptive clipping, counts updates within the bound.

    An update within the bound counts as 1/2, another one as -1/2.
    """
    norms = tf.sqrt(squared_norms(output.updates))
    exists = examples.exists
    # An update becomes 0 if its norm is not finite.
    scales = exists * tf.math.divide_no_nan(bound, tf.maximum(norms, bound))
    sums = sum_clients(model, start, examples.rows, output._replace(weights=scales))
    del sums["weight"]
    if with_count:
        within = tf.cast(norms <= bound, tf.float32)
        sums["excess_within"] = tf.reduce_sum(exists * (within - 0.5))
    return sums


def _sum_clipped_states(
    sent: Sequence[VariableSpec],
    examples: Examples,
    output: ClientOutput,
    privacy: DifferentialPrivacy,
) -> collections.OrderedDict:
    """Sums a shard's clients' changes of states, each client's clipped."""
    norms = tf.sqrt(squared_norms({v.name: output.states[v.name] for v in sent}))
    bound = privacy.state_clip_norm
    # As in `_sum_clipped`.
    scales = examples.exists * tf.math.divide_no_nan(bound, tf.maximum(norms, bound))
    clipped = {k: s * align(scales, s.shape.rank) for k, s in output.states.items()}
    return sum_states(sent, output._replace(states=clipped))


class _GaussianNoise:
    """A sampler of Gaussian noise, which differs between rounds and between calls.

    A round that is repeated from the same state gets the same noise.
    """

    def __init__(self, base: list[int], round_number: tf.Tensor):
        self._seed = tf.random.experimental.stateless_fold_in(
            tf.constant(base, tf.int64), tf.cast(round_number, tf.int64)
        )
        self._calls = 0

    def __call__(self, shape: Any, deviation: tf.Tensor | float) -> tf.Tensor:
        if isinstance(deviation, float) and not deviation:
            return tf.zeros(shape)
        seed = tf.random.experimental.stateless_fold_in(self._seed, self._calls)
        self._calls += 1
        # Box and Muller's transform, as in TensorFlow, whose code takes longer: sampling noise is
        # most of the time that privacy costs.
        count = math.prod(shape)
        uniform = tf.random.stateless_uniform([2, (count + 1) // 2], seed)
        radius, angle = tf.sqrt(-2.0 * tf.math.log(1.0 - uniform[0])), 2 * math.pi * uniform[1]
        normal = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)
        return deviation * tf.reshape(normal[:count], shape)
