"""How a cohort is executed: one client a TFF CLIENTS member, or shards of many clients each."""

from __future__ import annotations

import dataclasses
import math

from fedpersonal import runtime
from fedpersonal.client.pooled import PACKINGS
from fedpersonal.errors import UserError, check_choice

KINDS = ("packed", "per_client")


def default_num_shards() -> int:
    """Returns how many shards a packed cohort is divided into: one a processor of the runtime."""
    return runtime.num_processors()


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a cohort is executed; made by `packed`, `per_client` or `for_cohorts`.

    All executions give the same results up to floating point; per-client execution is the
    reference, packed execution is many times faster.

    Attributes:
        kind: `packed` or `per_client`.
        batch_size: Examples a batch.
        clients_per_shard: Clients that a shard has room for; 1 for per-client execution.
        packing: How a shard is packed. `stacked`: clients' weights are stacked and take their steps
            together, which suits models of many small operations. `pooled`: clients put their
            examples together where they share weights and take turns where not, which suits models
            bound by arithmetic.
    """

    kind: str
    batch_size: int
    clients_per_shard: int = 1
    packing: str = "stacked"

    def __post_init__(self):
        check_choice("Execution", "kind", self.kind, KINDS)
        check_choice("Execution", "packing", self.packing, PACKINGS)
        for option in ("batch_size", "clients_per_shard"):
            value = getattr(self, option)
            if value < 1:
                raise UserError(f"Execution: {option} must be at least 1, not {value}.")
        if not self.is_packed and (self.clients_per_shard, self.packing) != (1, "stacked"):
            raise UserError(
                "Execution: per_client execution has clients_per_shard=1 and packing='stacked', "
                f"not {self.clients_per_shard} and {self.packing!r}."
            )

    @classmethod
    def packed(
        cls, *, batch_size: int, clients_per_shard: int, packing: str = "stacked"
    ) -> Execution:
        """Returns the execution of shards of many clients each."""
        return cls("packed", batch_size, clients_per_shard, packing)

    @classmethod
    def per_client(cls, *, batch_size: int) -> Execution:
        """Returns the execution of one client a shard."""
        return cls("per_client", batch_size)

    @classmethod
    def for_cohorts(
        cls,
        clients: int,
        *,
        batch_size: int,
        kind: str = "packed",
        packing: str = "stacked",
        shards: int | None = None,
    ) -> Execution:
        """Returns the execution of cohorts of so many clients, in one shard a processor.

        Sums depend on the number of shards in their last digits; `shards` sets another one.
        """
        if kind == "per_client":
            if packing != "stacked":
                raise UserError(f"Execution: packing={packing!r} has no effect with per_client.")
            return cls.per_client(batch_size=batch_size)
        if clients < 1:
            raise UserError(f"Execution: a cohort must have at least 1 client, not {clients}.")
        shards = default_num_shards() if shards is None else shards
        if shards < 1:
            raise UserError(f"Execution: a cohort must have at least 1 shard, not {shards}.")
        clients_per_shard = math.ceil(clients / min(shards, clients))
        return cls(kind, batch_size, clients_per_shard, packing)

    @property
    def is_packed(self) -> bool:
        """Whether a shard holds many clients, as padded arrays."""
        return self.kind == "packed"
