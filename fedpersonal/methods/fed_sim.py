"""Any layers local, and trained with the others or before them: FedSim and FedAlt.

Pillutla et al., "Federated Learning with Partial Model Personalization", ICML 2022 (arXiv
2204.03809), Algorithms 2 and 3: FURL's simultaneous phase and FedRep's alternating ones, whatever
the layers are.
"""

from __future__ import annotations

from fedpersonal.methods.fed_rep import FedRep
from fedpersonal.methods.furl import Furl
from fedpersonal.methods.method import KeepingOptions
from fedpersonal.options import option


class FedSimOptions(KeepingOptions):
    """What a client of FedSim does."""

    local_layers: tuple[str, ...] = option(
        (), "fed_sim, fed_alt: the layers that are each client's own. [default: the task's]"
    )


class FedSim(Furl, name="fed_sim", title="FedSim", reads=FedSimOptions, local_part="own"):
    """What a client of FedSim does."""


class FedAlt(FedRep, name="fed_alt", title="FedAlt", reads=FedSimOptions, local_part="own"):
    """What a client of FedAlt does."""
