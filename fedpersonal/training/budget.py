"""The privacy budget that training spends, computed with Google's `dp-accounting`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from fedpersonal.errors import UserError
from fedpersonal.training.clients import SAMPLINGS

if TYPE_CHECKING:
    from fedpersonal.federated.privacy import DifferentialPrivacy
    from fedpersonal.training.client_sampling import ClientSampling

_LEAST_NOISE, _MOST_NOISE = 0.1, 1e5
_HIGHEST_ORDER = 128


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) of rounds with sampled clients.

    `epsilon` holds against attackers who do not know which clients were sampled,
    `epsilon_of_known_draw` against those who do.

    Attributes:
        num_clients: Number of clients that may take part.
        clients_per_round: Number of clients sampled for a round, on average.
        sampling: `fixed`: the same number of clients in each round; or `poisson`: each client
            independently, with the same probability.
        noise_multiplier: Standard deviation of the noise, as a multiple of the bound on a client's
            update.
        delta: The probability that epsilon does not hold; None for `num_clients` to the power of
            -1.1.
    """

    num_clients: int
    clients_per_round: int
    sampling: str
    noise_multiplier: float
    delta: float | None = None

    def __post_init__(self):
        if self.sampling not in SAMPLINGS:
            raise UserError(
                f"PrivacyBudget: sampling is {self.sampling!r}; it must be one of "
                f"{', '.join(SAMPLINGS)}."
            )
        # A single client would have a delta of 1.
        delta = max(2, self.num_clients) ** -1.1 if self.delta is None else self.delta
        if not 0 < delta < 1:
            raise UserError(f"PrivacyBudget: delta is {delta}; it must be between 0 and 1.")
        object.__setattr__(self, "delta", delta)

    @classmethod
    def for_epsilon(
        cls, epsilon: float, *, rounds: int, most_rounds: int | None = None, **scheme: Any
    ) -> PrivacyBudget:
        """Returns the budget with the least noise, to a thousandth, that spends at most an epsilon.

        Args:
            epsilon: The epsilon that all rounds together may spend.
            rounds: Number of rounds.
            most_rounds: The largest number of rounds in which one client is sampled, if the
                attacker knows the sampled clients; None if they are secret.
            **scheme: The other attributes of the class.

        Raises:
            UserError: If no noise suffices.
        """

        def spent(noise: float) -> float:
            budget = cls(noise_multiplier=noise, **scheme)
            if most_rounds is None:
                return budget.epsilon(rounds)
            return budget.epsilon_of_known_draw(most_rounds)

        high = 1.0
        while spent(high) > epsilon:
            high *= 2
            if high > _MOST_NOISE:
                raise UserError(f"no noise makes {rounds} rounds spend at most {epsilon}.")
        low = high / 2
        while low > _LEAST_NOISE and spent(low) <= epsilon:
            high, low = low, low / 2
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
        return cls(noise_multiplier=high, **scheme)

    @property
    def draws_all(self) -> bool:
        """Whether each round samples all clients."""
        return self.clients_per_round >= self.num_clients

    @property
    def accountant(self) -> str:
        """A description of how epsilon is computed."""
        if self.draws_all:
            return "PLD of the Gaussian mechanism, all clients in each round"
        if self.sampling == "poisson":
            return "PLD of the Poisson-sampled Gaussian mechanism"
        return "RDP of the Gaussian mechanism on samples of fixed size, half of the multiplier"

    @property
    def neighbours(self) -> str:
        """The difference between data sets that epsilon makes hard to distinguish."""
        is_fixed = self.sampling == "fixed" and not self.draws_all
        return "one client replaced" if is_fixed else "one client added or removed"

    def epsilon(self, rounds: int) -> float:
        """Returns the epsilon that rounds have spent; infinity without noise."""
        if rounds == 0:
            return 0.0
        return self._epsilon_of(rounds) if self.noise_multiplier else math.inf

    def epsilon_of_known_draw(self, most_rounds: int) -> float:
        """Returns epsilon against attackers who know which clients each round sampled.

        Args:
            most_rounds: The largest number of rounds in which one client was sampled.
        """
        if most_rounds == 0:
            return 0.0
        if not self.noise_multiplier:
            return math.inf
        # The composition of Gaussian mechanisms is one Gaussian mechanism. Replacing a client by
        # another moves a sum twice as far as adding one.
        is_replaced = self.neighbours == "one client replaced"
        noise = self.noise_multiplier / (2 if is_replaced else 1) / math.sqrt(most_rounds)
        return _loss(noise, 1).get_epsilon_for_delta(self.delta)

    @functools.cached_property
    def _epsilon_of(self) -> Callable[[int], float]:
        """A function from rounds to epsilon; the cost of one round is computed once."""
        noise, delta = self.noise_multiplier, self.delta
        if self.draws_all:
            return self.epsilon_of_known_draw
        rate = self.clients_per_round / self.num_clients
        if self.sampling == "poisson":
            one = _loss(noise, rate)
            return lambda rounds: one.self_compose(rounds).get_epsilon_for_delta(delta)
        # The formula's sensitivity is 1; replacing a client by another moves a sum of clipped
        # updates by up to twice the bound.
        rdp = dp_accounting.rdp.RdpAccountant(
            orders=_orders(), neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        rdp.compose(
            dp_accounting.SampledWithoutReplacementDpEvent(
                self.num_clients, self.clients_per_round, dp_accounting.GaussianDpEvent(noise / 2)
            )
        )
        orders, costs = rdp.orders, rdp.rdp
        return lambda rounds: dp_accounting.rdp.compute_epsilon(orders, rounds * costs, delta)[0]


@dataclasses.dataclass(frozen=True)
class Spending:
    """The privacy budget that a run spends.

    Attributes:
        privacy: The mechanism.
        budget: The budget, for the run's sampling of clients.
        most_rounds: Maps rounds to the result of `ClientSampler.most_rounds` for public sampling.
    """

    privacy: DifferentialPrivacy
    budget: PrivacyBudget
    most_rounds: Callable[[int], np.ndarray]

    @classmethod
    def of(
        cls, privacy: DifferentialPrivacy, clients: ClientSampling, *, sampling: str
    ) -> Spending:
        """Returns the spending of a mechanism, with `expected_clients` set if it was None."""
        expected = privacy.expected_clients or float(clients.clients_per_round)
        budget = PrivacyBudget(
            num_clients=clients.num_clients,
            clients_per_round=clients.clients_per_round,
            sampling=sampling,
            noise_multiplier=privacy.noise_multiplier,
            delta=privacy.delta,
        )
        complete = dataclasses.replace(privacy, expected_clients=expected)
        return cls(complete, budget, clients.most_rounds)

    def by_round(self, rounds: int) -> Callable[[int], dict[str, float]] | None:
        """Returns a function from round to its column `epsilon`, an upper bound; or None.

        PLD takes 10 ms for a number of rounds, so epsilon is computed 50 times in a run.
        """
        budget, every = self.budget, math.ceil(rounds / 50)
        if not budget.noise_multiplier:
            return None
        most_rounds = None if self.privacy.is_secret else self.most_rounds(rounds)

        @functools.lru_cache(maxsize=1)
        def epsilon_by(number: int) -> float:
            if most_rounds is None:
                return budget.epsilon(number)
            return budget.epsilon_of_known_draw(int(most_rounds[number]))

        def spent(round_number: int) -> dict[str, float]:
            return {"epsilon": epsilon_by(min(rounds, every * math.ceil(round_number / every)))}

        return spent

    def describe(self, rounds: int) -> dict[str, Any]:
        """Returns the spent budget and its mechanism for JSON; an infinite epsilon is None."""
        privacy, budget = self.privacy, self.budget
        # With secret sampling no one can count a client's rounds: assume that it is in all.
        most = rounds if privacy.is_secret else int(self.most_rounds(rounds)[-1])
        both = {
            "epsilon_secret_draw": budget.epsilon(rounds),
            "epsilon_public_draw": budget.epsilon_of_known_draw(most),
        }
        epsilons = {name: value if math.isfinite(value) else None for name, value in both.items()}
        draw = "secret" if privacy.is_secret else "public"
        accountant = budget.accountant
        if not privacy.is_secret:
            accountant = f"PLD of the Gaussian mechanism, one client in at most {most} rounds"
        return {
            **dataclasses.asdict(privacy),
            "epsilon": epsilons[f"epsilon_{draw}_draw"],
            **epsilons,
            "draw": draw,
            "most_rounds": most,
            "delta": budget.delta,
            "neighbours": budget.neighbours,
            "accountant": accountant,
            "rounds": rounds,
            "num_clients": budget.num_clients,
            "clients_per_round": budget.clients_per_round,
            "client_sampling": "all" if budget.draws_all else budget.sampling,
            "update_noise_multiplier": privacy.update_noise_multiplier,
        }


def _orders() -> list[float]:
    """Returns RDP's default orders without the highest, which take most of the time."""
    return [order for order in dp_accounting.rdp.RdpAccountant().orders if order <= _HIGHEST_ORDER]


def _loss(noise: float, rate: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Returns the privacy loss of one round, given the probability that a client takes part."""
    # Fine compared with a round's cost; epsilon is rounded up in any case.
    step = min(max(0.1 * rate / noise, 1e-5), 1e-3)
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=step, sampling_prob=rate
    )
