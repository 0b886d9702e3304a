"""Federated Reconstruction.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning", NeurIPS 2021
(arXiv 2102.03448), Algorithm 1. Local variables are rebuilt in every round from the support set
with the global ones frozen; then the global ones are updated on the query set with the local ones
frozen.

Departures: exact (ridge) reconstruction is our addition; section 4 leaves R open.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.data.splits import split_parts
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import (
    ClientOptions,
    Method,
    RebuildingOptions,
    SplitOptions,
)
from fedpersonal.methods.phases import GradientPhase, Phase
from fedpersonal.options import option


class FedReconOptions(ClientOptions, RebuildingOptions, SplitOptions):
    """Options of FedRecon."""

    growing_reconstruction: bool = option(
        False,
        "Round n, counted from 1, makes at most n of the --reconstruction_epochs; evaluation makes "
        "all.",
    )
    joint_training: bool = option(False, "Also move local variables in the update phase.")

    def split_options(self) -> dict[str, Any]:
        """Returns the arguments of `split_support_query`."""
        return {"split": self.support_query_split, "support_share": self.support_share}


class FedRecon(
    Method,
    name="fed_recon",
    title="FedRecon",
    extra_options=FedReconOptions,
    local_variables="rebuilt",
    local_part="default_local",
):
    """FedRecon: reconstruction R on the support set, update U on the query set (section 4)."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the two phases.

        Raises:
            ValueError: If gradient reconstruction has no optimizer.
        """
        rebuilding = self.rebuilding()
        if rebuilding is None:
            raise ValueError("fed_recon: gradient reconstruction needs a reconstruction_optimizer.")
        support, query = split_parts(self.support_query_split, self.support_share)
        phase = dataclasses.replace(rebuilding.phase, data=support)
        if isinstance(phase, GradientPhase):
            phase = dataclasses.replace(phase, grows=self.growing_reconstruction)
        return phase, self.phase("all" if self.joint_training else "global", query)


FedReconFinetuning = FedRecon.finetuned(finetunes="global")

fed_recon = constructor(FedRecon, reconstruction_epochs=1)
