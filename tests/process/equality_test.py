"""Packed execution, per-client execution and TFF's own FedRecon give the same."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from fedpersonal.process.datasets import client_datasets

from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort
from fedpersonal.tasks.ratings.rated import add_rated

SGD = tff.learning.optimizers.build_sgdm(0.3)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.1, momentum=0.8)
ADAM = tff.learning.optimizers.build_adam(0.05)
SERVER_SGD = tff.learning.optimizers.build_sgdm(0.9)
SERVER_YOGI = tff.learning.optimizers.build_yogi(
    0.2, epsilon=1e-2, initial_preconditioner_value=1e-2
)

BATCH_SIZE = 3
NUM_ITEMS = 7
# Three batches and a part of one, one batch, one example, many batches, two batches.
COUNTS = (11, 3, 1, 16, 6)
COHORTS = ([0, 1, 2, 3], [4, 3, 0], [1, 4, 2, 0, 3])


def close(actual, desired):
    np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4)


PACKED = Execution(batch_size=BATCH_SIZE, clients_per_shard=2)
PER_CLIENT = Execution(batch_size=BATCH_SIZE)


def run(execution, model, algorithm, dataset, *, server_optimizer=SERVER_SGD):
    """Returns the final weights and each round's metrics."""
    process = build_process(
        model, algorithm, execution=execution, server_optimizer=server_optimizer
    )
    state, metrics = process.initialize(), []
    for indices in COHORTS:
        touched = algorithm.touched_data
        cohort = make_cohort(model, dataset, indices, execution=execution, touched_data=touched)
        output = process.next(state, cohort.examples)
        state = output.state
        metrics.append(output.metrics)
    return dict(state.global_model_weights.trainable), metrics


def assert_same(one, other, *, examples_a_round):
    """Compares (weights, metrics) of two executions, and counts what they have learned from."""
    weights, metrics = one
    assert list(weights) == list(other[0])
    for name in weights:
        close(weights[name], other[0][name])
    for round_metrics, other_metrics, examples in zip(metrics, other[1], examples_a_round):
        assert sorted(round_metrics) == sorted(other_metrics)
        for name in round_metrics:
            close(round_metrics[name], other_metrics[name])
        assert round_metrics["num_examples"] == examples
        assert round_metrics["num_dropped_updates"] == 0


class Case:
    """A model, for this library and for TFF's own FedRecon, and its data."""

    def __init__(self, model, build_model, dataset, *, loss_fn, metric_fn, loss_of_metric):
        self.model = model
        self.dataset = dataset
        self._build_model = build_model
        self._loss_fn = loss_fn
        self._metric_fn = metric_fn
        self._loss_of_metric = loss_of_metric

    def run_tff(self, *, client, reconstruction, server, split_options):
        """Returns the final weights by our names, and each round's loss."""
        model = self.model
        local = {v.layer for v in model.local_variables}
        spec = collections.OrderedDict(
            x=collections.OrderedDict(sorted(model.input_spec.items())), y=model.label_spec
        )

        def model_fn():
            keras_model = self._build_model()
            layers = [layer for layer in keras_model.layers if layer.variables]
            return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
                keras_model=keras_model,
                global_layers=[layer for layer in layers if layer.name not in local],
                local_layers=[layer for layer in layers if layer.name in local],
                input_spec=spec,
            )

        process = tff.learning.algorithms.build_fed_recon(
            model_fn,
            loss_fn=self._loss_fn,
            metrics_fn=lambda: [self._metric_fn(name="example_mean")],
            server_optimizer_fn=server,
            client_optimizer_fn=client,
            reconstruction_optimizer_fn=reconstruction,
            dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(
                **split_options
            ),
        )
        names = [v.name for v in model.global_variables]
        start = model.initial_global_values()
        state = process.set_model_weights(
            process.initialize(),
            tff.learning.models.ModelWeights([start[name] for name in names], []),
        )
        losses = []
        for indices in COHORTS:
            cohort = client_datasets(model, self.dataset, indices, batch_size=BATCH_SIZE)
            output = process.next(state, cohort)
            state = output.state
            # TFF's own `loss` is the mean over batches, whatever their sizes.
            metric = output.metrics["client_work"]["train"]["example_mean"]
            losses.append(self._loss_of_metric(metric))
        return dict(zip(names, process.get_model_weights(state).trainable)), losses


@pytest.fixture(name="ratings", scope="module")
def _ratings(draw_ratings):
    # Few items are rated, so that they repeat in batches of both sets, and from batch to batch.
    dataset = draw_ratings(COUNTS, num_items=NUM_ITEMS - 3, seed=3)
    support, query, *_ = (set(b) for b in dataset.client(3)[0]["item"][:15].reshape(-1, 3))
    assert len(support) < 3 and len(query) < 3
    return dataset


@pytest.fixture(name="factorization", scope="module")
def _factorization(ratings):

    def build_model():
        return matrix_factorization(
            num_items=NUM_ITEMS,
            embedding_dim=2,
            use_biases=True,
            mean_rating=3.0,
            embedding_initializer=tf.keras.initializers.RandomNormal(stddev=0.5),
            user_initializer=tf.keras.initializers.Constant([0.4, -0.3]),
        )()

    model = PartitionedModel(
        build_model,
        local_layers=["user_embedding", "user_bias"],
        lookups={"item_embedding": "item", "item_bias": "item"},
    )
    return Case(
        model,
        build_model,
        ratings,
        loss_fn=tf.keras.losses.MeanSquaredError,
        metric_fn=tf.keras.metrics.RootMeanSquaredError,
        loss_of_metric=lambda rmse: rmse**2,
    )


@pytest.fixture(name="classifier", scope="module")
def _classifier(make_dataset):
    """Three classes; the last layer is each client's own."""
    random = np.random.default_rng(1)
    head = random.normal(size=(4, 3)).astype(np.float32)

    def build_model():
        x = tf.keras.Input([2], name="x")
        hidden = tf.keras.layers.Dense(4, activation="tanh", name="shared")(x)
        start = tf.keras.initializers.Constant(head)
        output = tf.keras.layers.Dense(
            3, activation="softmax", kernel_initializer=start, name="head"
        )(hidden)
        return tf.keras.Model({"x": x}, output)

    model = PartitionedModel(
        build_model,
        local_layers=["head"],
        loss="sparse_categorical_crossentropy",
        label_spec=tf.TensorSpec([None], tf.int32),
    )
    dataset = make_dataset(
        [
            ({"x": random.normal(size=(n, 2)).astype(np.float32)}, random.integers(0, 3, n))
            for n in COUNTS
        ]
    )
    return Case(
        model,
        build_model,
        dataset,
        loss_fn=tf.keras.losses.SparseCategoricalCrossentropy,
        metric_fn=tf.keras.metrics.SparseCategoricalCrossentropy,
        loss_of_metric=float,
    )


# Options as TFF names them. Shared with both models; every optimizer comes in every role.
SETTINGS = {
    "disjoint": {
        "recon_epochs": 2,
        "recon_steps_max": 3,
        "post_recon_epochs": 1,
        "post_recon_steps_max": None,
        "split_dataset": True,
    },
    "shared": {
        "recon_epochs": 1,
        "recon_steps_max": None,
        "post_recon_epochs": 2,
        "post_recon_steps_max": 5,
        "split_dataset": False,
    },
}


def processed_examples(count, setting):
    """How many examples the update phase of a client processes."""
    sizes = [min(BATCH_SIZE, count - start) for start in range(0, count, BATCH_SIZE)]
    sizes = sizes[1::2] if setting["split_dataset"] else sizes
    return sum((sizes * setting["post_recon_epochs"])[: setting["post_recon_steps_max"]])


def examples_a_round(setting):
    return [sum(processed_examples(COUNTS[i], setting) for i in cohort) for cohort in COHORTS]


@pytest.mark.parametrize(
    ("case", "setting", "client", "reconstruction", "server"),
    [
        ("factorization", "disjoint", SGD, SGD, SERVER_SGD),
        ("factorization", "shared", ADAM, MOMENTUM, SERVER_YOGI),
        ("classifier", "disjoint", MOMENTUM, ADAM, SERVER_YOGI),
        ("classifier", "shared", SGD, SGD, SERVER_SGD),
    ],
)
def test_fed_recon_is_tffs(request, case, setting, client, reconstruction, server):
    case, setting = request.getfixturevalue(case), SETTINGS[setting]
    algorithm = fed_recon(
        client_optimizer=client,
        reconstruction_optimizer=reconstruction,
        support_query_split="skip" if setting["split_dataset"] else "shared",
        reconstruction_epochs=setting["recon_epochs"],
        max_reconstruction_steps=setting["recon_steps_max"],
        local_epochs=setting["post_recon_epochs"],
        max_local_steps=setting["post_recon_steps_max"],
    )
    packed, per_client = (
        run(execution, case.model, algorithm, case.dataset, server_optimizer=server)
        for execution in (PACKED, PER_CLIENT)
    )
    assert_same(packed, per_client, examples_a_round=examples_a_round(setting))

    weights, losses = case.run_tff(
        client=client, reconstruction=reconstruction, server=server, split_options=setting
    )
    start = case.model.initial_global_values()
    for name, value in weights.items():
        close(packed[0][name], value)
        assert np.abs(value - start[name]).max() > 0.01
    close([m["loss"] for m in packed[1]], losses)


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_joint_training_is_the_same_packed(factorization, optimizer):
    algorithm = fed_recon(
        client_optimizer=optimizer, reconstruction_optimizer=SGD, joint_training=True
    )
    # With a random start, which no execution may have a say in.
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=2, l2=0.1, mean_rating=3.0),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"},
    )
    dataset = factorization.dataset
    packed, per_client = (run(how, model, algorithm, dataset) for how in (PACKED, PER_CLIENT))
    assert_same(packed, per_client, examples_a_round=examples_a_round(SETTINGS["disjoint"]))


@pytest.mark.parametrize("reconstruction", ["gradient", "ridge"])
def test_what_users_have_rated_is_the_same_packed(factorization, reconstruction):
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=2, rated_places=4, l2=0.1),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item", "rated_embedding": "rated"},
    )
    algorithm = fed_recon(
        client_optimizer=SGD, reconstruction_optimizer=SGD, reconstruction=reconstruction
    )
    dataset = add_rated(factorization.dataset, factorization.dataset, places=4)
    packed, per_client = (run(how, model, algorithm, dataset) for how in (PACKED, PER_CLIENT))
    assert_same(packed, per_client, examples_a_round=examples_a_round(SETTINGS["disjoint"]))


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM], ids=["sgd", "momentum"])
def test_fed_avg_with_owned_users_is_the_same_packed(ratings, optimizer):
    model = PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS, num_users=len(COUNTS), embedding_dim=2, mean_rating=3.0
        ),
        lookups={"item_embedding": "item", "user_embedding": "user"},
        owned_tables=["user_embedding"],
    )
    algorithm = fed_avg(client_optimizer=optimizer, local_epochs=2, max_local_steps=7)
    threes = Execution(batch_size=BATCH_SIZE, clients_per_shard=3)
    packed, per_client = (run(how, model, algorithm, ratings) for how in (threes, PER_CLIENT))
    examples = [sum(_first_steps(COUNTS[i], 7) for i in cohort) for cohort in COHORTS]
    assert_same(packed, per_client, examples_a_round=examples)


class Branching(tf.keras.Model):
    """Leaves it to AutoGraph to make a part of the graph of its `if`."""

    def __init__(self):
        super().__init__(name="branching")
        self.first = tf.keras.layers.Dense(3, activation="tanh", name="first")
        # A loss without examples, each client's own.
        penalty = tf.keras.regularizers.L2(0.1)
        self.last = tf.keras.layers.Dense(1, kernel_regularizer=penalty, name="last")

    def call(self, inputs):
        hidden = self.first(inputs["x"])
        if tf.reduce_sum(hidden) > 0:
            hidden = -hidden
        return self.last(hidden)


def test_a_subclassed_model_that_branches_is_the_same_packed(classifier):
    dataset = classifier.dataset
    model = PartitionedModel(
        Branching, local_layers=["last"], input_spec={"x": tf.TensorSpec([None, 2])}
    )
    algorithm = fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD)
    packed, per_client = (run(how, model, algorithm, dataset) for how in (PACKED, PER_CLIENT))
    assert_same(packed, per_client, examples_a_round=examples_a_round(SETTINGS["disjoint"]))


def _first_steps(count, steps):
    sizes = [min(BATCH_SIZE, count - start) for start in range(0, count, BATCH_SIZE)]
    return sum((2 * sizes)[:steps])


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_lookups_change_nothing(factorization, optimizer):
    algorithm = fed_recon(client_optimizer=optimizer, reconstruction_optimizer=SGD)
    plain = PartitionedModel(
        factorization._build_model, local_layers=["user_embedding", "user_bias"]
    )
    results = [
        run(PACKED, model, algorithm, factorization.dataset)
        for model in (plain, factorization.model)
    ]
    assert_same(*results, examples_a_round=examples_a_round(SETTINGS["disjoint"]))


def test_a_model_of_several_looked_up_words_is_the_same_packed(make_dataset):
    def build_model():
        words = tf.keras.Input([4], dtype=tf.int32, name="words")
        vectors = tf.keras.layers.Embedding(NUM_ITEMS, 2, name="table")(words)
        joined = tf.keras.layers.Flatten()(vectors)
        return tf.keras.Model({"words": words}, tf.keras.layers.Dense(1, name="own")(joined))

    random = np.random.default_rng(5)
    dataset = make_dataset(
        [({"words": random.integers(0, NUM_ITEMS, (n, 4))}, random.normal(size=n)) for n in COUNTS]
    )
    models = [
        PartitionedModel(build_model, local_layers=["own"], lookups=lookups)
        for lookups in ({"table": "words"}, {})
    ]
    algorithm = fed_recon(client_optimizer=MOMENTUM, reconstruction_optimizer=SGD)
    packed = run(PACKED, models[0], algorithm, dataset)
    per_client = run(PER_CLIENT, models[1], algorithm, dataset)
    assert_same(packed, per_client, examples_a_round=examples_a_round(SETTINGS["disjoint"]))
    start = models[0].initial_global_values()["table/embeddings"]
    assert np.abs(packed[0]["table/embeddings"] - start).max() > 1e-4
