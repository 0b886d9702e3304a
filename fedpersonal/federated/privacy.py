"""Differential privacy of the global variables' updates, at the level of clients.

Each client's whole update is clipped to a norm, updates are summed, Gaussian noise is added, and
the sum is divided by the clients expected in a round, which is no secret (McMahan et al., "Learning
differentially private recurrent language models", 2018). What a shard sends is its clients' sum.
What clients send of the server's states (SCAFFOLD) is a second sum, with a bound and noise of its
own. What FedDyn's server remembers follows from the noisy sum of updates, and costs nothing.
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
    Summary,
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
# What tells the noise's draws from others of the same seed.
_NOISE = 0x6E6F6973


@dataclasses.dataclass(frozen=True)
class DifferentialPrivacy:
    """What is done to clients' updates for the sake of their privacy.

    What it amounts to, an epsilon, depends on how clients are drawn: see `PrivacyBudget`.

    Attributes:
        noise_multiplier: Standard deviation of the noise on the sum, as a multiple of the bound on
            a client's update; where clipping is adaptive, of the whole mechanism. 0 is no privacy.
        clip_norm: Bound on the Euclidean norm of a client's update, all global variables together;
            the first one where clipping is adaptive.
        clipping: `fixed`, or `adaptive`: the bound follows a quantile of the updates' norms (Andrew
            et al., "Differentially private learning with adaptive clipping", 2021, algorithm 1).
        target_quantile: The share of clients whose updates are to be within an adaptive bound.
        noise: `seeded`: the noise, and who is drawn, follow from the run's seed, so anyone who
            knows it knows both, and can remove the noise. `secret`: both follow from a secret that
            the operating system draws, and that is gone when the run has ended.
        delta: The chance that the epsilon does not hold; None for the number of clients to the
            power of -1.1.
        expected_clients: Clients that a round has on average, by which the sum is divided; None for
            the `clients_per_round` of the `Trainer`.
        state_clip_norm: Bound on the Euclidean norm of what a client sends of the server's states,
            all together, for a method that has some (`scaffold`). Their sum gets noise of its own:
            both sums then have the square root of 2 times the noise, and are together one Gaussian
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
        for name, is_right in is_in_range.items():
            if not is_right:
                value = getattr(self, name)
                raise UserError(f"DifferentialPrivacy: {name}={value} is out of range.")
        if self.clipping == "fixed" and self.target_quantile != DifferentialPrivacy.target_quantile:
            raise UserError(
                f"DifferentialPrivacy: target_quantile={self.target_quantile} has no effect with "
                "clipping='fixed': leave it out."
            )

    @property
    def is_secret(self) -> bool:
        """Whether noise and draw of clients follow from a secret."""
        return self.noise == "secret"

    @property
    def count_noise(self) -> float:
        """Standard deviation of the noise on how many clients are within an adaptive bound."""
        # Never so little that nothing of the noise multiplier were left for the updates.
        assert self.expected_clients
        is_noisy = self.noise_multiplier > 0
        return max(_COUNT_NOISE * self.expected_clients, self.noise_multiplier) if is_noisy else 0.0

    @property
    def update_noise_multiplier(self) -> float:
        """Standard deviation of the noise on the sum of updates, as a multiple of the bound.

        Both the sum and the count are released, the count with a sensitivity of 1/2; together they
        are one Gaussian mechanism of `noise_multiplier` (Andrew et al., theorem 1). So is a sum of
        states, with as much noise in units of its bound.
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
    """Returns the server of shards that send the sum of their clients' clipped updates.

    Secret noise follows from `secret_seed`, of 126 bits.

    Raises:
        UserError: If the algorithm or the model would let a client's part escape its bound.
    """
    if algorithm.weighting != "uniform":
        raise UserError(
            "differential privacy bounds every client alike: weighting must be uniform, not "
            f"{algorithm.weighting}."
        )
    if model.owned:
        raise UserError(
            f"each row of {sorted(model.owned)} belongs to one client, whom no noise on it could "
            "hide; make the layer local, or train without differential privacy."
        )
    expected = privacy.expected_clients
    if expected is None:
        raise UserError("DifferentialPrivacy: expected_clients is missing.")
    if optimizer.sent and privacy.state_clip_norm is None:
        raise UserError(
            f"{algorithm.name} sends changes of the server's states, which need a bound of their "
            "own: give DifferentialPrivacy(state_clip_norm=...), or take a method without."
        )
    if privacy.state_clip_norm is not None and not optimizer.sent:
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

    def summary(start: Values, received: Any) -> Summary:
        bound = received["clip_norm"] if is_adaptive else tf.constant(privacy.clip_norm)

        def of(examples: Examples, output: ClientOutput) -> collections.OrderedDict:
            sums = _sum_clipped(model, start, examples, output, bound, with_count=is_adaptive)
            if optimizer.sent:
                sums["states"] = _sum_clipped_states(optimizer.sent, examples, output, privacy)
            return sums

        return Summary(of)

    def average(state: Any, sums: Any, round_number: tf.Tensor) -> Mean:
        draw = _Normals(base, round_number)
        bound = state["clip_norm"] if is_adaptive else privacy.clip_norm
        multiplier = privacy.update_noise_multiplier

        def noisy(totals: Values, bound: Any) -> collections.OrderedDict:
            deviation = multiplier * bound if multiplier else 0.0
            return collections.OrderedDict(
                (name, total + draw(total.shape, deviation)) for name, total in totals.items()
            )

        updates = noisy(sums["updates"], bound)
        states: Values = {}
        if "states" in sums:
            states = noisy(sums["states"], privacy.state_clip_norm)
        mean = collections.OrderedDict((name, sum_ / expected) for name, sum_ in updates.items())
        if not is_adaptive:
            return Mean(mean, (), {}, states, updates, None)
        excess = sums["excess_within"] + draw([], privacy.count_noise)
        within = tf.clip_by_value(excess / expected + 0.5, 0.0, 1.0)
        factor = tf.exp(-_CLIPPING_RATE * (within - privacy.target_quantile))
        following = collections.OrderedDict(clip_norm=bound * factor)
        return Mean(mean, following, {"clip_norm": bound}, states, updates, None)

    server = summing_server(model, optimizer, seed=seed, averaging=Averaging(first, average))
    server = server._replace(summary=summary)
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
    """Sums a shard's clipped updates; and for adaptive clipping counts those within the bound.

    A client counts as 1/2 within the bound and as -1/2 beyond it.
    """
    norms = tf.sqrt(squared_norms(output.updates))
    exists = examples.exists
    # An update whose norm is no finite number becomes 0.
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
    """Sums what a shard's clients send of states, each client's clipped."""
    norms = tf.sqrt(squared_norms({v.name: output.states[v.name] for v in sent}))
    bound = privacy.state_clip_norm
    # As in `_sum_clipped`.
    scales = examples.exists * tf.math.divide_no_nan(bound, tf.maximum(norms, bound))
    clipped = {k: s * align(scales, s.shape.rank) for k, s in output.states.items()}
    return sum_states(sent, output._replace(states=clipped))


class _Normals:
    """Draws Gaussian noise, other noise in each round and at each call.

    A round that is run again, from the state that it had before, draws what it drew.
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
        # By Box and Muller, as TensorFlow draws, which takes longer: most of what privacy costs.
        count = math.prod(shape)
        uniform = tf.random.stateless_uniform([2, (count + 1) // 2], seed)
        radius, angle = tf.sqrt(-2.0 * tf.math.log(1.0 - uniform[0])), 2 * math.pi * uniform[1]
        normal = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], 0)
        return deviation * tf.reshape(normal[:count], shape)
