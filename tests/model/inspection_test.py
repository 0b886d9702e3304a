"""Models as users bring them: Sequential, ready-made, compiled, of several inputs or outputs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel

LAYERS = tf.keras.layers
X = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]], np.float32)


def sequential(**options):
    return tf.keras.Sequential(
        [LAYERS.Dense(4, activation="tanh", **options), LAYERS.Dense(1)], name="sequential"
    )


def predict(model, features, values=None, times=1):
    """Predicts, several times in one graph."""
    values = values or model.initial_global_values()
    run = tf.function(
        lambda v, f: [model.predict(v, f, training=False)[0] for _ in range(times)],
        autograph=False,
        reduce_retracing=True,
    )
    return run(values, {k: tf.constant(v) for k, v in features.items()})[-1].numpy()


@pytest.mark.parametrize("tells_inputs", [True, False])
def test_a_sequential_model_is_taken(tells_inputs):
    if tells_inputs:
        model = PartitionedModel(lambda: sequential(input_shape=(3,)))
    else:
        spec = tf.TensorSpec([None, 3])
        model = PartitionedModel(sequential, input_spec={"dense_input": spec})
        by_spec = PartitionedModel(sequential, input_spec=spec)
        assert [v.name for v in by_spec.variables] == [v.name for v in model.variables]
    values = model.initial_global_values()
    kernel, bias, last, last_bias = values.values()
    expected = np.tanh(X @ kernel + bias) @ last + last_bias
    np.testing.assert_allclose(predict(model, {"dense_input": X}), expected, rtol=1e-5)


@pytest.mark.parametrize("times", [1, 2])
def test_inputs_without_names_stay_in_order(times):
    """Built again in one graph, Keras numbers names on."""

    def build_model():
        one, other = tf.keras.Input([3]), tf.keras.Input([3])
        return tf.keras.Model([one, other], LAYERS.Dense(1)(one - 2 * other))

    model = PartitionedModel(build_model)
    first, second = model.input_spec
    kernel, _ = model.initial_global_values().values()
    predictions = predict(model, {second: 3 * X, first: X}, times=times)
    np.testing.assert_allclose(predictions, -5 * X @ kernel, rtol=1e-5)


def test_inputs_have_the_names_of_the_models_dict():
    def build_model():
        x = tf.keras.Input([3], name="another")
        return tf.keras.Model({"x": x}, LAYERS.Dense(1)(x))

    model = PartitionedModel(build_model)
    assert list(model.input_spec) == ["x"]
    assert predict(model, {"x": X}).shape == (2, 1)


def of_operation(operation):
    def build_model():
        x = tf.keras.Input([3], name="x")
        operated = tf.keras.Model(x, operation(x))
        return tf.keras.Sequential([tf.keras.Input([3], name="x"), operated, LAYERS.Dense(1)])

    return build_model


def nested():
    x = tf.keras.Input([3], name="x")
    block = tf.keras.Sequential([LAYERS.Dense(2), LAYERS.LayerNormalization()], name="block")
    hidden = block(LAYERS.Dense(3, name="wide")(x)) + x[:, :1]
    return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(hidden))


@pytest.mark.parametrize(
    "build_model",
    [nested, of_operation(lambda x: x[:, :1]), of_operation(lambda x: tf.reduce_max(x, 1, True))],
    ids=["nested", "slice", "maximum"],
)
def test_a_model_starts_from_its_weights(build_model):
    """Also after a build without AutoGraph, when Keras drops the arguments of operations."""
    tf.autograph.experimental.do_not_convert(build_model)()
    keras_model, random = build_model(), np.random.default_rng(0)
    keras_model.set_weights([random.normal(size=w.shape) for w in keras_model.weights])
    before = keras_model.get_weights()
    model = PartitionedModel(keras_model)
    draw = tf.function(lambda: model.initial_values(model.variables, tf.constant([5, 1])))
    np.testing.assert_allclose(predict(model, {"x": X}, draw()), keras_model(X), rtol=1e-5)
    for weight, earlier in zip(keras_model.get_weights(), before):
        np.testing.assert_array_equal(weight, earlier)


class UnitNormal(tf.keras.initializers.RandomNormal):
    """Its numbers depend on each other."""

    def __call__(self, shape, dtype=None, **options):
        value = super().__call__(shape, dtype)
        return value / tf.norm(value)


@pytest.mark.parametrize(
    "initializer",
    ["random_normal", "he_uniform", "truncated_normal", "ones", "orthogonal", UnitNormal()],
)
def test_several_seeds_draw_what_each_alone_does(initializer):
    kernel = {"kernel_initializer": initializer, "name": "own"}
    model = PartitionedModel(of_operation(LAYERS.Dense(3, **kernel)), local_layers=["own"])
    draw = tf.function(lambda seeds: model.initial_values(model.local_variables, seeds))
    seeds = tf.constant([[5, 1], [-7, 2], [5, 1]])
    together, alone = draw(seeds), [draw(seed) for seed in seeds]
    for name, values in together.items():
        np.testing.assert_array_equal(values, [own[name] for own in alone])
    drawn = together["own/kernel"].numpy()
    assert (drawn[0] == drawn[2]).all() and (
        (drawn[0] == drawn[1]).all() == (initializer == "ones")
    )


class Magnitude(LAYERS.Layer):
    def call(self, inputs):
        if tf.reduce_sum(inputs) > 0:
            return inputs
        else:
            return -inputs


def test_a_layer_of_a_functional_model_may_branch_on_tensors():
    model = PartitionedModel(of_operation(lambda x: Magnitude()(x)))
    np.testing.assert_array_equal(predict(model, {"x": X}), predict(model, {"x": -X}))


class Subclassed(tf.keras.Model):
    """Keras copies what its constructor is given, not what it is built for."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.out = LAYERS.Dense(1)

    def call(self, inputs):
        return self.out(inputs)


def built_subclassed():
    keras_model = Subclassed()
    keras_model(X)
    return keras_model


def noisy():
    x = tf.keras.Input([3], name="x")
    noise = LAYERS.Lambda(lambda v: v + tf.random.normal(tf.shape(v)))(x)
    return tf.keras.Model({"x": x}, LAYERS.Dense(1)(noise))


def several_outputs(as_dict):
    def build_model():
        x = tf.keras.Input([3], name="x")
        outputs = {name: LAYERS.Dense(1, name=name)(x) for name in ("stars", "minutes")}
        return tf.keras.Model({"x": x}, outputs if as_dict else list(outputs.values()))

    return build_model


SEVERAL = "several outputs.*'stars'.*it needs one. Wrap it.*Concat"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (built_subclassed, r"'subclassed' cannot be copied.*PartitionedModel\(lambda"),
        (lambda: noisy, "generates random numbers by itself .RandomStandardNormal"),
        (lambda: several_outputs(True), SEVERAL),
        (lambda: several_outputs(False), SEVERAL),
    ],
    ids=["subclassed", "noisy", "outputs by name", "outputs in a list"],
)
def test_models_that_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        PartitionedModel(make())


@pytest.mark.parametrize("as_dict", [True, False])
def test_several_outputs_are_wrapped_as_the_message_says(as_dict):
    def build_model():
        model = several_outputs(as_dict)()
        outputs = list(model.output.values()) if as_dict else model.output
        return tf.keras.Model(model.input, LAYERS.Concatenate()(outputs))

    assert predict(PartitionedModel(build_model), {"x": X}).shape == (2, 2)


def test_the_users_own_models_still_work():
    """Keras changes the classes of models that are made in a graph."""
    build_model = of_operation(lambda x: tf.roll(x, 1, 1))
    keras_model = build_model()
    keras_model.compile("sgd", "mse")
    predict(PartitionedModel(build_model), {"x": X})
    keras_model.fit(X, np.ones(2), verbose=0)
    assert keras_model.predict(X, verbose=0).shape == (2, 1)
    copied = tf.keras.models.clone_model(build_model())
    copied.set_weights(keras_model.get_weights())
    np.testing.assert_array_equal(copied(X), keras_model(X))


def compiled(**options):
    def build_model():
        model = sequential(input_shape=(3,))
        model.compile(tf.keras.optimizers.Adam(0.1), **options)
        return model

    return build_model


@pytest.mark.parametrize("is_built", [False, True])
def test_a_compiled_model_gives_loss_and_metrics(is_built):
    build_model = compiled(loss="mae", metrics=["mse", tf.keras.metrics.RootMeanSquaredError("r")])
    given = build_model() if is_built else build_model
    model, other = PartitionedModel(given), PartitionedModel(given, loss="mse", metrics=())
    assert len(model.variables) == 4
    assert [m.name for m in model.metrics] == ["mse", "r"] and other.metrics == ()
    for one, expected in ((model, [2.0, 0.0]), (other, [4.0, 0.0])):
        losses = one.example_losses(tf.constant([1.0, 2.0]), tf.constant([3.0, 2.0]))
        np.testing.assert_array_equal(losses, expected)
    (name,) = model.input_spec
    assert predict(model, {name: X}).shape == (2, 1)


def test_what_compile_says_is_not_dropped_silently():
    build_model = compiled(loss="mae", loss_weights=[2.0])
    with pytest.raises(UserError, match="compiled with loss_weights.*give loss and metrics"):
        PartitionedModel(build_model)
    assert PartitionedModel(build_model, loss="mae", metrics=["mse"]).metrics[0].name == "mse"


def test_variables_of_one_name_are_called_by_their_layers_paths():
    def build_model():
        x = tf.keras.Input([3], name="x")
        towers = [tf.keras.Sequential([LAYERS.Dense(2, name="d")], name=n) for n in ("a", "b")]
        return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(towers[0](x) * towers[1](x)))

    model = PartitionedModel(build_model, local_layers=["b/d/bias"])
    assert {v.name for v in model.global_variables} == {
        "a/d/kernel", "a/d/bias", "b/d/kernel", "out/kernel", "out/bias"
    }  # fmt: skip
    assert [v.name for v in model.local_variables] == ["b/d/bias"]
