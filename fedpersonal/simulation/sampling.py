"""Which clients take part in a round."""

from __future__ import annotations

import numpy as np

from fedpersonal.errors import UserError


class ClientSampler:
    """Draws distinct clients, uniformly, for each round.

    The draw is a pure function of the seed and the round number: a run that is resumed, or that
    asks for its rounds in another order, meets the same clients.
    """

    def __init__(
        self, *, num_clients: int, clients_per_round: int, seed: int, dropout_rate: float = 0.0
    ):
        """Checks and keeps the options.

        Args:
            num_clients: How many clients there are.
            clients_per_round: How many of them are drawn for a round.
            seed: A non-negative integer.
            dropout_rate: The chance of each drawn client to drop out of its round, independently
                of the others. One that would have left the round empty stays.

        Raises:
            UserError: An option is out of range.
        """
        if num_clients < 1:
            raise UserError(f"num_clients is {num_clients}; at least one client is needed.")
        if not 1 <= clients_per_round <= num_clients:
            raise UserError(
                f"clients_per_round is {clients_per_round}; it must be between 1 and the number "
                f"of clients, {num_clients}."
            )
        if seed < 0:
            raise UserError(f"seed is {seed}; it must not be negative.")
        if not 0.0 <= dropout_rate < 1.0:
            raise UserError(f"dropout_rate is {dropout_rate}; it must be at least 0 and below 1.")
        self._num_clients = num_clients
        self._clients_per_round = clients_per_round
        self._seed = seed
        self._dropout_rate = dropout_rate

    def sample(self, round_number: int) -> np.ndarray:
        """Returns the indices of the clients of a round, in the order in which they were drawn.

        Args:
            round_number: A non-negative integer.
        """
        random = np.random.default_rng((self._seed, round_number))
        drawn = random.choice(self._num_clients, self._clients_per_round, replace=False)
        if self._dropout_rate == 0.0:
            return drawn
        # One uniform number a client: whoever drew the largest is the last to leave.
        luck = random.random(len(drawn))
        stays = (luck >= self._dropout_rate) | (luck == luck.max())
        return drawn[stays]
