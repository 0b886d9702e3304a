"""Federated Reconstruction.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning", NeurIPS 2021
(arXiv 2102.03448), Algorithm 1. Local variables are rebuilt in every round from the support set
with the global ones frozen; then the global ones are updated on the query set with the local ones
frozen.

Departures: exact (ridge) reconstruction is an addition of ours; section 4 leaves R open.
"""

from __future__ import annotations

from typing import Any

from fedpersonal.data.splits import split_parts
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import (
    ClientOptions,
    Method,
    RebuildingOptions,
    SplitOptions,
)
from fedpersonal.methods.phases import GradientPhase, Phase, RidgePhase
from fedpersonal.options import option


class FedReconOptions(ClientOptions, RebuildingOptions, SplitOptions):
    """What a client of FedRecon does."""

    reconstruction: str = option(
        "gradient", "Gradient steps, or exact least squares.", choices=("gradient", "ridge")
    )
    growing_reconstruction: bool = option(
        False, "Round n, from 1, makes at most n of the --reconstruction_epochs; evaluation all."
    )
    joint_training: bool = option(False, "Move local variables in the update phase too.")
    ridge_l2: float = option(10.0, "Penalty of ridge reconstruction.", at_least=1e-6)
    ridge_bias_l2: float | None = option(
        None, "The same for scalar local variables. [default: --ridge_l2]", at_least=1e-6
    )

    def split_options(self) -> dict[str, Any]:
        """Returns how clients' batches are split, as `split_support_query` takes it."""
        return {"split": self.support_query_split, "support_share": self.support_share}


class FedRecon(
    Method,
    name="fed_recon",
    title="FedRecon",
    reads=FedReconOptions,
    local_variables="rebuilt",
    local_part="own",
):
    """What a client of FedRecon does: R on the support set, U on the query set (section 4)."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the two phases.

        Raises:
            ValueError: If gradient reconstruction has no optimizer.
        """
        support, query = split_parts(self.support_query_split, self.support_share)
        moving = "all" if self.joint_training else "global"
        return self.rebuild(support, grows=self.growing_reconstruction), self.phase(moving, query)

    def rebuild(self, support: str, *, grows: bool = False) -> Phase:
        """Returns the phase that rebuilds local variables.

        Args:
            support: The batches that it takes.
            grows: As of `GradientPhase`; without meaning in evaluation.

        Raises:
            ValueError: If gradient reconstruction has no optimizer.
        """
        if self.reconstruction == "ridge":
            return RidgePhase(data=support, l2=self.ridge_l2, bias_l2=self.ridge_bias_l2)
        optimizer = self.optimizer("reconstruction")
        if optimizer is None:
            raise ValueError("fed_recon: gradient reconstruction needs a reconstruction_optimizer.")
        steps = self.reconstruction_epochs, self.bound("max_reconstruction_steps")
        return GradientPhase("local", support, optimizer, *steps, grows=grows)


FedReconFinetuning = FedRecon.finetuned(finetunes="global")


def rebuilding(options: FedReconOptions) -> tuple[Phase, ...]:
    """Returns the reconstruction alone, for clients of any method that have kept nothing."""
    support, _ = split_parts(options.support_query_split, options.support_share)
    return (FedRecon(options).rebuild(support),)


fed_recon = constructor(FedRecon, reconstruction_epochs=1)
