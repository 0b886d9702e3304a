"""A score function of each client's own, and item embeddings that each client makes its own.

Zhang et al., "Dual Personalization on Federated Recommendation", IJCAI 2023 (arXiv 2301.08143),
Algorithm 1: a client trains its score function, which it keeps, with the items' embeddings as sent;
then these, with the score function as it is now. The server averages the embeddings. A client
predicts with those that its own last step has made of what was sent.

Departures: that step is made again before a client predicts, from what the server has sent by then.
So a client keeps its score function alone, where the authors' code keeps a table of items, too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from fedpersonal.algorithm import Algorithm, Phase
from fedpersonal.algorithms import fed_rep
from fedpersonal.algorithms.fed_rep import FedRepOptions
from fedpersonal.algorithms.method import Layers, Method


def pfedrec(**options: Any) -> Algorithm:
    """Returns the two phases of PFedRec, for a model whose score function is local.

    A client runs the second one again, on a copy of its own, before it predicts: give it as
    `finetuning`.

    Args:
        **options: Of `fed_rep`.
    """
    return dataclasses.replace(fed_rep.fed_rep(**options), name="pfedrec")


def build(options: FedRepOptions, layers: Layers) -> Algorithm:
    """Returns PFedRec as options describe it."""
    return dataclasses.replace(fed_rep.build(options, layers), name="pfedrec")


def _last_step(options: FedRepOptions) -> tuple[Phase, ...]:
    return build(options, Layers()).phases[1:]


METHODS = (
    Method(
        "pfedrec",
        "PFedRec",
        build,
        FedRepOptions,
        local_part="head",
        finetunes="global",
        adaptation=_last_step,
    ),
)
