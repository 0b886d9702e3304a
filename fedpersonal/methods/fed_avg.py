"""Federated averaging of a fully global model.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017. Its personalised variants train in the same way and fine-tune each client's copy
afterwards. In a program, pass
`fp.Trainer(..., finetuning=[fp.GradientPhase("all", "all", sgd, epochs=5)])`.
"""

from __future__ import annotations

from fedpersonal.methods.constructor import constructor
from fedpersonal.methods.method import Method, RebuildingOptions


class FedAvg(Method, name="fed_avg", title="FedAvg", server_optimizer="sgd"):
    """FedAvg: one phase moves all variables on all of a client's data."""


FedAvgFinetuning = FedAvg.finetuned(server_optimizer=None)


class EmbeddingFinetuning(
    FedAvg,
    name="embedding_finetuning",
    title="FedAvg + fine-tuning of embeddings",
    same_rounds_as="fed_avg",
    extra_options=RebuildingOptions,
    finetunes="embedding",
    server_optimizer=None,
):
    """FedAvg, then fine-tuning of the embedding with the options of a reconstruction."""


# `optimizers` replace the client's for single layers, by name; `proximal` is FedProx' weight.
fed_avg = constructor(FedAvg, optimizers=None, proximal=0.0)
