"""Local layers of your choice, trained with the others (FedSim) or before them (FedAlt).

Pillutla et al., "Federated Learning with Partial Model Personalization", ICML 2022 (arXiv
2204.03809), Algorithms 2 and 3: FURL's simultaneous phase and FedRep's alternating phases, for any
choice of local layers.
"""

from __future__ import annotations

from fedpersonal.methods.fed_rep import FedRep
from fedpersonal.methods.furl import Furl
from fedpersonal.methods.method import KeepingOptions
from fedpersonal.options import option


class FedSimOptions(KeepingOptions):
    """Options of FedSim and FedAlt."""

    local_layers: tuple[str, ...] = option(
        (), "fed_sim, fed_alt: the local layers. [default: the task's]"
    )


class FedSim(
    Furl, name="fed_sim", title="FedSim", extra_options=FedSimOptions, local_part="default_local"
):
    """FedSim: FURL with any choice of local layers."""


class FedAlt(
    FedRep, name="fed_alt", title="FedAlt", extra_options=FedSimOptions, local_part="default_local"
):
    """FedAlt: FedRep with any choice of local layers."""
