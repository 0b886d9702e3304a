"""Federated averaging of a fully global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017. Its personalised rivals train alike and fine-tune each client's copy afterwards; in a
program, `fp.Trainer(..., finetuning=[fp.GradientPhase("all", "all", sgd, epochs=5)])` does so.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method, RebuildingOptions


class FedAvg(Method, name="fed_avg", title="FedAvg", server_optimizer="sgd"):
    """What a client of FedAvg does: it moves all variables on all of its data."""


FedAvgFinetuning = FedAvg.finetuned(server_optimizer=None)


class EmbeddingFinetuning(
    FedAvg,
    name="embedding_finetuning",
    title="FedAvg + fine-tuning of embeddings",
    trains_as="fed_avg",
    reads=RebuildingOptions,
    finetunes="embedding",
    server_optimizer=None,
):
    """FedAvg, and fine-tuning of a part at the rates of a reconstruction."""


# `optimizers` are others than the client's for some layers, by name; `proximal` is FedProx' weight.
fed_avg = constructor(FedAvg, optimizers=None, proximal=0.0)
