"""Personal and context embeddings in front of a frozen language model (FedPerC).

Silva et al., "FedPerC: Federated Learning for Language Generation with Personal and Context
Preference Embeddings", EACL Findings 2023, Algorithm 1 with a frozen base. Algorithm 2 is the same
phase on the generators' layers.

Departures: the base is a small GPT-2, pretrained here; the paper has DistilGPT2. Generators read
other texts of the user once, beforehand; those of the paper update the embeddings with each token
of the predicted text.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.fed_prox import FedProx
from fedpersonal.methods.method import FinetuningOptions, RebuildingOptions
from fedpersonal.methods.phases import Phase


class FedPercOptions(RebuildingOptions, FinetuningOptions):
    """Options of FedPerC before a client predicts."""


class FedPerc(
    FedProx,
    same_rounds_as="fedperc",
    title="FedPerC",
    extra_options=FedPercOptions,
    defaults={"weighting": "uniform"},
    local_variables="kept",
):
    """FedPerC and its baselines: one phase."""

    moving: ClassVar[str | tuple[str, ...]] = "all"

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, with a proximal term on the shared variables."""
        return (self.phase(self.moving, proximal=self.proximal),)


_fedperc = constructor(FedPerc, local_epochs=10, max_local_steps=10, proximal=1.0)


def fedperc(*, layers: Sequence[str] | None = None, **options: Any) -> Algorithm:
    """Returns the algorithm of FedPerC, which has one phase.

    The `client_optimizer`, such as Adam, moves all embeddings. A round makes `local_epochs` passes
    over the examples that a client has sampled, and at most `max_local_steps` steps, K in the
    paper. `proximal` is the weight of FedProx' term, and `weighting` is `uniform` as in the paper.

    Args:
        layers: The layers that move, or None for all that are not frozen.
        **options: The other options.
    """
    algorithm = _fedperc(**options)
    moving: str | tuple[str, ...] = "all" if layers is None else tuple(layers)
    phase = dataclasses.replace(algorithm.last_phase, variables=moving)
    return dataclasses.replace(algorithm, phases=(phase,))


_signature = inspect.signature(_fedperc)
_layers = inspect.signature(fedperc).parameters["layers"]
fedperc.__signature__ = _signature.replace(  # type: ignore[attr-defined]
    parameters=[*_signature.parameters.values(), _layers]
)
