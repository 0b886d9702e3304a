"""Kept local variables: all executions agree, and FURL's theorem holds (sections 3.1 to 3.4)."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_rep import fed_rep
from fedpersonal.algorithms.furl import furl
from fedpersonal.local_state.rounds import Rounds, read_kept
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.boundary import LocalVariableError, check_boundary
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

SGD = tff.learning.optimizers.build_sgdm(0.3)
FAST_SGD = tff.learning.optimizers.build_sgdm(0.8)
ADAM = tff.learning.optimizers.build_adam(0.05)
SERVER = tff.learning.optimizers.build_sgdm(1.0)

BATCH_SIZE = 3
COUNTS = (11, 3, 1, 16, 6)
IDS = [f"client{i}" for i in range(len(COUNTS))]
# Partial participation, and clients that come back after others have moved the model.
COHORTS = ([0, 1, 2], [3, 0], [4, 2, 0, 1])
USERS = "user_embedding/embeddings"
STACKED = Execution(batch_size=BATCH_SIZE, clients_per_shard=2)
POOLED = Execution(batch_size=BATCH_SIZE, clients_per_shard=2, packing="pooled")
PER_CLIENT = Execution(batch_size=BATCH_SIZE)


def close(actual, desired):
    np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-5)


def make_model(num_users, *, penalty=None, **options):
    """A model of x and a user's embedding: a client's own where there is one user, else a table."""

    def build():
        x = tf.keras.Input([2], name="x")
        user = tf.keras.Input([], dtype=tf.int32, name="user")
        table = tf.keras.layers.Embedding(
            num_users,
            3,
            embeddings_initializer=tf.keras.initializers.Constant(0.3),
            name="user_embedding",
            embeddings_regularizer=penalty,
        )
        both = tf.concat([x, table(user)], axis=-1)
        hidden = tf.keras.layers.Dense(4, activation="tanh", name="hidden")(both)
        return tf.keras.Model({"x": x, "user": user}, tf.keras.layers.Dense(1, name="out")(hidden))

    options.setdefault("lookups", {"user_embedding": "user"})
    return PartitionedModel(build, **options)


def own_model(**options):
    return make_model(1, local_layers=["user_embedding"], **options)


@pytest.fixture(name="tables", scope="module")
def _tables(make_dataset):
    """The clients' examples: for a client's own embedding, and for a table of all users'."""
    random = np.random.default_rng(3)
    drawn = [
        (random.normal(size=(n, 2)).astype(np.float32), random.normal(size=n).astype(np.float32))
        for n in COUNTS
    ]

    def with_users(number):
        return make_dataset(
            [
                ({"x": x, "user": np.full(len(y), number(i), np.int32)}, y)
                for i, (x, y) in enumerate(drawn)
            ]
        )

    return with_users(lambda _: 0), with_users(lambda i: i)


def run(path, model, dataset, algorithm, execution=STACKED, *, after_round=None):
    """Returns the final weights, each round's metrics, and what all clients have kept."""
    process = build_process(model, algorithm, execution=execution, server_optimizer=SERVER)
    store = LocalStateStore.open(path, model.local_variables) if algorithm.keeps else None
    rounds = Rounds(process, store)
    state, metrics = rounds.initialize(), []
    for indices in COHORTS:
        before = state
        output = rounds.next(state, make_cohort(model, dataset, indices, execution=execution))
        state = output.state
        metrics.append(output.metrics)
        if after_round is not None:
            state = after_round(store, before, state, indices)
    kept = None
    if store is not None:
        kept = read_kept(store, state, IDS)
        store.close()
    return dict(state.global_model_weights.trainable), metrics, kept


@pytest.fixture(name="furl_run", scope="module")
def _furl_run(tables, tmp_path_factory):
    path = tmp_path_factory.mktemp("furl") / "s"
    return run(path, own_model(), tables[0], furl(client_optimizer=SGD, local_epochs=2))


@pytest.mark.parametrize(
    "algorithm",
    [
        furl(client_optimizer=ADAM, local_optimizer=FAST_SGD, local_epochs=2),
        fed_rep(client_optimizer=SGD, local_optimizer=ADAM, local_only_epochs=2, max_local_steps=4),
    ],
    ids=["furl", "fed_rep"],
)
def test_stacked_pooled_and_per_client_execution_are_equal(tables, tmp_path, algorithm):
    model = own_model()
    runs = [
        run(tmp_path / str(number), model, tables[0], algorithm, execution)
        for number, execution in enumerate((PER_CLIENT, STACKED, POOLED))
    ]
    weights, metrics, (known, kept) = runs[0]
    assert known.all()
    moved = np.abs(kept[USERS] - 0.3).max(axis=(1, 2))
    assert (moved > 1e-4).all()
    for other_weights, other_metrics, (other_known, other_kept) in runs[1:]:
        for name, value in weights.items():
            close(other_weights[name], value)
        for one, other in zip(other_metrics, metrics):
            assert sorted(one) == sorted(other)
            for name in one:
                close(one[name], other[name])
        assert other_known.all()
        close(other_kept[USERS], kept[USERS])


def aggregated_run(dataset, *, owned):
    """The same training with all users' embeddings in one table on the server."""
    model = make_model(len(COUNTS), owned_tables=["user_embedding"] if owned else [])
    algorithm = fed_avg(client_optimizer=SGD, local_epochs=2)
    process = build_process(model, algorithm, execution=STACKED, server_optimizer=SERVER)
    state = process.initialize()
    weights = state.global_model_weights.trainable
    weights.update(own_model().initial_global_values())
    for indices in COHORTS:
        cohort = make_cohort(model, dataset, indices, execution=STACKED)
        state = process.next(state, cohort.examples).state
    return dict(state.global_model_weights.trainable)


def assert_same_model(furl_run, aggregated):
    weights, _, (known, kept) = furl_run
    assert known.all()
    for name, value in weights.items():
        close(value, aggregated[name])
    close(kept[USERS][:, 0], aggregated[USERS])


def test_keeping_embeddings_changes_nothing(tables, furl_run):
    """Equation 7, z_i = 1: global and local variables are those of a table on the server."""
    assert_same_model(furl_run, aggregated_run(tables[1], owned=True))


def test_the_scaling_factor_is_all_that_aggregation_adds(tables, tmp_path):
    """Equation 6: a table averaged with all else moves by z_i times what its user has learned."""
    model = own_model()

    def scale(store, before, after, indices):
        ids = [IDS[i] for i in indices]
        known, old = read_kept(store, before, ids)
        _, new = read_kept(store, after, ids)
        start = np.where(known[:, None, None], old[USERS], np.float32(0.3))
        # Two epochs, so each example counts twice in c_i, which z_i does not feel.
        shares = np.array([COUNTS[i] for i in indices], np.float32)
        shares = (shares / shares.sum())[:, None, None]
        rows = store.pack({USERS: start + shares * (new[USERS] - start)})
        after.changes.update(zip(ids, rows))
        return after

    algorithm = furl(client_optimizer=SGD, local_epochs=2)
    scaled = run(tmp_path / "s", model, tables[0], algorithm, after_round=scale)
    assert_same_model(scaled, aggregated_run(tables[1], owned=False))
    # And it matters.
    unscaled = aggregated_run(tables[1], owned=True)
    assert np.abs(scaled[0]["out/kernel"] - unscaled["out/kernel"]).max() > 1e-3


@pytest.mark.parametrize("options", [{"owned_tables": ["user_embedding"]}, {}])
def test_a_norm_over_all_users_embeddings_is_refused(options):
    model = make_model(len(COUNTS), penalty="l2", **options)
    with pytest.raises(ValueError, match="split-personalization constraint"):
        build_process(
            model, fed_avg(client_optimizer=SGD), execution=STACKED, server_optimizer=SERVER
        )


def test_stateless_twins_forget(tables, furl_run):
    model = own_model()
    twin = furl(client_optimizer=SGD, local_epochs=2).stateless_twin()
    assert (twin.name, twin.phases[0].variables) == ("furl_stateless", "all")
    _, metrics, _ = run(None, model, tables[0], twin)
    losses = [own["loss"] for own in metrics]
    kept_losses = [metrics["loss"] for metrics in furl_run[1]]
    close(losses[0], kept_losses[0])
    assert abs(losses[1] - kept_losses[1]) > 1e-4


def test_an_update_that_is_dropped_leaves_what_was_kept(make_dataset, tmp_path):
    model, algorithm = own_model(), furl(client_optimizer=SGD)
    x = np.ones([3, 2], np.float32)
    users = np.zeros(3, np.int32)
    good, bad = np.ones(3, np.float32), np.full(3, np.nan, np.float32)
    dataset = make_dataset([({"x": x, "user": users}, y) for y in (good, bad)])
    process = build_process(model, algorithm, execution=STACKED, server_optimizer=SERVER)
    store = LocalStateStore.open(tmp_path / "s", model.local_variables)
    rounds = Rounds(process, store)
    cohort = make_cohort(model, dataset, [0, 1], execution=STACKED)
    output = rounds.next(rounds.initialize(), cohort)
    assert output.metrics["num_dropped_updates"] == 1
    _, kept = read_kept(store, output.state, IDS[:2])
    assert np.abs(kept[USERS][0] - 0.3).min() > 0
    close(kept[USERS][1], 0.3)


@pytest.mark.parametrize("execution", [STACKED, PER_CLIENT], ids=["packed", "per_client"])
def test_nothing_local_crosses_and_what_is_planted_is_found(execution):
    model, algorithm = own_model(), furl(client_optimizer=SGD)
    process = build_process(model, algorithm, execution=execution, server_optimizer=SERVER)
    names = {crossing.name.split(".")[-1] for crossing in check_boundary(model, process.next)}
    assert USERS not in names
    assert {"hidden/kernel", "out/bias"} <= names

    @tff.federated_computation(process.next.type_signature.parameter[1])
    def leak(shards):
        return tff.federated_sum(shards["local"]["values"])

    with pytest.raises(LocalVariableError, match=f"{USERS}.*aggregate"):
        check_boundary(model, leak)
