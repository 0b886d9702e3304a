"""Keras models as functions of their variables: how these are split, named, drawn and used."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization

LAYERS = tf.keras.layers
FEATURES = {"x": np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], np.float32)}


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


class Encoder(LAYERS.Layer):
    """A layer of two layers."""

    def __init__(self):
        super().__init__(name="encoder")
        self.body = LAYERS.Dense(2, name="body")
        self.head = LAYERS.Dense(2, name="head")

    def call(self, inputs):
        return self.head(self.body(inputs))


def layered():
    x = tf.keras.Input([3], name="x")
    return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(Encoder()(x)))


def functional():
    """The nested model's layers do not have its name in their variables' names."""
    inner = tf.keras.Input([3])
    hidden = LAYERS.Dense(2, name="body")(inner)
    encoder = tf.keras.Model(inner, LAYERS.Dense(2, name="head")(hidden), name="encoder")
    x = tf.keras.Input([3], name="x")
    return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(encoder(x)))


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
    assert [(v.layer, v.shape, v.is_local, v.size) for v in model.variables] == [
        ("table", (5, 4), False, 20),
        ("block", (11, 4), True, 44),
        *[("block", (4,), True, 4)] * 3,
        ("head", (4, 2), True, 8),
        ("head", (2,), True, 2),
    ]
    names = [v.name for v in model.variables]
    assert len(set(names)) == 7 and "table/embeddings" in names and "head/kernel" in names
    assert model.global_variables == model.variables[:1]
    assert model.local_variables == model.variables[1:]
    assert model.tables == {"table/embeddings": "word"}
    assert model.server_rows_per_client == frozenset()
    assert {name: (s.shape.as_list(), s.dtype) for name, s in model.input_spec.items()} == {
        "x": ([None, 3], tf.float32),
        "word": ([None, 2], tf.int32),
    }


@pytest.mark.parametrize("build_model", [layered, functional])
@pytest.mark.parametrize(
    ("local", "expected"),
    [
        (["encoder"], ["body/kernel", "body/bias", "head/kernel", "head/bias"]),
        (["encoder/head"], ["head/kernel", "head/bias"]),
        ("out/bias", ["out/bias"]),
        (["encoder/body", "out/kernel"], ["body/kernel", "body/bias", "out/kernel"]),
    ],
)
def test_local_variables_are_named(build_model, local, expected):
    model = PartitionedModel(build_model, local_layers=local)
    assert [v.name.replace("encoder/", "") for v in model.local_variables] == expected
    assert len(model.global_variables) == 6 - len(expected)
    if build_model is functional:  # What chooses fewer variables is more specific.
        assert model.variables[0].names == ("body/kernel", "encoder/body", "body", "encoder")


def test_the_more_specific_name_counts(tmp_path):
    shapes = (("body/kernel", [3, 2]), ("body/bias", [2]), ("head/kernel", [2, 2]))
    values = {f"encoder/{name}": np.ones(shape, np.float32) for name, shape in shapes}
    model = PartitionedModel(
        layered,
        frozen_layers=["encoder"],
        local_layers=["encoder/head/bias"],
        frozen=FrozenVariables.write(tmp_path, values),
    )
    assert [v.name for v in model.local_variables] == ["encoder/head/bias"]
    assert [v.name for v in model.global_variables] == ["out/kernel", "out/bias"]


def test_initial_values_are_traced_once():
    """TensorFlow warns of what is traced over and over."""
    model = PartitionedModel(dense(), local_layers=["only/bias"])
    for draw in (model.initial_global_values, model.initial_local_values):
        first, *others = (draw(seed=seed) for seed in (3, 4, 3))
        assert all(np.array_equal(first[name], others[-1][name]) for name in first)
    assert [draw.experimental_get_tracing_count() for draw in model._samplers.values()] == [1, 1]


def test_owned_tables():
    model = PartitionedModel(
        matrix_factorization(num_items=4, num_users=3, embedding_dim=2, use_biases=True),
        lookups={"item_embedding": "item", "user_embedding": "user", "user_bias": "user"},
        per_client_tables=["user_embedding", "user_bias"],
    )
    assert model.server_rows_per_client == {"user_embedding/embeddings", "user_bias/embeddings"}


@pytest.mark.parametrize("training", [True, False])
def test_predictions_are_kerass_own(training):
    model = PartitionedModel(two_towers, local_layers=["head"])
    values, random = random_values(model), np.random.default_rng(1)
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


def test_a_subclassed_model_with_its_input_spec():
    spec = {"x": tf.TensorSpec([None, 2])}
    model = PartitionedModel(Subclassed, local_layers=["last"], input_spec=spec)
    assert [v.layer for v in model.local_variables] == ["last", "last"]
    x = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
    for shift in (-9.0, 9.0):
        values = random_values(model)
        values["subclassed/first/bias"] += shift
        first, bias, last, last_bias = (values[v.name] for v in model.variables)
        expected = -np.sign(shift) * np.tanh(x @ first + bias) @ last + last_bias
        np.testing.assert_allclose(predict(model, values, {"x": x})[0], expected, rtol=1e-4)


def not_trained(make):
    def build_model():
        x = tf.keras.Input([3], name="x")
        return tf.keras.Model({"x": x}, make()(x))

    return build_model


def constrained_table():
    word = tf.keras.Input([], dtype=tf.int32, name="word")
    table = LAYERS.Embedding(4, 2, embeddings_constraint="unit_norm", name="table")
    return tf.keras.Model({"word": word}, LAYERS.Dense(1)(table(word)))


OUTER = LAYERS.Dense(1, name="outer")
OUTER.build([None, 3])
UNTRAINED = "not trained by gradient.*such as GroupNormalization"
REFUSED = {
    "no model": (lambda: 3, {}, r"must return a tf\.keras\.Model, it returned 3"),
    "no inputs": (Subclassed, {}, "'subclassed' does not declare its inputs: give input_spec"),
    "unknown layer": (
        layered,
        {"local_layers": ["encoder/haed"]},
        r"local_layers: 'encoder/haed' names no variable of the model; did you mean "
        r"'encoder/head'.*It can be one of \['encoder', 'encoder/body', 'encoder/body/kernel'",
    ),
    "unlike any": (dense(), {"local_layers": ["heda"]}, r"of the model. It can be one of \['only"),
    "no variables": (dense(), {"frozen_layers": ["x"]}, "frozen_layers: 'x' names no variable"),
    "local and frozen": (
        layered,
        {"local_layers": ["encoder/head"], "frozen_layers": ["encoder/head"]},
        "'encoder/head' is named local and frozen",
    ),
    "lookup of no layer": (dense(), {"lookups": {"table": "x"}}, "lookups: 'table' names no var"),
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
        {"lookups": {"table": "word"}, "per_client_tables": ["head"]},
        r"per_client_tables \['head'\] are not among the lookups \['table'\]",
    ),
    "lookup under a constraint": (
        constrained_table,
        {"lookups": {"table": "word"}},
        "lookup layer 'table' has a constraint, which Keras applies to all rows.*leave the layer",
    ),
    "layer of another place": (
        lambda: tf.keras.Sequential([tf.keras.Input([3]), OUTER]),
        {},
        "variable 'kernel' was made before build_model was called",
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
    "untrained": (not_trained(lambda: LAYERS.Dense(2, trainable=False)), {}, UNTRAINED),
    "batch statistics": (not_trained(LAYERS.BatchNormalization), {}, UNTRAINED),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind):
    build_model, options, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        PartitionedModel(build_model, **options)


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


def test_initial_values_are_the_initializers():
    initializers = tf.keras.initializers
    shared = initializers.RandomNormal(mean=5.0, stddev=0.1)
    kinds = {
        "normal": shared,
        "again": shared,
        "uniform": initializers.RandomUniform(1.0, 2.0),
        "truncated": initializers.TruncatedNormal(stddev=1.0),
        "glorot": "glorot_uniform",
        "constant": initializers.Constant(0.25),
        "orthogonal": "orthogonal",
        "function": lambda shape, dtype=None: tf.fill(shape, 7.0),
    }

    def build_model():
        x = tf.keras.Input([3], name="x")
        outputs = [
            LAYERS.Dense(500, kernel_initializer=initializer, name=name)(x)
            for name, initializer in kinds.items()
        ]
        return tf.keras.Model({"x": x}, LAYERS.Concatenate()(outputs))

    model = PartitionedModel(build_model)
    values, same, other = (model.initial_global_values(seed=seed) for seed in (3, 3, 4))
    for name, value in values.items():
        np.testing.assert_array_equal(value, same[name])
        is_drawn = name.endswith("kernel") and name.split("/")[0] not in ("constant", "function")
        assert (value != other[name]).all() == is_drawn
    kernels = {name[: -len("/kernel")]: v for name, v in values.items() if "kernel" in name}
    assert kernels["normal"].mean() == pytest.approx(5.0, abs=0.02)
    assert kernels["normal"].std() == pytest.approx(0.1, rel=0.1)
    assert (kernels["normal"] != kernels["again"]).all()
    assert kernels["uniform"].min() >= 1.0 and kernels["uniform"].max() <= 2.0
    assert kernels["uniform"].mean() == pytest.approx(1.5, abs=0.05)
    assert 1.5 < np.abs(kernels["truncated"]).max() < 2.3
    limit = (6 / 503) ** 0.5
    assert 0.9 * limit < np.abs(kernels["glorot"]).max() <= limit
    orthogonal = kernels["orthogonal"]
    np.testing.assert_allclose(orthogonal @ orthogonal.T, np.eye(3), atol=1e-5)
    assert (kernels["constant"] == 0.25).all() and (kernels["function"] == 7.0).all()


class Penalty(LAYERS.Layer):
    """Adds a loss an example."""

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs**2, axis=-1))
        return inputs


def test_added_losses_and_regularizers_are_handed_back():
    def build_model():
        x = tf.keras.Input([3], name="x")
        regular = LAYERS.Dense(1, name="only", kernel_regularizer=tf.keras.regularizers.L2(0.5))
        return tf.keras.Model({"x": x}, regular(Penalty()(x)))

    model = PartitionedModel(build_model, local_layers=["only"])
    values = random_values(model)
    _, losses = predict(model, values, FEATURES)
    expected = [[14.0, 1.0], 0.5 * (values["only/kernel"] ** 2).sum()]
    for loss, one in zip(losses, expected):
        np.testing.assert_allclose(loss, one, rtol=1e-5)
