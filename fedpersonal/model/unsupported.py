"""Checks that refuse features of Keras models that training here would ignore."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from fedpersonal.errors import UserError
from fedpersonal.model.keras import keras, list_layers, reported_metrics

# Methods that `fit`, `evaluate` and `predict` call, which a subclassed model may override.
_METHODS = (
    *("fit", "evaluate", "predict", "train_step", "test_step", "predict_step", "compute_loss"),
    *("compute_metrics", "get_metrics_result", "make_train_function", "make_test_function"),
    "make_predict_function",
)


# Layers with one random number for all images of a batch, which may be of several clients.
_RANDOM_PER_BATCH = tuple(
    getattr(keras.layers, name) for name in ("RandomCrop", "RandomHeight", "RandomWidth")
)

# Random operations that use TensorFlow's state, not a round's seed.
_UNSEEDED = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle"),
    "Multinomial",
)


def check_batch_randomness(model: keras.Model) -> None:
    """Raises a UserError if a layer has one random number for all examples of a batch."""
    for layer in list_layers(model):
        if isinstance(layer, _RANDOM_PER_BATCH):
            raise UserError(
                f"layer {layer.name!r} ({type(layer).__name__}) samples once for all images of a "
                "batch, so results would depend on batches: use RandomTranslation or RandomZoom, "
                "which sample for each image."
            )


def check_methods(model: keras.Model) -> None:
    """Raises a UserError if a model overrides Keras' code for training or prediction."""
    for name in _METHODS:
        if getattr(type(model), name) is not getattr(keras.Model, name) or name in vars(model):
            raise UserError(
                f"{type(model).__name__!r} has its own {name}, which is not run here: a client's "
                "steps follow the gradient of the loss. Give PartitionedModel the model without "
                "it, and what it computes as loss=, metrics= or add_loss."
            )


def check_layers(model: keras.Model) -> None:
    """Raises a UserError if a layer reports metrics, or has variables other than float32.

    The model has been called.
    """
    reported = [metric.name for layer in list_layers(model) for metric in reported_metrics(layer)]
    if reported:
        raise UserError(
            f"the model reports metric {reported[0]!r} by itself (add_metric, or a metric that is "
            "an attribute), which is not reported here: leave it out, or give metrics=."
        )
    for layer in list_layers(model):
        for variable in layer.trainable_weights:
            if variable.dtype.base_dtype != tf.float32:
                raise _not_float32(f"variable {_name(variable)!r}", variable.dtype.base_dtype)


def check_output(model: keras.Model, output: Any) -> None:
    """Raises a UserError if a model has several outputs, or one that is not float32."""
    if not tf.is_tensor(output):
        names, outputs = getattr(model, "output_names", None), "model.output"
        if isinstance(output, Mapping):
            names, outputs = list(output), "list(model.output.values())"
        raise UserError(
            f"the model has several outputs, {names or output!r}; it needs one. Wrap it: "
            f"tf.keras.Model(model.input, tf.keras.layers.Concatenate()({outputs})), and have the "
            "loss split them."
        )
    if output.dtype != tf.float32:
        raise _not_float32("output", output.dtype)


def _not_float32(what: str, dtype: tf.DType) -> UserError:
    return UserError(
        f"the model's {what} is {dtype.name}; models are trained in float32. Build its layers "
        "without dtype=, after tf.keras.backend.set_floatx('float32')."
    )


def check_origins(model: keras.Model, created: Collection[object]) -> None:
    """Raises a UserError if a model would train a variable that its builder has not created.

    Args:
        model: The model.
        created: References of the variables that the builder has created.
    """
    for variable in model.trainable_weights:
        if variable.ref() not in created:
            raise UserError(
                f"variable {_name(variable)!r} was made before build_model was called, and would "
                "be shared by all models that it builds: create its layer within build_model, or "
                "give the built model itself."
            )


def check_updates(
    model: keras.Model, updated: Collection[tf.Variable], weights: Collection[object]
) -> None:
    """Raises a UserError if a model assigns to a trainable variable, or to one that is no weight.

    Args:
        model: The model.
        updated: The variables that it assigns to when it is called.
        weights: References of its weights.
    """
    for variable in updated:
        if variable.trainable or variable.ref() not in weights:
            raise UserError(
                f"the model {model.name!r} assigns to its variable {_name(variable)!r} when it is "
                "called, which would be lost here (such as by a stateful RNN, spectral "
                "normalisation, or a counter): build it without such a layer."
            )


def check_captures(what: str, graph: tf.Graph, weights: Sequence[tf.Variable]) -> None:
    """Raises a UserError if a function's graph reads the weights of the model that was copied.

    These weights do not change while the copy's are trained.

    Args:
        what: The function in the message.
        graph: The function's graph.
        weights: The weights of the copied model.
    """
    captured = {id(outer) for outer, _ in graph.captures}
    for weight in weights:
        if id(weight.handle) in captured:
            raise UserError(
                f"{what} reads variable {_name(weight)!r} of the built model itself, not of the "
                "copies that are trained: give PartitionedModel a function that builds the model. "
                "For a loss that reads weights, the model can use add_loss."
            )


def check_functions(
    functions: Mapping[str, Callable[..., Any]],
    specs: Sequence[tf.TensorSpec],
    weights: Sequence[tf.Variable],
) -> None:
    """Does what `check_captures` does for functions of labels and output with these specs."""
    for what, function in functions.items():
        with FuncGraph("function").as_default() as graph:
            arguments = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
            try:
                function(*arguments)
            except Exception:  # Errors of a user's code are raised in training, too.
                continue
        check_captures(what, graph, weights)


def list_operations(graph: tf.Graph) -> list[tuple[str, str]]:
    """Returns type and name of all operations, including those of functions such as loops."""
    definition = graph.as_graph_def()
    operations = [(node.op, node.name) for node in definition.node]
    for function in definition.library.function:
        prefix = function.signature.name
        operations += [(node.op, f"{prefix}/{node.name}") for node in function.node_def]
    return operations


def check_operations(added: set[tuple[str, str]]) -> None:
    """Raises a UserError if a random operation does not use the run's seed."""
    for kind, name in added:
        if kind in _UNSEEDED:
            raise UserError(
                f"the model generates random numbers by itself ({kind} {name!r}), which would "
                "differ in each run. Use a Keras layer for them, such as Dropout or GaussianNoise, "
                "created before the model is called: layers follow the run's seed."
            )


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
