"""How clients apply a model: what personalises it first, and how it is evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedpersonal.algorithm import STARTS, Phase
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.model.partition import PartitionedModel


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluator:
    """A model as clients apply it.

    A client that has kept local variables predicts with them, unless asked to rebuild them or to
    bring them up to date first. Any other rebuilds its own from a support set. Either then
    fine-tunes its copy of the model, where there are phases for that.

    Attributes:
        model: The partitioned model.
        rebuilding: What rebuilds local variables where a client has kept none.
        finetuning: What trains a client's copy before it predicts, from its support set.
        batch_size: Examples of a client's batch.
        packing: How clients are packed to be evaluated: `stacked` or `pooled`, see `Execution`.
        together: How many clients a shard holds then; 0 for all.
        seed: Seed of local variables' initial values.
    """

    model: PartitionedModel
    rebuilding: tuple[Phase, ...]
    finetuning: tuple[Phase, ...]
    batch_size: int
    packing: str
    together: int
    seed: int

    def personalization(self, has_kept: bool, start: str = "kept") -> tuple[Phase, ...]:
        """Returns what personalises the model of a client.

        Args:
            has_kept: Whether the client has kept local variables.
            start: What it does with them. `kept`: it predicts with them. `rebuilt`: it forgets
                them, and rebuilds its own. `updated`: it takes the steps that rebuild, from what it
                has kept; a `RidgePhase` starts from nothing, and rebuilds. A client that has kept
                nothing rebuilds its own in any case.

        Raises:
            UserError: If `start` is none of these.
        """
        if start not in STARTS:
            raise UserError(f"start is {start!r}; it must be one of {', '.join(STARTS)}.")
        is_ready = has_kept and start == "kept"
        return self.finetuning if is_ready else (*self.rebuilding, *self.finetuning)

    def pack(
        self,
        support: ClientDataset,
        query: ClientDataset,
        phases: tuple[Phase, ...] | None = None,
        *,
        has_kept: bool,
        with_before: bool = True,
        with_predictions: bool = False,
    ) -> Callable[..., ClientResults]:
        """Packs clients, and returns what evaluates global variables on them.

        `phases` are None for `personalization`; the rest is as of `build_evaluation`.
        """
        return build_evaluation(
            self.model,
            self.personalization(has_kept) if phases is None else phases,
            support,
            query,
            batch_size=self.batch_size,
            clients=self.together or support.num_clients,
            packing=self.packing,
            with_before=with_before,
            with_kept=has_kept,
            with_predictions=with_predictions,
            seed=self.seed,
        )
