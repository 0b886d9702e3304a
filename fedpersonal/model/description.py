"""A partitioned model in JSON, where it is made of Keras' own parts alone."""

from __future__ import annotations

import json
from typing import Any

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel


def describe_model(model: PartitionedModel) -> dict[str, Any] | None:
    """Returns what `read_model` makes the same partitioned model of, for JSON.

    Returns:
        None where there are parts that JSON cannot hold: layers, losses or metrics that are not
        Keras' own, nested models, functions such as `example_weight` or those of a Lambda layer,
        frozen variables.
    """
    if model.example_weight or model.sequence_length or model.frozen.shapes:
        return None
    with tf.Graph().as_default():
        built = model.build()
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
    except (TypeError, ValueError, NotImplementedError):
        return None
    return described if _is_same(model, again) else None


def read_model(described: dict[str, Any]) -> PartitionedModel:
    """Returns the partitioned model that `describe_model` described.

    Operations of TensorFlow are read, which run with the model and may use files.

    Raises:
        UserError: If Keras cannot build it, or would take code from the description or a module.
    """
    text, input_spec = described["keras"], described["input_spec"]
    try:
        _check_is_keras([json.loads(text), described])
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


def _check_is_keras(part: Any) -> None:
    """Raises a UserError where a description has code, or names a module that is not Keras'."""
    if isinstance(part, dict):
        module = part.get("module") or "keras."
        if part.get("class_name") in ("Lambda", "__lambda__"):
            raise UserError("a model with a Lambda layer is not read from a file; it holds code.")
        if not str(module).startswith("keras."):
            raise UserError(f"a model with part of the module {module!r} is not read from a file.")
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        _check_is_keras(inner)


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
