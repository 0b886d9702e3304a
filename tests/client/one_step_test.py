"""Clients that take one step each, together: the same as one after another, and as a stack."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_rep import fed_rep
from fedpersonal.algorithms.furl import furl
from fedpersonal.client.one_step import may_step_together
from fedpersonal.client.values import Kept, starting_local_values
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process import round_sums
from fedpersonal.process.packing import as_examples, pack_clients
from fedpersonal.process.server import train_and_sum, weighted_sum

SGD = tff.learning.optimizers.build_sgdm(0.3)
FAST_SGD = tff.learning.optimizers.build_sgdm(0.8)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.3, momentum=0.9)
COUNTS = (4, 1, 3, 5)
USERS = "user_embedding/embeddings"


def make_model(num_users, *, local, penalty=0.0, **options):
    def build():
        x = tf.keras.Input([2], name="x")
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        user = tf.keras.Input([], dtype=tf.int32, name="user")
        vectors = [
            tf.keras.layers.Embedding(rows, 3, name=name)(ids)
            for rows, name, ids in (
                (6, "item_embedding", item),
                (num_users, "user_embedding", user),
            )
        ]
        penalize = tf.keras.regularizers.L2(penalty) if penalty else None
        dense = tf.keras.layers.Dense(
            4, activation="tanh", name="hidden", kernel_regularizer=penalize
        )
        hidden = dense(tf.concat([x, *vectors], -1))
        output = tf.keras.layers.Dense(1, name="out")(hidden)
        return tf.keras.Model({"x": x, "item": item, "user": user}, output)

    return PartitionedModel(
        build,
        local_layers=["user_embedding"] if local else [],
        lookups={"item_embedding": "item", "user_embedding": "user"},
        **options,
    )


def train(model, algorithm, *, packing, batch_size=6, bad_client=None, users_of=lambda i: i):
    """Returns the sums and the local values of a round of four clients and an empty place."""
    random = np.random.default_rng(7)
    labels = [random.normal(size=n).astype(np.float32) for n in COUNTS]
    if bad_client is not None:
        labels[bad_client][:] = np.nan
    dataset = ClientDataset(
        client_ids=np.array(list("abcd"), object),
        offsets=np.append(0, np.cumsum(COUNTS)),
        features={
            "x": random.normal(size=(sum(COUNTS), 2)).astype(np.float32),
            "item": random.integers(0, 6, sum(COUNTS)).astype(np.int32),
            "user": np.repeat([users_of(i) for i in range(4)], COUNTS).astype(np.int32),
        },
        labels=np.concatenate(labels),
    )
    member = pack_clients(model, dataset, range(4), clients_per_shard=5, batch_size=batch_size)
    start = {k: tf.constant(v) for k, v in model.initial_global_values(seed=1).items()}
    kept = None
    if algorithm.keeps:
        values = random.normal(size=(5, 1, 3)).astype(np.float32)
        kept = Kept(tf.constant([True, False, True, True, False]), {USERS: tf.constant(values)})

    @tf.function(autograph=False)
    def run():
        seed = tf.constant([0, 1])
        examples = tf.nest.map_structure(tf.convert_to_tensor, as_examples(model, member))
        sums, local = train_and_sum(
            model,
            algorithm,
            start,
            examples,
            seed,
            summary=weighted_sum(model, start),
            packing=packing,
            local=starting_local_values(model, examples, seed, kept),
        )
        return sums, {name: value[:4] for name, value in local.items()}

    return tf.nest.map_structure(lambda t: t.numpy(), run())


def assert_close(one, other):
    tf.nest.assert_same_structure(one, other)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


CASES = {
    "furl": (furl(client_optimizer=SGD, local_optimizer=FAST_SGD), True),
    "uniform furl": (furl(client_optimizer=SGD, weighting="uniform"), True),
    "table of users": (fed_avg(client_optimizer=SGD, optimizers={"hidden": FAST_SGD}), False),
}


@pytest.mark.parametrize("name", CASES)
def test_one_gradient_is_the_sum_of_the_clients_updates(monkeypatch, name):
    algorithm, local = CASES[name]
    owned = [] if local else ["user_embedding"]
    model = make_model(1 if local else 4, local=local, owned_tables=owned)
    users_of = (lambda i: 0) if local else (lambda i: i)
    assert may_step_together(model, algorithm)
    expected = train(model, algorithm, packing="stacked", users_of=users_of)
    assert expected[0]["metrics"]["num_examples"] == sum(COUNTS)
    monkeypatch.setattr("fedpersonal.client.pooled_batches.CHUNK", 4)

    def no_turns(*_, **__):
        # Both branches are traced, but only one is run.
        sums, local_values = expected
        with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), ["in turn"])]):
            sums = tf.nest.map_structure(tf.identity, sums)
        return sums, {k: tf.identity(v) for k, v in local_values.items()}

    with monkeypatch.context() as patch:
        patch.setattr(round_sums, "train_in_turn", no_turns)
        together = train(model, algorithm, packing="pooled", users_of=users_of)
    assert_close(together, expected)


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"bad_client": 2}])
def test_several_steps_and_updates_that_are_not_finite_are_taken_in_turn(options):
    algorithm = furl(client_optimizer=SGD)
    model = make_model(1, local=True)
    options["users_of"] = lambda i: 0
    expected = train(model, algorithm, packing="stacked", **options)
    assert expected[0]["metrics"]["num_dropped_updates"] == ("bad_client" in options)
    assert_close(train(model, algorithm, packing="pooled", **options), expected)


def test_what_cannot_step_together():
    model = make_model(1, local=True)
    for algorithm in (
        furl(client_optimizer=MOMENTUM),
        furl(client_optimizer=SGD, local_optimizer=MOMENTUM),
        furl(client_optimizer=SGD, max_update_norm=1.0),
        fed_rep(client_optimizer=SGD),
    ):
        assert not may_step_together(model, algorithm)
    assert not may_step_together(make_model(1, local=True, penalty=0.1), furl(client_optimizer=SGD))
