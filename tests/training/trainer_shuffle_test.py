"""A client's examples in a new order before each round, or each epoch: what follows from it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp

pytestmark = pytest.mark.usefixtures("not_compiled")
COUNTS = (11, 4, 7)
WHEN = ("rounds", "epochs")
EPOCHS = 3


@pytest.fixture(name="data", scope="module")
def _data():
    random, count = np.random.default_rng(0), sum(COUNTS)
    x = random.normal(size=(count, 2)).astype(np.float32)
    offsets = np.append(0, np.cumsum(COUNTS))
    return fp.ClientDataset([*"abc"], offsets, {"x": x}, x @ np.float32([1, -2]))


SGD = tf.keras.optimizers.SGD(0.05, momentum=0.5)
ALGORITHM = fp.fed_per(client_optimizer=SGD, local_epochs=EPOCHS)


def make_trainer(model, data, **options):
    return fp.Trainer(model, ALGORITHM, data, batch_size=3, **{"shuffle": "epochs", **options})


def weights_of(trainer, rounds=3, **options):
    with trainer.fit(rounds=rounds, progress=False, **options) as trained:
        return np.concatenate([np.ravel(value) for value in trained.weights.values()])


@pytest.mark.exhaustive(but=("epochs",))
@pytest.mark.parametrize("shuffle", WHEN)
def test_weights_are_those_of_keras_on_examples_in_that_order(shuffle, data):
    keras_model = tf.keras.Sequential([tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1)])
    start, found = keras_model.get_weights(), []
    algorithm, one = fp.fed_avg(client_optimizer=SGD, local_epochs=EPOCHS), data.subset([0])
    for packing in ("stacked", "pooled"):
        trainer = fp.Trainer(
            fp.PartitionedModel(keras_model), algorithm, one,
            batch_size=3, seed=5, shuffle=shuffle, packing=packing,
        )  # fmt: skip
        with trainer.fit(rounds=1, progress=False) as trained:
            found.append([*trained.weights.values()])
    (orders,) = algorithm.shuffle(shuffle, batch_size=3, seed=5).orders("a", COUNTS[:1], 1)
    assert len(orders) == (1 if shuffle == "rounds" else EPOCHS)
    keras_model.set_weights(start)
    keras_model.compile(tf.keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    for order in itertools.islice(itertools.cycle(orders), EPOCHS):
        x, y = one.features["x"][order], one.labels[order]
        keras_model.fit(x, y, batch_size=3, shuffle=False, verbose=0)
    for weights in found:
        for value, expected in zip(weights, keras_model.get_weights()):
            np.testing.assert_allclose(value, expected, 1e-5, 1e-6)


def test_runs_of_a_seed_are_equal_however_clients_are_executed(dense_model, data, tmp_path):
    model = dense_model()
    trainer = make_trainer(model, data, shards=2)
    expected = weights_of(trainer)
    weights_of(trainer, 2, folder=tmp_path)
    np.testing.assert_array_equal(weights_of(trainer, folder=tmp_path), expected)
    # Names tell clients apart, not their places in the data.
    other = make_trainer(model, data.subset([2, 0, 1]), packing="pooled", shards=3)
    np.testing.assert_allclose(weights_of(other), expected, 1e-5, 1e-6)


@pytest.mark.exhaustive
def test_two_seeds_differ_by_the_order_alone(data):
    """All clients take part, from the same weights."""
    layer = tf.keras.layers.Dense(1, kernel_initializer="zeros")
    model = fp.PartitionedModel(tf.keras.Sequential([tf.keras.Input([2], name="x"), layer]))
    algorithm = fp.fed_avg(client_optimizer=tf.keras.optimizers.SGD(0.05))
    one, other = (
        weights_of(fp.Trainer(model, algorithm, data, batch_size=3, seed=seed, shuffle="epochs"))
        for seed in (0, 1)
    )
    assert np.abs(one - other).max() > 1e-4


def test_idle_and_unknown_orders_are_refused(dense_model, data):
    model = dense_model()
    with pytest.raises(fp.UserError, match="shuffle='rounds' has no effect with local_steps=2"):
        make_trainer(model, data, shuffle="rounds", local_steps=2)
    with pytest.raises(ValueError, match="shuffle must be one of .*'epochs'.*, not 'often'"):
        make_trainer(model, data, shuffle="often")
    shuffle = ALGORITHM.shuffle("epochs", batch_size=3, seed=0)
    with pytest.raises(fp.UserError, match="pass the round_number"):
        fp.make_cohort(model, data, [0], execution=fp.Execution(3, shuffle=shuffle))


def test_a_cohort_holds_each_example_once_a_pass(dense_model, data):
    shuffle = ALGORITHM.shuffle("epochs", batch_size=3, seed=0)
    execution = fp.Execution(3, clients_per_shard=3, shuffle=shuffle)
    cohort = fp.make_cohort(dense_model(), data, range(3), execution=execution, round_number=1)
    (shard,) = cohort.shards
    for place, client in enumerate(shard.places):
        mask = shard.examples["mask"][place]
        labels = shard.examples["labels"][place].reshape(-1)
        for order in shard.examples["order"][place]:
            taken = labels[order.reshape(-1)][mask.reshape(-1) > 0]
            np.testing.assert_array_equal(np.sort(taken), np.sort(data.client(client)[1]))
