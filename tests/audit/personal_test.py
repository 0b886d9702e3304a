"""The audit of methods with personal copies, or a look ahead: no alarm, but for a planted leak."""

from __future__ import annotations

from unittest import mock

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.federated import process as process_module
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.methods.per_fed_avg import per_fed_avg
from fedpersonal.methods.pfedme import pfedme
from fedpersonal.model.metrics import RMSE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization
from fedpersonal.training.trainer import Trainer

NUM_ITEMS, DIM = 7, 3
SGD = tff.learning.optimizers.build_sgdm(0.1)
ADAM = tff.learning.optimizers.build_adam(0.05)
TABLE, COPY = "item_embedding/embeddings", "personal_copy/item_embedding/embeddings"
WORK = {"client_optimizer": SGD, "local_epochs": 2}
ALGORITHMS = [
    ditto(**WORK, local_optimizer=ADAM, local_only_epochs=2),
    mr_mtl(**WORK),
    apfl(**WORK),
    per_fed_avg(**WORK, adaptation_optimizer=SGD),
    pfedme(**WORK, inner_optimizer=SGD, inner_steps=2, envelope=2.0),
]


def audit_of(algorithm, clients):
    model = PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS, num_users=4, embedding_dim=DIM, use_biases=True, l2=0.01
        ),
        lookups={f"{of}_{kind}": of for of in ("item", "user") for kind in ("embedding", "bias")},
        owned_tables=["user_embedding", "user_bias"],
        metrics=[RMSE],
    )
    trainer = Trainer(model, algorithm, clients, clients_per_round=4, batch_size=4, shards=1)
    return trainer.audit(rounds=3)


def findings(audit):
    return {verdict.check: verdict.found for verdict in audit.verdicts if verdict.found}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_there_is_no_alarm(algorithm, clients):
    audit = audit_of(algorithm, clients)
    assert findings(audit) == {}
    assert any("send their personal copies" in note for note in audit.notes) == (
        algorithm.name == "mr_mtl"
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS[:3], ids=lambda algorithm: algorithm.name)
def test_a_planted_leak_of_a_copy_is_found(algorithm, clients):
    honest = process_module.train_and_sum

    def leaky(model, algorithm, global_values, examples, seed, *, local, **options):
        sums, after = honest(
            model, algorithm, global_values, examples, seed, local=local, **options
        )
        sums["updates"][TABLE] += 0.01 * tf.reduce_sum(local[COPY], 0)
        return sums, after

    with mock.patch.object(process_module, "train_and_sum", leaky):
        found = findings(audit_of(algorithm, clients))
    assert "reference" in found
    assert ("severed" in found) == (algorithm.name != "mr_mtl")
