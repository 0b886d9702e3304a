"""One client's round: stacked or alone, of any size, and whatever goes wrong with another's."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from fedpersonal.process.datasets import client_datasets, examples_from_dataset

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.client.stacked import train_clients
from fedpersonal.client.values import Examples, phase_mask, starting_values
from fedpersonal.model.metrics import MAE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.process.packing import as_examples, pack_clients

BATCH_SIZE = 3
NUM_ITEMS = 7
COUNTS = (8, 3, 14, 4)
SGD = tff.learning.optimizers.build_sgdm(0.2)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.1, momentum=0.9)
ADAM = tff.learning.optimizers.build_adam(0.1)


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """TensorFlow complains of functions that outlive it."""
    yield
    traced.cache_clear()


@pytest.fixture(name="ratings", scope="module")
def _ratings(draw_ratings):
    return draw_ratings(COUNTS, num_items=NUM_ITEMS - 1, seed=3)


@pytest.fixture(name="model", scope="module")
def _model():
    return PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS, embedding_dim=2, use_biases=True, mean_rating=3.0, l2=0.1
        ),
        local_layers=["user_embedding", "user_bias"],
        lookups={"item_embedding": "item"},
        metrics=[MAE],
    )


def start_of(model):
    random = np.random.default_rng(2)
    return {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.global_variables}


@functools.cache
def recon(optimizer, **options):
    return fed_recon(client_optimizer=optimizer, reconstruction_optimizer=optimizer, **options)


@functools.cache
def traced(model, algorithm, clients):
    """Traces the work of a stack, for any number of batches and of rows."""

    def any_length(shape):
        return [clients, None, *shape]

    x, y = model.input_spec, model.label_spec
    ids = {
        name: tf.TensorSpec(any_length([None, *x[feature].shape[1:]]), tf.int32)
        for name, feature in model.tables.items()
    }
    spec = Examples(
        features={k: tf.TensorSpec(any_length(s.shape), s.dtype) for k, s in x.items()},
        labels=tf.TensorSpec(any_length(y.shape), y.dtype),
        mask=tf.TensorSpec(any_length([None])),
        rows={name: tf.TensorSpec(any_length([]), tf.int32) for name in ids},
        positions=ids,
    )

    @tf.function(input_signature=[spec], autograph=False)
    def run(examples):
        start = {name: tf.constant(value) for name, value in start_of(model).items()}
        return train_clients(model, algorithm, start, examples, tf.constant([0, 1]))

    return run


def pack(model, dataset, indices, *, clients=None, touched_data="all", batch_size=BATCH_SIZE):
    member = pack_clients(
        model,
        dataset,
        indices,
        clients_per_shard=clients or len(indices),
        batch_size=batch_size,
        touched_data=touched_data,
    )
    return tf.nest.map_structure(tf.constant, as_examples(model, member))


def train(model, algorithm, dataset, indices, *, clients=None, examples=None):
    """Trains a stack; returns its output, updates as whole variables, all in NumPy."""
    if examples is None:
        touched = algorithm.touched_data
        examples = pack(model, dataset, indices, clients=clients, touched_data=touched)
    run = traced(model, algorithm, examples.mask.shape[0])
    output = tf.nest.map_structure(lambda t: t.numpy(), run(examples))
    updates = dict(output.updates)
    for name in model.tables:
        rows = examples.rows[name].numpy()
        whole = np.zeros((len(rows), *start_of(model)[name].shape), np.float32)
        for client, own_rows in enumerate(rows):
            np.add.at(whole[client], own_rows, updates[name][client])
        updates[name] = whole
    return output._replace(updates=updates)


def pick(output, client):
    return tf.nest.map_structure(lambda values: values[client], output)


def assert_same(one, other):
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), one, other
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        recon(SGD),
        recon(MOMENTUM, reconstruction_epochs=2, max_reconstruction_steps=3, local_epochs=2),
        recon(ADAM, support_query_split="shared", joint_training=True),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_a_stack_is_its_clients_one_by_one(model, ratings, algorithm):
    """So a step beyond a client's last one leaves its variables and optimizer state alone."""
    stacked = train(model, algorithm, ratings, [0, 1, 2, 3])
    for client in range(4):
        alone = train(model, algorithm, ratings, [client])
        assert_same(pick(stacked, client), pick(alone, 0))
    assert np.abs(stacked.updates["item_bias/embeddings"][[0, 2, 3]]).max(axis=(1, 2)).min() > 1e-3


def test_a_dataset_of_batches_gives_the_same_examples(model, ratings):
    algorithm = recon(ADAM)
    packed = train(model, algorithm, ratings, [3])
    (batches,) = client_datasets(model, ratings, [3], batch_size=BATCH_SIZE)
    examples = examples_from_dataset(model, batches)
    assert_same(train(model, algorithm, ratings, [3], examples=examples), packed)


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_a_client_that_is_not_finite_is_dropped(model, ratings, value):
    algorithm = recon(MOMENTUM, weighting="uniform")
    healthy = train(model, algorithm, ratings, [0, 1, 2, 3])
    labels = ratings.labels.copy()
    labels[ratings.offsets[2] + 4] = value
    broken = train(model, algorithm, _with_labels(ratings, labels), [0, 1, 2, 3])
    np.testing.assert_array_equal(healthy.dropped, [0, 0, 0, 0])
    np.testing.assert_array_equal(broken.dropped, [0, 0, 1, 0])
    np.testing.assert_array_equal(broken.weights, [1, 1, 0, 1])
    assert broken.num_examples[2] == 0
    for sums in broken.metric_sums.values():
        np.testing.assert_array_equal(sums[2], 0)
    for update in broken.updates.values():
        np.testing.assert_array_equal(update[2], 0)
    for client in (0, 1, 3):
        assert_same(pick(broken, client), pick(healthy, client))


def _with_labels(dataset, labels):
    return type(dataset)(dataset.client_ids, dataset.offsets, dataset.features, labels)


@pytest.mark.parametrize(
    ("optimizer", "weighting"), [(SGD, "num_examples"), (ADAM, "uniform")], ids=["sgd", "adam"]
)
def test_padding_contributes_nothing(model, ratings, optimizer, weighting):
    algorithm = recon(optimizer, weighting=weighting)
    output = train(model, algorithm, ratings, [0, 1], clients=4)
    others = train(model, algorithm, ratings, [0, 1, 2, 3])
    first_two = [tf.nest.map_structure(lambda values: values[:2], o) for o in (output, others)]
    assert_same(*first_two)
    for values in tf.nest.flatten(output._replace(local_values={})):
        np.testing.assert_array_equal(values[2:], 0)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_what_a_model_makes_of_padding_is_ignored(make_dataset, optimizer):
    """The logarithm of padding is infinite, and so is its slope."""

    def build_model():
        x = tf.keras.Input([2], name="x")
        logarithm = tf.keras.layers.Lambda(tf.math.log)(x)
        hidden = tf.keras.layers.Dense(2, activation="tanh", name="shared")(logarithm)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(hidden))

    model = PartitionedModel(build_model, local_layers=["own"])
    random = np.random.default_rng(1)
    dataset = make_dataset(
        [
            (
                {"x": random.uniform(0.5, 2, size=(n, 2)).astype(np.float32)},
                random.normal(size=n).astype(np.float32),
            )
            for n in (7, 5)
        ]
    )
    algorithm = recon(optimizer)
    output = train(model, algorithm, dataset, [0, 1], clients=3)
    np.testing.assert_array_equal(output.dropped, 0)
    np.testing.assert_array_equal(output.num_examples, [3, 2, 0])
    for client in (0, 1):
        (batches,) = client_datasets(model, dataset, [client], batch_size=BATCH_SIZE)
        examples = examples_from_dataset(model, batches)
        alone = train(model, algorithm, dataset, [client], examples=examples)
        assert_same(pick(output, client), pick(alone, 0))
        assert np.abs(output.updates["shared/kernel"][client]).max() > 1e-4
    for values in tf.nest.flatten(output._replace(local_values={})):
        np.testing.assert_array_equal(values[2], 0)


def test_weights_are_the_examples_of_the_last_phase(model, ratings):
    assert train(model, recon(SGD), ratings, range(4)).weights.tolist() == [3, 0, 6, 1]
    capped = recon(SGD, local_epochs=3, max_local_steps=2)
    assert train(model, capped, ratings, range(4)).weights.tolist() == [6, 0, 6, 2]
    shared = recon(SGD, support_query_split="shared", local_epochs=2)
    assert train(model, shared, ratings, range(4)).weights.tolist() == [16, 6, 28, 8]
    uniform = train(model, recon(SGD, weighting="uniform"), ratings, range(4))
    assert uniform.weights.tolist() == [1, 1, 1, 1]
    assert uniform.num_examples.tolist() == [3, 0, 6, 1]


def test_support_and_query_are_even_and_odd_batches():
    class Masked:
        mask = tf.constant([[[1, 1], [1, 1], [1, 0]], [[1, 1], [1, 0], [0, 0]]], tf.float32)

    support = phase_mask("support", Masked).numpy().tolist()
    query = phase_mask("query", Masked).numpy().tolist()
    assert support == [[[1, 1], [0, 0], [1, 0]], [[1, 1], [0, 0], [0, 0]]]
    assert query == [[[0, 0], [1, 1], [0, 0]], [[0, 0], [1, 0], [0, 0]]]
    np.testing.assert_array_equal(phase_mask("all", Masked), Masked.mask)


def test_phases_see_their_batches_alone(model, ratings):
    """What is in the other batches changes nothing."""
    algorithm = Algorithm(
        "support only",
        (GradientPhase("global", "support", ADAM, epochs=2, max_steps=3),),
        local_variables="rebuilt",
    )
    labels = ratings.labels.copy()
    in_query = ratings.example_positions // BATCH_SIZE % 2 == 1
    # A swap, since local variables start from what the examples sum up to.
    for client in (0, 2):
        chosen = np.flatnonzero(in_query & (ratings.example_clients == client))
        labels[chosen] = labels[chosen[::-1]]
    assert (labels != ratings.labels).any()
    changed = train(model, algorithm, _with_labels(ratings, labels), range(4))
    original = train(model, algorithm, ratings, range(4))
    assert_same(changed, original)
    # The same sum of other numbers.
    labels[:BATCH_SIZE] += [4, -2, -2]
    other = train(model, algorithm, _with_labels(ratings, labels), range(4))
    name = "item_bias/embeddings"
    assert np.abs(other.updates[name][0] - original.updates[name][0]).max() > 1e-3


def test_without_epochs_nothing_moves(model, ratings):
    output = train(model, fed_avg(client_optimizer=SGD, local_epochs=0), ratings, range(4))
    capped = train(model, recon(MOMENTUM, max_local_steps=0), ratings, range(4))
    # Local variables have been rebuilt, or are as they were.
    output, capped = (o._replace(local_values={}) for o in (output, capped))
    for values in tf.nest.flatten(output):
        np.testing.assert_array_equal(values, 0)
    assert_same(capped, output)


def test_without_reconstruction_local_variables_keep_their_start(model, ratings):
    without = Algorithm(
        "update only", (GradientPhase("global", "query", SGD),), local_variables="rebuilt"
    )
    skipped = train(model, recon(SGD, reconstruction_epochs=0), ratings, range(4))
    assert_same(skipped, train(model, without, ratings, range(4)))
    rebuilt = train(model, recon(SGD), ratings, range(4))
    assert np.abs(rebuilt.metric_sums["loss"] - skipped.metric_sums["loss"]).max() > 0.01


def test_metrics_are_taken_before_each_step(model, ratings):
    """A rate of nothing and the first step of any rate see the same model."""
    still = tff.learning.optimizers.build_sgdm(1e-12)
    one_step = {"max_reconstruction_steps": 0, "max_local_steps": 1}
    before = train(model, recon(still, **one_step), ratings, range(4))
    moving = train(model, recon(SGD, **one_step), ratings, range(4))
    assert_same(moving.metric_sums, before.metric_sums)
    assert sorted(moving.metric_sums) == ["loss", "mae"]


def test_clients_start_from_draws_of_their_own(model, ratings):
    """They depend on the seed and on a client's examples, not on its place or on padding."""

    def start(indices, seed=0, **options):
        examples = pack(model, ratings, indices, **options)

        @tf.function(autograph=False)
        def run():
            return starting_values(model, {}, examples, tf.constant([seed, 1])).own

        return run()["user_embedding/vector"].numpy()

    vectors = start([0, 1, 2, 3])
    assert len(np.unique(vectors)) == vectors.size
    np.testing.assert_array_equal(start([3, 0], clients=3)[:2], vectors[[3, 0]])
    np.testing.assert_array_equal(start([0, 1, 2, 3], batch_size=20), vectors)
    assert not (start([0, 1, 2, 3], seed=1) == vectors).any()


def test_the_norm_of_an_update_is_bounded(model, ratings):
    free = train(model, recon(SGD), ratings, range(4))
    norms = sum((u.reshape(4, -1) ** 2).sum(1) for u in free.updates.values()) ** 0.5
    bound = float(np.median(norms))
    clipped = train(model, recon(SGD, max_update_norm=bound), ratings, range(4))
    factors = np.minimum(1.0, bound / np.maximum(norms, 1e-9))
    assert (factors < 1).sum() == 2
    for name, update in free.updates.items():
        expected = update * factors[:, np.newaxis, np.newaxis]
        np.testing.assert_allclose(clipped.updates[name], expected, rtol=1e-4, atol=1e-6)
    assert_same(clipped.metric_sums, free.metric_sums)


def test_weight_decay_refuses_lookups(model, ratings):
    algorithm = recon(tff.learning.optimizers.build_adamw(0.1))
    with pytest.raises(ValueError, match="weight decay.*item_embedding/embeddings.*lookups"):
        train(model, algorithm, ratings, [0])
