"""A body trained with a fixed head; clients fine-tune both before they predict.

Oh et al., "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv 2106.06042), Algorithm 1: clients train the body, while the head keeps its random initial
values. Before it predicts, a client fine-tunes its copy of the whole model.
"""

from __future__ import annotations

from fedpersonal.methods.method import FinetuningOptions, Method
from fedpersonal.methods.phases import Phase


class FedBabu(
    Method,
    name="fed_babu",
    title="FedBABU",
    extra_options=FinetuningOptions,
    required_layers=("head",),
    finetunes="all",
):
    """FedBABU: one phase moves the body."""

    def phases(self) -> tuple[Phase, ...]:
        """Returns the phase of the body."""
        return (self.phase(self.layers.without("head")),)
