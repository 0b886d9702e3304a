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


def predict(model, features, values=None):
    values = values or model.initial_global_values()
    run = tf.function(
        lambda v, f: model.predict(v, f, training=False)[0], autograph=False, reduce_retracing=True
    )
    return run(values, {k: tf.constant(v) for k, v in features.items()}).numpy()


@pytest.mark.parametrize("tells_inputs", [True, False])
def test_a_sequential_model_is_taken(tells_inputs):
    if tells_inputs:
        model = PartitionedModel(lambda: sequential(input_shape=(3,)))
    else:
        spec = tf.TensorSpec([None, 3])
        model = PartitionedModel(sequential, input_spec={"dense_input": spec})
        assert [v.name for v in PartitionedModel(sequential, input_spec=spec).variables] == [
            v.name for v in model.variables
        ]
    values = model.initial_global_values()
    kernel, bias, last, last_bias = values.values()
    expected = np.tanh(X @ kernel + bias) @ last + last_bias
    np.testing.assert_allclose(predict(model, {"dense_input": X}), expected, rtol=1e-5)


def test_inputs_without_names_stay_in_order():
    def build_model():
        one, other = tf.keras.Input([3]), tf.keras.Input([3])
        return tf.keras.Model([one, other], LAYERS.Dense(1)(one - 2 * other))

    model = PartitionedModel(build_model)
    first, second = model.input_spec
    kernel, _ = model.initial_global_values().values()
    features = {second: 3 * X, first: X}
    np.testing.assert_allclose(predict(model, features), -5 * X @ kernel, rtol=1e-5)
    # Built again in one graph, Keras numbers names on.
    run = tf.function(
        lambda v, f: [model.predict(v, f, training=False)[0] for _ in range(2)], autograph=False
    )
    one, again = run(
        model.initial_global_values(), {k: tf.constant(f) for k, f in features.items()}
    )
    np.testing.assert_array_equal(one, again)


def test_inputs_have_the_names_of_the_models_dict():
    def build_model():
        x = tf.keras.Input([3], name="another")
        return tf.keras.Model({"x": x}, LAYERS.Dense(1)(x))

    model = PartitionedModel(build_model)
    assert list(model.input_spec) == ["x"]
    assert predict(model, {"x": X}).shape == (2, 1)


def test_a_model_starts_from_its_weights():
    def build_model():
        x = tf.keras.Input([3], name="x")
        block = tf.keras.Sequential([LAYERS.Dense(2), LAYERS.LayerNormalization()], name="block")
        hidden = LAYERS.Dense(3, name="wide")(x)
        return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(block(hidden) + x[:, :1]))

    keras_model = build_model()
    random = np.random.default_rng(0)
    keras_model.set_weights([random.normal(size=w.shape) for w in keras_model.weights])
    before = keras_model.get_weights()
    model = PartitionedModel(keras_model, local_layers="out")
    assert [v.name for v in model.local_variables] == ["out/kernel", "out/bias"]
    draw = tf.function(lambda: model.initial_values(model.variables, tf.constant([5, 1])))
    values = draw()
    np.testing.assert_allclose(predict(model, {"x": X}, values), keras_model({"x": X}), rtol=1e-5)
    for weight, earlier in zip(keras_model.get_weights(), before):
        np.testing.assert_array_equal(weight, earlier)


def of_operation(operation):
    def build_model():
        x = tf.keras.Input([3], name="x")
        operated = tf.keras.Model(x, operation(x))
        return tf.keras.Sequential([tf.keras.Input([3], name="x"), operated, LAYERS.Dense(1)])

    return build_model


@pytest.mark.parametrize("operation", [lambda x: x[:, :1], lambda x: tf.reduce_max(x, 1, True)])
def test_operations_are_copied_after_a_build_without_autograph(operation):
    """Keras then drops their arguments: a slice fails, a maximum is one of the whole batch."""
    build_model = of_operation(operation)
    tf.autograph.experimental.do_not_convert(build_model)()
    keras_model = build_model()
    predictions = predict(PartitionedModel(keras_model), {"x": X})
    np.testing.assert_allclose(predictions, keras_model(X), rtol=1e-5)


def test_keras_still_copies_operations_of_models_that_were_built_here():
    build_model = of_operation(lambda x: tf.roll(x, 1, 1))
    predict(PartitionedModel(build_model), {"x": X})
    keras_model = build_model()
    copied = tf.keras.models.clone_model(keras_model)
    copied.set_weights(keras_model.get_weights())
    np.testing.assert_array_equal(copied(X), keras_model(X))


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


def test_a_model_that_cannot_be_copied_is_refused():
    keras_model = Subclassed()
    keras_model(X)
    with pytest.raises(UserError, match=r"'subclassed' cannot be copied.*PartitionedModel\(lambda"):
        PartitionedModel(keras_model)


def test_the_users_own_models_still_work():
    """Keras changes the classes of models that are made in a graph."""
    keras_model = sequential(input_shape=(3,))
    keras_model.compile("sgd", "mse")
    PartitionedModel(lambda: sequential(input_shape=(3,)))
    keras_model.fit(X, np.ones(2), verbose=0)
    assert keras_model.predict(X, verbose=0).shape == (2, 1)


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
    model = PartitionedModel(given)
    assert len(model.variables) == 4
    assert [m.name for m in model.metrics] == ["mse", "r"]
    losses = model.example_losses(tf.constant([1.0, 2.0]), tf.constant([3.0, 2.0]))
    np.testing.assert_array_equal(losses, [2.0, 0.0])
    (name,) = model.input_spec
    assert predict(model, {name: X}).shape == (2, 1)
    own = PartitionedModel(given, loss="mse", metrics=())
    assert own.metrics == ()
    losses = own.example_losses(tf.constant([1.0, 2.0]), tf.constant([3.0, 2.0]))
    np.testing.assert_array_equal(losses, [4.0, 0.0])


def test_what_compile_says_is_not_dropped_silently():
    build_model = compiled(loss="mae", weighted_metrics=["mse"])
    with pytest.raises(UserError, match="compiled with weighted_metrics.*give loss and metrics"):
        PartitionedModel(build_model)
    assert PartitionedModel(build_model, loss="mae", metrics=["mse"]).metrics[0].name == "mse"


def several_outputs(as_dict):
    def build_model():
        x = tf.keras.Input([3], name="x")
        outputs = {name: LAYERS.Dense(1, name=name)(x) for name in ("stars", "minutes")}
        return tf.keras.Model({"x": x}, outputs if as_dict else list(outputs.values()))

    return build_model


@pytest.mark.parametrize("as_dict", [True, False])
def test_several_outputs_are_refused_by_name(as_dict):
    with pytest.raises(UserError, match=r"several outputs.*'stars'.*it needs one. Wrap it.*Concat"):
        PartitionedModel(several_outputs(as_dict))

    def wrapped():
        model = several_outputs(as_dict)()
        outputs = list(model.output.values()) if as_dict else model.output
        return tf.keras.Model(model.input, LAYERS.Concatenate()(outputs))

    assert predict(PartitionedModel(wrapped), {"x": X}).shape == (2, 2)


def test_draws_without_a_seed_are_refused():
    def build_model():
        x = tf.keras.Input([3], name="x")
        noisy = LAYERS.Lambda(lambda v: v + tf.random.normal(tf.shape(v)))(x)
        return tf.keras.Model({"x": x}, LAYERS.Dense(1)(noisy))

    with pytest.raises(UserError, match="draws random numbers by itself .RandomStandardNormal"):
        PartitionedModel(build_model)


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
