"""Personal and context embeddings in front of a frozen language model (FedPerC).

Silva et al., "FedPerC: Federated Learning for Language Generation with Personal and Context
Preference Embeddings", EACL Findings 2023, Algorithm 1 with a frozen base. Algorithm 2 is the same
phase on the generators' layers.

Departures: the base is a small GPT-2, pretrained here, where the paper has DistilGPT2. Generators
read other texts of the user once, before; the paper's move the embeddings with each token of the
text that is predicted.
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
    """What a client of FedPerC does before it predicts."""


class FedPerc(
    FedProx,
    trains_as="fedperc",
    title="FedPerC",
    reads=FedPercOptions,
    defaults={"weighting": "uniform"},
    local_variables="kept",
):
    """What a client of FedPerC and its baselines does."""

    moving: ClassVar[str | tuple[str, ...]] = "all"

    def phases(self) -> tuple[Phase, ...]:
        """Returns the one phase, which holds on to the shared variables."""
        return (self.phase(self.moving, proximal=self.proximal),)


_fedperc = constructor(FedPerc, local_epochs=10, max_local_steps=10, proximal=1.0)


def fedperc(*, layers: Sequence[str] | None = None, **options: Any) -> Algorithm:
    """Returns the one phase of FedPerC.

    All embeddings have the `client_optimizer`, such as Adam. There are `local_epochs` over what a
    client has drawn for the round, and at most `max_local_steps`, K of the paper; `proximal` is the
    weight of FedProx' term, and `weighting` is `uniform` as in the paper.

    Args:
        layers: The layers that move, or None for all that are not frozen.
        **options: The others.
    """
    algorithm = _fedperc(**options)
    moving: str | tuple[str, ...] = "all" if layers is None else tuple(layers)
    phase = dataclasses.replace(algorithm.last_phase, variables=moving)
    return dataclasses.replace(algorithm, phases=(phase,))


_taken = inspect.signature(_fedperc)
_layers = inspect.signature(fedperc).parameters["layers"]
fedperc.__signature__ = _taken.replace(  # type: ignore[attr-defined]
    parameters=[*_taken.parameters.values(), _layers]
)
