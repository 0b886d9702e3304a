"""A body trained around a head that nobody trains until each client fine-tunes its own copy.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv 2106.06042), Algorithm 1: clients move the body alone, the head stays as it was drawn; before
it predicts, a client fine-tunes the whole model.
"""

from __future__ import annotations

import dataclasses

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.method import ClientOptions, FinetuningOptions, Layers, Method


class FedBabuOptions(ClientOptions, FinetuningOptions):
    """What a client of FedBABU does."""


def build(options: FedBabuOptions, layers: Layers) -> Algorithm:
    """Returns FedBABU as options describe it."""
    algorithm = fed_avg(**options.local_work())
    body = dataclasses.replace(algorithm.last_phase, variables=layers.without("head"))
    return dataclasses.replace(algorithm, name="fed_babu", phases=(body,))


METHODS = (Method("fed_babu", "FedBABU", build, FedBabuOptions, needs=("head",), finetunes="all"),)
