"""What a Keras model may have that its training here would leave out, refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from fedpersonal.errors import UserError
from fedpersonal.model.keras import keras, list_layers, own_metrics

# What `fit`, `evaluate` and `predict` call of a model, and a model of one's own may override.
_METHODS = (
    *("fit", "evaluate", "predict", "train_step", "test_step", "predict_step", "compute_loss"),
    *("compute_metrics", "get_metrics_result", "make_train_function", "make_test_function"),
    "make_predict_function",
)


# Layers that draw once for all images of a batch, whosever they are.
_DRAW_FOR_BATCH = tuple(
    getattr(keras.layers, name) for name in ("RandomCrop", "RandomHeight", "RandomWidth")
)

# Operations that draw from a state of TensorFlow's own, which no seed of a round reaches.
_UNSEEDED_DRAWS = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle"),
    "Multinomial",
)


def check_draws(model: keras.Model) -> None:
    """Raises a UserError if a layer draws for a batch what it should for each example."""
    for layer in list_layers(model):
        if isinstance(layer, _DRAW_FOR_BATCH):
            raise UserError(
                f"layer {layer.name!r} ({type(layer).__name__}) draws once for all images of a "
                "batch, so results would depend on batches: take RandomTranslation or RandomZoom, "
                "which draw for each image."
            )


def check_methods(model: keras.Model) -> None:
    """Raises a UserError if a model trains or predicts by code of its own, not by Keras'."""
    for name in _METHODS:
        if getattr(type(model), name) is not getattr(keras.Model, name) or name in vars(model):
            raise UserError(
                f"{type(model).__name__!r} has its own {name}, which is not run here: a client's "
                "steps follow the gradient of the loss. Give PartitionedModel the model without "
                "it, and what it computes as loss=, metrics= or add_loss."
            )


def check_layers(model: keras.Model) -> None:
    """Raises a UserError if a layer reports metrics of its own, or has numbers other than float32.

    The model has been called.
    """
    reported = [metric.name for layer in list_layers(model) for metric in own_metrics(layer)]
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
        names, listed = getattr(model, "output_names", None), "model.output"
        if isinstance(output, Mapping):
            names, listed = list(output), "list(model.output.values())"
        raise UserError(
            f"the model has several outputs, {names or output!r}; it needs one. Wrap it: "
            f"tf.keras.Model(model.input, tf.keras.layers.Concatenate()({listed})), and have the "
            "loss take them apart."
        )
    if output.dtype != tf.float32:
        raise _not_float32("output", output.dtype)


def _not_float32(what: str, dtype: tf.DType) -> UserError:
    return UserError(
        f"the model's {what} is {dtype.name}; models are trained in float32. Build its layers "
        "without dtype=, after tf.keras.backend.set_floatx('float32')."
    )


def check_origins(model: keras.Model, created: Collection[object]) -> None:
    """Raises a UserError if a model would train a variable that its builder has not made.

    `created` are the references of the variables that it has.
    """
    for variable in model.trainable_weights:
        if variable.ref() not in created:
            raise UserError(
                f"variable {_name(variable)!r} was made before build_model was called, and would "
                "be shared by all models that it builds: make its layer within build_model, or "
                "give the built model itself."
            )


def check_updates(
    model: keras.Model, updated: Collection[tf.Variable], owned: Collection[object]
) -> None:
    """Raises a UserError if a model assigns to a variable that a gradient moves, or to a state."""
    for variable in updated:
        if variable.trainable or variable.ref() not in owned:
            raise UserError(
                f"the model {model.name!r} assigns to its variable {_name(variable)!r} when it is "
                "called, which would be lost here (a stateful RNN, spectral normalisation, or a "
                "counter does): build it without."
            )


def check_captures(what: str, graph: tf.Graph, weights: Sequence[tf.Variable]) -> None:
    """Raises a UserError if a function's graph reads the weights of the model that was copied.

    They stay as they are while the copy's are trained. `what` names the function.
    """
    captured = {id(outer) for outer, _ in graph.captures}
    for weight in weights:
        if id(weight.handle) in captured:
            raise UserError(
                f"{what} reads variable {_name(weight)!r} of the built model itself, not of the "
                "copies that are trained: give PartitionedModel a function that builds the model. "
                "What a loss reads of weights, the model can add by add_loss."
            )


def check_functions(
    functions: Mapping[str, Callable[..., Any]],
    specs: Sequence[tf.TensorSpec],
    weights: Sequence[tf.Variable],
) -> None:
    """As `check_captures`, of functions of labels and output, which have these specs."""
    for what, function in functions.items():
        with FuncGraph("function").as_default() as graph:
            arguments = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
            try:
                function(*arguments)
            except Exception:  # What a user's own code raises, it raises in training, too.
                continue
        check_captures(what, graph, weights)


def list_operations(graph: tf.Graph) -> list[tuple[str, str]]:
    """Returns type and name of all operations, those of functions, such as loops, included."""
    definition = graph.as_graph_def()
    found = [(node.op, node.name) for node in definition.node]
    for function in definition.library.function:
        prefix = function.signature.name
        found += [(node.op, f"{prefix}/{node.name}") for node in function.node_def]
    return found


def check_operations(added: set[tuple[str, str]]) -> None:
    """Raises a UserError if an operation draws without a seed of ours."""
    for kind, name in added:
        if kind in _UNSEEDED_DRAWS:
            raise UserError(
                f"the model draws random numbers by itself ({kind} {name!r}), and would draw anew "
                "in each run. Have a Keras layer draw them, such as Dropout or GaussianNoise, made "
                "before the model is called: their draws follow the run's seed."
            )


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
