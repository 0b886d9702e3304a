"""What aggregators of TFF's do not fit, and those that quantise."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_dyn import fed_dyn
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.scaffold import scaffold
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization

tff = pytest.importorskip("tensorflow_federated")

SGD = tff.learning.optimizers.build_sgdm(0.3)
EXECUTION = Execution(batch_size=3, clients_per_shard=2)
SUMS = tff.aggregators
TABLE = "item_embedding/embeddings"


def recon(weighting):
    return fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD, weighting=weighting)


def process_of(model, algorithm, **options):
    return build_process(model, algorithm, execution=EXECUTION, server_optimizer=SGD, **options)


@pytest.mark.exhaustive
def test_compressed_updates_differ_by_their_quantum(draw_ratings):
    """Of 20,000 values in a table the aggregator quantises; a step is 1/255 of their range."""
    ratings = draw_ratings((11, 3, 1, 16, 6), num_items=7, seed=3)
    model = PartitionedModel(
        matrix_factorization(num_items=2_000, embedding_dim=10),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"},
    )
    moved = {}
    for name, factory in (
        ("mean", SUMS.MeanFactory()),
        ("compressed", tff.learning.compression_aggregator()),
    ):
        process = process_of(model, recon("num_examples"), aggregator=factory)
        state = process.initialize()
        for indices in ([0, 1, 2, 3, 4], [4, 3, 0]):
            cohort = make_cohort(model, ratings, indices, execution=EXECUTION)
            state = process.next(state, cohort.examples).state
        weights = state.global_model_weights.trainable
        moved[name] = weights[TABLE] - model.initial_global_values()[TABLE]
    quantum = 4 * np.abs(moved["mean"]).max() / 255
    assert np.abs(moved["compressed"]).max() > 10 * quantum
    np.testing.assert_allclose(moved["compressed"], moved["mean"], rtol=0, atol=quantum)


@pytest.mark.parametrize(
    ("weighting", "aggregator", "said"),
    [
        ("uniform", SUMS.SecureSumFactory(1.0), "calls federated_secure_sum.* secure=False"),
        ("num_examples", SUMS.SumFactory(), "SumFactory ignores weights.*weighting='uniform'"),
    ],
)
def test_aggregators_that_are_refused(model, weighting, aggregator, said):
    with pytest.raises(UserError, match=said):
        process_of(model, recon(weighting), aggregator=aggregator)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"aggregator": SUMS.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 3.0, 0.2)},
            "would not clip it",
        ),
        ({"privacy": DifferentialPrivacy(1.0, expected_clients=4.0)}, "belongs to one client"),
    ],
)
def test_owned_rows_would_escape_their_bound(options, said):
    model = PartitionedModel(
        matrix_factorization(num_items=7, num_users=5, embedding_dim=2),
        lookups={"item_embedding": "item", "user_embedding": "user"},
        per_client_tables=["user_embedding"],
    )
    algorithm = fed_avg(client_optimizer=SGD, weighting="uniform")
    with pytest.raises(UserError, match=f"user_embedding.*{said}"):
        process_of(model, algorithm, **options)


@pytest.mark.parametrize("make", [scaffold, fed_dyn, ifca])
def test_states_would_escape_a_private_aggregator(make):
    x = tf.keras.Input([2], name="x")
    linear = PartitionedModel(lambda: tf.keras.Model(x, tf.keras.layers.Dense(1)(x)))
    algorithm = make(client_optimizer=SGD, weighting="uniform")
    private = SUMS.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 3.0, 0.2)
    for aggregator in (private, SUMS.clipping_factory(1.0, private)):
        with pytest.raises(UserError, match=f"{algorithm.name} sends .* would not hide it"):
            process_of(algorithm.prepare(linear), algorithm, aggregator=aggregator, num_clients=5)
