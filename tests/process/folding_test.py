"""Packed execution aggregates by any factory of TFF's as per-client execution does."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.algorithms.furl import furl
from fedpersonal.errors import UserError
from fedpersonal.local_state.rounds import Rounds
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

SGD = tff.learning.optimizers.build_sgdm(0.3)
SERVER = tff.learning.optimizers.build_sgdm(0.7, momentum=0.5)
BATCH_SIZE, NUM_ITEMS = 3, 7
# The first one leaves room in a shard, the last one fills two.
COHORTS = ([0, 1, 2, 3, 4], [4, 3, 0], [3, 1, 2, 0])
PER_CLIENT = Execution(batch_size=BATCH_SIZE)


def packed(packing):
    return Execution(batch_size=BATCH_SIZE, clients_per_shard=2, packing=packing)


FACTORIES = {
    "mean": tff.aggregators.MeanFactory,
    "unweighted_mean": tff.aggregators.UnweightedMeanFactory,
    "clipping": lambda: tff.aggregators.clipping_factory(0.2, tff.aggregators.SumFactory()),
    "zeroing": lambda: tff.aggregators.zeroing_factory(1.0, tff.aggregators.MeanFactory()),
    "robust": tff.learning.robust_aggregator,
    "private": lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 3.0, 0.2),
    "private_adaptive": lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
        0.0, 3.0
    ),
}


def run(execution, model, algorithm, dataset, aggregator, store=None):
    """Returns the weights after some rounds and each round's metrics."""
    process = build_process(
        model, algorithm, execution=execution, server_optimizer=SERVER, aggregator=aggregator
    )
    rounds = Rounds(process, store)
    state, metrics = rounds.initialize(), []
    for indices in COHORTS:
        touched = algorithm.touched_data
        cohort = make_cohort(model, dataset, indices, execution=execution, touched_data=touched)
        output = rounds.next(state, cohort)
        state = output.state
        metrics.append(output.metrics)
    return dict(state.global_model_weights.trainable), metrics


def assert_same(one, other, *, atol=1e-6):
    for name in other[0]:
        np.testing.assert_allclose(one[0][name], other[0][name], rtol=0, atol=atol, err_msg=name)
    for mine, its in zip(one[1], other[1]):
        assert sorted(mine) == sorted(its)
        for name in set(its) - {"aggregator"}:
            np.testing.assert_allclose(mine[name], its[name], rtol=1e-5, atol=1e-6, err_msg=name)
        for name, value in its.get("aggregator", {}).items():
            np.testing.assert_allclose(mine["aggregator"][name], value, rtol=1e-5, err_msg=name)


def rebuilt(weighting="uniform"):
    return fed_recon(
        client_optimizer=SGD, reconstruction_optimizer=SGD, weighting=weighting, local_epochs=2
    )


@pytest.mark.parametrize("name", FACTORIES)
def test_rebuilt_variables(model, ratings, name, caplog):
    algorithm = rebuilt("num_examples" if name in ("mean", "zeroing", "robust") else "uniform")
    expected = run(PER_CLIENT, model, algorithm, ratings, FACTORIES[name]())
    for packing in ("stacked", "pooled")[: 2 if name == "robust" else 1]:
        assert_same(run(packed(packing), model, algorithm, ratings, FACTORIES[name]()), expected)
    assert "XLA does not compile" not in caplog.text
    if name == "private_adaptive":
        norms = [list(metrics["aggregator"].values()) for metrics in expected[1]]
        assert norms[0] and norms[0] != norms[2]


def test_kept_variables(model, ratings, tmp_path):
    algorithm = furl(client_optimizer=SGD, local_epochs=2, weighting="uniform")
    results = []
    for i, execution in enumerate((PER_CLIENT, packed("stacked"), packed("pooled"))):
        with contextlib.closing(
            LocalStateStore.open(tmp_path / str(i), model.local_variables)
        ) as store:
            results.append(run(execution, model, algorithm, ratings, FACTORIES["robust"](), store))
    for one in results[1:]:
        assert_same(one, results[0])


def test_pooled_single_steps_are_aggregated_one_by_one(ratings):
    """The mean may take them as one gradient of all clients."""
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, num_users=ratings.num_clients, embedding_dim=2),
        lookups={"item_embedding": "item", "user_embedding": "user"},
    )
    algorithm = fed_avg(client_optimizer=SGD, weighting="uniform")
    results = [
        run(
            dataclasses.replace(execution, batch_size=int(ratings.counts.max())),
            model,
            algorithm,
            ratings,
            FACTORIES["clipping"](),
        )
        for execution in (PER_CLIENT, packed("pooled"))
    ]
    assert_same(results[1], results[0])


def test_compressed_updates_differ_by_their_quantum(ratings):
    """Of 20,000 values in a table the aggregator quantises; a step is 1/255 of their range."""
    model = PartitionedModel(
        matrix_factorization(num_items=2_000, embedding_dim=10),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"},
    )
    make = tff.learning.compression_aggregator
    expected, mean = (
        run(PER_CLIENT, model, rebuilt("num_examples"), ratings, factory)
        for factory in (make(), tff.aggregators.MeanFactory())
    )
    start = model.initial_global_values()
    name = "item_embedding/embeddings"
    quantum = 4 * np.abs(mean[0][name] - start[name]).max() / 255
    found = run(packed("stacked"), model, rebuilt("num_examples"), ratings, make())
    assert np.abs(found[0][name] - start[name]).max() > 10 * quantum
    assert_same((found[0], []), expected, atol=quantum)


@pytest.mark.parametrize("execution", [PER_CLIENT, packed("stacked")], ids=lambda e: e.kind)
def test_secure_aggregators_are_refused(model, execution):
    with pytest.raises(UserError, match="calls federated_secure_sum.* secure=False"):
        build_process(
            model,
            rebuilt(),
            execution=execution,
            server_optimizer=SERVER,
            aggregator=tff.aggregators.SecureSumFactory(1.0),
        )


def test_owned_rows_would_escape_a_private_factory():
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, num_users=5, embedding_dim=2),
        lookups={"item_embedding": "item", "user_embedding": "user"},
        owned_tables=["user_embedding"],
    )
    with pytest.raises(UserError, match="user_embedding.*would not clip it"):
        build_process(
            model,
            fed_avg(client_optimizer=SGD, weighting="uniform"),
            execution=packed("stacked"),
            server_optimizer=SERVER,
            aggregator=FACTORIES["private"](),
        )
