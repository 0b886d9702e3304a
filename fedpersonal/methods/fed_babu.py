"""A body trained around a head that nobody trains until each client fine-tunes its own copy.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv 2106.06042), Algorithm 1: clients move the body alone, the head stays as it was drawn; before
it predicts, a client fine-tunes the whole model.
"""

from __future__ import annotations

from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import Phase


class FedBabu(
    Method,
    name="fed_babu",
    title="FedBABU",
    reads=FinetuningOptions,
    needs=("head",),
    finetunes="all",
):
    """What a client of FedBABU does."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the body."""
        return (self.phase(self.layers.without("head")),)
