"""Keras models as functions of their variables, and the models that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization

LAYERS = tf.keras.layers


def two_towers():
    """Inputs of two types, a table, dense layers, one of them within a model of its own."""
    x = tf.keras.Input([3], name="x")
    word = tf.keras.Input([2], dtype=tf.int32, name="word")
    table = LAYERS.Embedding(5, 4, name="table")(word)
    joined = LAYERS.Concatenate()([x, LAYERS.Flatten()(table)])
    block = tf.keras.Sequential(
        [LAYERS.Dense(4, activation="relu"), LAYERS.LayerNormalization()], name="block"
    )
    hidden = LAYERS.Dropout(0.5)(block(joined))
    return tf.keras.Model({"x": x, "word": word}, LAYERS.Dense(2, name="head")(hidden))


def dense(*, units=1, **options):
    def build_model():
        x = tf.keras.Input([3], name="x")
        return tf.keras.Model({"x": x}, LAYERS.Dense(units, name="only", **options)(x))

    return build_model


def random_values(model, seed=0):
    random = np.random.default_rng(seed)
    return {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.variables}


def predict(model, values, features, *, training=False):
    """Applies a partitioned model, in a graph, as it wants to be."""

    @tf.function(autograph=False)
    def run():
        tensors = {name: tf.constant(value) for name, value in values.items()}
        inputs = {name: tf.constant(value) for name, value in features.items()}
        return model.predict(tensors, inputs, training=training)

    output, losses = run()
    return output.numpy(), [loss.numpy() for loss in losses]


def test_variables_are_split_by_layer():
    model = PartitionedModel(two_towers, local_layers=["block", "head"], lookups={"table": "word"})
    found = [(v.name, v.layer, v.shape, v.is_local) for v in model.variables]
    assert [(layer, shape, is_local) for _, layer, shape, is_local in found] == [
        ("table", (5, 4), False),
        ("block", (11, 4), True),
        ("block", (4,), True),
        ("block", (4,), True),
        ("block", (4,), True),
        ("head", (4, 2), True),
        ("head", (2,), True),
    ]
    names = [v.name for v in model.variables]
    assert len(set(names)) == 7 and "table/embeddings" in names and "head/kernel" in names
    assert model.global_variables == model.variables[:1]
    assert model.local_variables == model.variables[1:]
    assert [v.size for v in model.variables] == [20, 44, 4, 4, 4, 8, 2]
    assert model.tables == {"table/embeddings": "word"}
    assert model.owned == frozenset()
    assert {name: (s.shape.as_list(), s.dtype) for name, s in model.input_spec.items()} == {
        "x": ([None, 3], tf.float32),
        "word": ([None, 2], tf.int32),
    }


def test_one_local_layer_may_be_given_by_its_name():
    model = PartitionedModel(two_towers, local_layers="head")
    assert [v.name for v in model.local_variables] == ["head/kernel", "head/bias"]


def test_owned_tables_are_found():
    model = PartitionedModel(
        matrix_factorization(num_items=4, num_users=3, embedding_dim=2, use_biases=True),
        lookups={"item_embedding": "item", "user_embedding": "user", "user_bias": "user"},
        owned_tables=["user_embedding", "user_bias"],
    )
    assert model.owned == {"user_embedding/embeddings", "user_bias/embeddings"}


@pytest.mark.parametrize("training", [False, True])
def test_predictions_are_kerass_own(training):
    model = PartitionedModel(two_towers, local_layers=["head"])
    values = random_values(model)
    random = np.random.default_rng(1)
    features = {
        "x": random.normal(size=(6, 3)).astype(np.float32),
        "word": random.integers(0, 5, (6, 2)).astype(np.int32),
    }
    keras_model = two_towers()
    for variable, spec in zip(keras_model.variables, model.variables):
        assert variable.name.split("/")[-1] == f"{spec.name.split('/')[-1]}:0"
        variable.assign(values[spec.name])
    output, losses = predict(model, values, features, training=training)
    assert output.shape == (6, 2) and losses == []
    expected = keras_model(features).numpy()
    if training:
        assert np.abs(output - expected).max() > 1e-3, "no dropout"
    else:
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


class Subclassed(tf.keras.Model):
    """Creates its variables when it is called."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.first = LAYERS.Dense(4, activation="tanh", name="first")
        self.last = LAYERS.Dense(1, name="last")

    def call(self, inputs):
        hidden = self.first(inputs["x"])
        if tf.reduce_sum(hidden) > 0:  # Keras has AutoGraph make this a part of the graph.
            hidden = -hidden
        return self.last(hidden)


def test_a_subclassed_model_needs_its_input_spec():
    with pytest.raises(ValueError, match="'subclassed' does not tell its inputs: give input_spec"):
        PartitionedModel(Subclassed)
    model = PartitionedModel(
        Subclassed, local_layers=["last"], input_spec={"x": tf.TensorSpec([None, 2])}
    )
    assert [v.layer for v in model.local_variables] == ["last", "last"]
    x = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
    for shift in (-9.0, 9.0):
        values = random_values(model)
        values["subclassed/first/bias"] += shift
        first, bias, last, last_bias = (values[v.name] for v in model.variables)
        expected = -np.sign(shift) * np.tanh(x @ first + bias) @ last + last_bias
        np.testing.assert_allclose(predict(model, values, {"x": x})[0], expected, rtol=1e-4)


REFUSED = {
    "no model": (lambda: 3, {}, r"must return a tf\.keras\.Model, it returned 3"),
    "unknown layer": (
        dense(),
        {"local_layers": ["heda"]},
        r"local_layers: 'heda' names no variable of the model. It can be one of \['only', ",
    ),
    "no variables": (
        dense(),
        {"local_layers": ["x"]},
        "local_layers: 'x' names no variable of the model",
    ),
    "lookup of no layer": (
        dense(),
        {"lookups": {"table": "x"}},
        r"lookups: 'table' names no variable of the model",
    ),
    "lookup of two variables": (
        dense(),
        {"lookups": {"only": "x"}},
        "lookup layer 'only' must own exactly one.*'only/kernel', 'only/bias'",
    ),
    "lookup of no input": (
        two_towers,
        {"lookups": {"table": "wrod"}},
        r"lookup 'table' names the input 'wrod'; the model's inputs are \['word', 'x'\]",
    ),
    "owned, not a lookup": (
        two_towers,
        {"lookups": {"table": "word"}, "owned_tables": ["head"]},
        r"owned_tables \['head'\] are not among the lookups \['table'\]",
    ),
    "chunks of no sequences": (
        dense(),
        {"chunk_places": 100},
        "chunk_places=100 must be at least 1, and needs sequence_length",
    ),
    "empty chunks": (
        dense(),
        {"chunk_places": 0, "sequence_length": lambda features, labels: labels},
        "chunk_places=0 must be at least 1",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind):
    build_model, options, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        PartitionedModel(build_model, **options)


@pytest.mark.parametrize("frozen", [False, True])
def test_variables_that_gradients_do_not_train_are_refused(frozen):
    def build_model():
        x = tf.keras.Input([3], name="x")
        layer = LAYERS.Dense(2, trainable=False) if frozen else LAYERS.BatchNormalization()
        return tf.keras.Model({"x": x}, layer(x))

    with pytest.raises(ValueError, match="not trained by gradient.*such as GroupNormalization"):
        PartitionedModel(build_model)


def test_a_model_that_grows_is_refused():
    sizes = iter([1, 2])

    def build_model():
        x = output = tf.keras.Input([3], name="x")
        for i in range(next(sizes)):
            output = LAYERS.Dense(3, name=f"dense_{i}")(output)
        return tf.keras.Model({"x": x}, output)

    model = PartitionedModel(build_model)
    with pytest.raises(ValueError, match="created more variables than at its first call"):
        predict(model, random_values(model), FEATURES)


def test_equal_seeds_give_equal_values():
    model = PartitionedModel(two_towers)
    one, same, other = (model.initial_global_values(seed=seed) for seed in (3, 3, 4))
    random_ones = [v.name for v in model.variables if "kernel" in v.name or "table" in v.name]
    assert len(random_ones) == 3
    for name, value in one.items():
        np.testing.assert_array_equal(value, same[name])
        if name in random_ones:
            assert (value != other[name]).all()
        else:
            assert len(set(value.tolist())) == 1  # Biases 0, scales 1.


def test_initial_values_are_the_initializers():
    def build_model():
        x = tf.keras.Input([3], name="x")
        initializers = tf.keras.initializers
        shared = initializers.RandomNormal(mean=5.0, stddev=0.1)
        outputs = [
            LAYERS.Dense(500, kernel_initializer=initializer, name=name)(x)
            for name, initializer in [
                ("normal", shared),
                ("again", shared),
                ("uniform", initializers.RandomUniform(1.0, 2.0)),
                ("truncated", initializers.TruncatedNormal(stddev=1.0)),
                ("glorot", "glorot_uniform"),
                ("constant", initializers.Constant(0.25)),
                ("orthogonal", "orthogonal"),
                ("function", lambda shape, dtype=None: tf.fill(shape, 7.0)),
            ]
        ]
        return tf.keras.Model({"x": x}, LAYERS.Concatenate()(outputs))

    values = PartitionedModel(build_model).initial_global_values()
    kernels = {name[: -len("/kernel")]: v for name, v in values.items() if "kernel" in name}
    assert kernels["normal"].mean() == pytest.approx(5.0, abs=0.02)
    assert kernels["normal"].std() == pytest.approx(0.1, rel=0.1)
    assert (kernels["normal"] != kernels["again"]).all()
    assert kernels["uniform"].min() >= 1.0 and kernels["uniform"].max() <= 2.0
    assert kernels["uniform"].mean() == pytest.approx(1.5, abs=0.05)
    assert 1.5 < np.abs(kernels["truncated"]).max() < 2.3
    limit = (6 / 503) ** 0.5
    assert 0.9 * limit < np.abs(kernels["glorot"]).max() <= limit
    assert (kernels["constant"] == 0.25).all()
    orthogonal = kernels["orthogonal"]
    np.testing.assert_allclose(orthogonal @ orthogonal.T, np.eye(3), atol=1e-5)
    assert (kernels["function"] == 7.0).all()


FEATURES = {"x": np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], np.float32)}


def test_added_losses_are_handed_back():
    class Penalty(LAYERS.Layer):
        def call(self, inputs):
            self.add_loss(tf.reduce_sum(inputs**2, axis=-1))
            return inputs

    def build_model():
        x = tf.keras.Input([3], name="x")
        return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="only")(Penalty()(x)))

    model = PartitionedModel(build_model)
    _, losses = predict(model, random_values(model), FEATURES)
    assert len(losses) == 1
    np.testing.assert_allclose(losses[0], [14.0, 1.0])


def test_regularizers_are_handed_back():
    model = PartitionedModel(
        dense(kernel_regularizer=tf.keras.regularizers.L2(0.5)), local_layers=["only"]
    )
    values = random_values(model)
    _, losses = predict(model, values, FEATURES)
    np.testing.assert_allclose(losses, [0.5 * (values["only/kernel"] ** 2).sum()], rtol=1e-5)


def test_the_squared_norms_of_a_factorization_are_an_examples_own():
    model = PartitionedModel(
        matrix_factorization(num_items=4, embedding_dim=2, use_biases=True, l2=0.1),
        local_layers=["user_embedding", "user_bias"],
    )
    values = random_values(model)
    item = np.array([3, 0, 3], np.int32)
    output, (losses,) = predict(model, values, {"item": item})
    user, bias = values["user_embedding/vector"], values["user_bias/vector"]
    items = values["item_embedding/embeddings"][item]
    biases = values["item_bias/embeddings"][item, 0]
    np.testing.assert_allclose(output, items @ user + bias + biases, rtol=1e-5)
    norms = (user**2).sum() + (items**2).sum(1) + bias**2 + biases**2
    np.testing.assert_allclose(losses, 0.1 * norms, rtol=1e-5)


LABELS, PREDICTIONS = np.array([1.0, 2.0, 5.0]), np.array([1.5, 0.0, 5.0])


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        "mean_squared_error",
        tf.keras.losses.MeanSquaredError(),
        tf.keras.losses.mean_squared_error,
        lambda labels, predictions: tf.reduce_mean((labels - predictions) ** 2, -1),
    ],
)
@pytest.mark.parametrize("trailing", [False, True])
def test_a_loss_in_any_form_is_one_number_an_example(loss, trailing):
    model = PartitionedModel(dense(), loss=loss)
    predictions = PREDICTIONS[:, np.newaxis] if trailing else PREDICTIONS
    losses = model.example_losses(
        tf.constant(LABELS, tf.float32), tf.constant(predictions, tf.float32)
    )
    np.testing.assert_allclose(losses, [0.25, 4.0, 0.0])


def test_a_loss_is_averaged_within_an_example():
    model = PartitionedModel(dense(units=2), label_spec=tf.TensorSpec([None, 2]), loss="mae")
    losses = model.example_losses(tf.zeros([3, 2]), tf.constant([[1.0, 3.0], [0.0, 0.0], [-2, 2]]))
    np.testing.assert_allclose(losses, [2.0, 0.0, 2.0])


def test_class_labels_meet_their_scores():
    model = PartitionedModel(
        dense(units=2, activation="softmax"),
        label_spec=tf.TensorSpec([None], tf.int32),
        loss="sparse_categorical_crossentropy",
    )
    losses = model.example_losses(tf.constant([1, 0]), tf.constant([[0.25, 0.75], [0.5, 0.5]]))
    np.testing.assert_allclose(losses, -np.log([0.75, 0.5]), rtol=1e-5)
