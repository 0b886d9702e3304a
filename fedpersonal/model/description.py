"""A partitioned model in JSON, where it is made of Keras' own parts alone."""

from __future__ import annotations

import json
from typing import Any

import tensorflow as tf
from keras.src.engine import functional
from keras.src.layers.core import tf_op_layer

from fedpersonal.errors import UserError
from fedpersonal.model.compiled import recorded_compile, restore_argument_names
from fedpersonal.model.described_parts import check_parts
from fedpersonal.model.inspection import sketched
from fedpersonal.model.partition import PartitionedModel

_OPTIONS = "lookups owned_tables example_weight unit sequence_length chunk_places".split()


def list_parts(model: PartitionedModel) -> dict[str, Any]:
    """Returns what tells a partitioned model from others: names, Keras' objects, functions.

    Of a Sequential or functional model these are its layers and how they are connected; of others,
    whose code connects them, the model and the function that builds it, too.
    """
    built = _build(model)
    parts, connections = list(built._flatten_layers()), {}
    for part in parts:
        if hasattr(part, "_network_nodes") and not isinstance(part, tf.keras.Sequential):
            # Layers that do not say how they were made are connected, too.
            told = functional.get_network_config(part, serialize_layer_fn=lambda layer: {})
            told["layers"] = {one["name"]: one["inbound_nodes"] for one in told["layers"]}
            # Keras numbers models without a name through all of a program.
            name = "the model" if part is built else told["name"]
            connections[name] = {k: v for k, v in told.items() if k != "name"}
    is_told = isinstance(built, tf.keras.Sequential) or "the model" in connections
    layers = [one for one in parts if not hasattr(one, "_network_nodes")]
    # Keras numbers operations such as `x[:, 1:]` through all models of a program.
    operations = [one for one in layers if type(one).__module__ == tf_op_layer.__name__]
    names = {one.name: f"{place}: {_operation(one)}" for place, one in enumerate(operations)}
    return {
        "variables": {
            v.name: [*_shape(tf.TensorSpec(v.shape, v.dtype)), v.is_local, v.is_frozen]
            for v in model.all_variables
        },
        "frozen": {name: path.name for name, path in model.frozen.paths.items()},
        "class": type(built),
        "layers": [one for one in layers if one not in operations],
        "connections": _renamed(connections, names),
        "built_by": None if is_told else model.given_builder,
        "input_spec": {name: _shape(spec) for name, spec in model.input_spec.items()},
        "label_spec": _shape(model.label_spec),
        "loss": model.given_loss,
        "metrics": model.given_metrics,
        **{name: getattr(model, name) for name in _OPTIONS},
    }


def _operation(layer: tf.keras.layers.Layer) -> str:
    said = layer.get_config()
    return " ".join(str(said[n]) for n in sorted(said) if n not in ("name", "trainable", "dtype"))


def _renamed(part: Any, names: dict[str, str]) -> Any:
    """Returns lists, tuples and mappings with other names for some texts in them."""
    if isinstance(part, dict):
        return {names.get(key, key): _renamed(inner, names) for key, inner in part.items()}
    if isinstance(part, (list, tuple)):
        return [_renamed(inner, names) for inner in part]
    return names.get(part, part) if isinstance(part, str) else part


def describe_model(model: PartitionedModel) -> dict[str, Any] | None:
    """Returns what `read_model` makes the same partitioned model of, for JSON.

    Returns:
        None where there are parts that JSON cannot hold: layers, losses or metrics that are not
        Keras' own, nested models, functions such as `example_weight` or those of a Lambda layer,
        frozen variables.
    """
    if model.example_weight or model.sequence_length or model.frozen.shapes:
        return None
    built = _build(model)
    layers = list(built._flatten_layers(include_self=False))
    # Keras may read a nested model without end, if it was built in a graph.
    if not all(_is_keras(layer) and not isinstance(layer, tf.keras.Model) for layer in layers):
        return None
    try:
        described = {
            "keras": built.to_json(),
            "loss": _name(model.given_loss, tf.keras.losses),
            "metrics": [
                _name(metric, tf.keras.metrics) for metric in tf.nest.flatten(model.given_metrics)
            ],
            "local_layers": [v.name for v in model.local_variables],
            "lookups": model.lookups,
            "owned_tables": sorted(model.owned_tables),
            "input_spec": {name: _shape(spec) for name, spec in model.input_spec.items()},
            "label_spec": _shape(model.label_spec),
            "unit": model.unit,
        }
        again = read_model(json.loads(json.dumps(described)))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None
    return described if _is_same(model, again) else None


def _build(model: PartitionedModel) -> tf.keras.Model:
    """Returns a Keras model that can be described, without values."""
    with sketched(), recorded_compile():
        built = model.build()
    restore_argument_names(built)
    # Keras writes down numbers such as 2 in `2 * x` where they are arrays, not tensors of a graph.
    for node in (node for layer in built._flatten_layers() for node in layer._inbound_nodes):
        node.call_args, node.call_kwargs = tf.nest.map_structure(
            _constant, (node.call_args, node.call_kwargs)
        )
    return built


def _constant(part: Any) -> Any:
    value = tf.get_static_value(part) if isinstance(part, tf.Tensor) else None
    return part if value is None else value


def read_model(described: dict[str, Any]) -> PartitionedModel:
    """Returns the partitioned model that `describe_model` described.

    Raises:
        UserError: If Keras cannot build it, or it names other parts than `check_parts` knows.
    """
    try:
        read = json.loads(described["keras"])
        check_parts({**described, "keras": read})
        text, input_spec = json.dumps(read), described["input_spec"]
        tf.keras.models.model_from_json(text)
        return PartitionedModel(
            lambda: tf.keras.models.model_from_json(text),
            local_layers=described["local_layers"],
            loss=_find(described["loss"], tf.keras.losses),
            metrics=[_find(metric, tf.keras.metrics) for metric in described["metrics"]],
            lookups=described["lookups"],
            owned_tables=described["owned_tables"],
            input_spec={name: tf.TensorSpec(*spec) for name, spec in input_spec.items()},
            label_spec=tf.TensorSpec(*described["label_spec"]),
            unit=described["unit"],
        )
    except UserError:
        raise
    except Exception as error:  # Keras raises what it likes.
        raise UserError(f"Keras cannot build the model that is described ({error}).") from error


def _is_same(model: PartitionedModel, again: PartitionedModel) -> bool:
    """Tells whether two models hold the same; Keras may create global variables in another order.

    Initial values of local variables count, as clients without examples predict with them.
    """
    known, found = (
        ({(v.name, v.shape, v.dtype) for v in one.global_variables}, list(one.input_spec))
        for one in (model, again)
    )
    if known != found:
        return False
    ours, theirs = (one.initial_local_values() for one in (model, again))
    return list(ours) == list(theirs) and all((ours[k] == theirs[k]).all() for k in ours)


def _is_keras(part: object) -> bool:
    kind = type(part) if not callable(part) or hasattr(part, "get_config") else part
    return kind.__module__.startswith("keras.") and not isinstance(part, tf.keras.layers.Lambda)


def _name(part: Any, module: Any) -> Any:
    """Returns a loss or a metric by its name, or as Keras describes it."""
    if isinstance(part, str):
        return part
    if not _is_keras(part):
        raise TypeError(f"{part!r} is not Keras' own.")
    return module.serialize(part) if hasattr(part, "get_config") else part.__name__


def _find(described: Any, module: Any) -> Any:
    return described if isinstance(described, str) else module.deserialize(described)


def _shape(spec: tf.TensorSpec) -> list:
    return [spec.shape.as_list(), spec.dtype.name]
