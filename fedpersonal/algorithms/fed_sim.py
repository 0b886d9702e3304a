"""Any layers local, and trained with the others or before them: FedSim and FedAlt.

Pillutla et al., "Federated Learning with Partial Model Personalization", ICML 2022 (arXiv
2204.03809), Algorithms 2 and 3: FURL's simultaneous phase and FedRep's alternating ones, whatever
the layers are.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms import fed_rep, furl
from fedpersonal.algorithms.method import KeepingOptions, Layers, Method
from fedpersonal.options import option


class FedSimOptions(KeepingOptions):
    """What a client of FedSim does."""

    local_layers: tuple[str, ...] = option(
        (), "fed_sim, fed_alt: the layers that are each client's own. [default: the task's]"
    )


class FedAltOptions(FedSimOptions, fed_rep.FedRepOptions):
    """What a client of FedAlt does."""


def build_simultaneous(options: FedSimOptions, layers: Layers) -> Algorithm:
    """Returns FedSim as options describe it."""
    return dataclasses.replace(furl.build(options, layers), name="fed_sim")


def build_alternating(options: FedAltOptions, layers: Layers) -> Algorithm:
    """Returns FedAlt as options describe it."""
    return dataclasses.replace(fed_rep.build(options, layers), name="fed_alt")


METHODS = (
    Method("fed_sim", "FedSim", build_simultaneous, FedSimOptions, local_part="own"),
    Method("fed_alt", "FedAlt", build_alternating, FedAltOptions, local_part="own"),
)
