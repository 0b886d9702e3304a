"""Description of a partitioned model for comparisons, and its export as a Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.model.compiled import recorded_compile
from fedpersonal.model.inspection import model_graph
from fedpersonal.model.keras import (
    describe_connections,
    is_network,
    is_operation,
    keras,
    list_layers,
    replace_constants,
    restore_argument_names,
    weights_of,
)
from fedpersonal.model.partition import PartitionedModel

# Name in run folders to attribute.
_OPTIONS = {
    "lookups": "lookups",
    "owned_tables": "per_client_tables",
    "example_weight": "example_weight",
    "unit": "unit",
    "sequence_length": "sequence_length",
    "chunk_places": "chunk_places",
}


def list_parts(model: PartitionedModel) -> dict[str, Any]:
    """Returns the parts by which partitioned models are compared: names, Keras objects, functions.

    The parts of a Sequential or functional model are its layers and their connections. Other models
    connect their layers by code; their parts include the model's class and its builder function.
    """
    built = _build(model)
    parts, connections = list_layers(built), {}
    for part in parts:
        if is_network(part) and not isinstance(part, keras.Sequential):
            described = describe_connections(part)
            # Keras numbers unnamed models across the whole program.
            name = "the model" if part.built else described["name"]
            connections[name] = {k: v for k, v in described.items() if k != "name"}
    is_described = isinstance(built, keras.Sequential) or "the model" in connections
    layers = [one for one in parts if not is_network(one)]
    # Keras numbers operations such as `x[:, 1:]` across all models of the program.
    operations = [one for one in layers if is_operation(one)]
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
        "built_by": None if is_described else model.given_builder,
        "input_spec": {name: _shape(spec) for name, spec in model.input_spec.items()},
        "label_spec": _shape(model.label_spec),
        "loss": model.given_loss,
        "metrics": model.given_metrics,
        **{key: getattr(model, name) for key, name in _OPTIONS.items()},
    }


def _operation(layer: keras.layers.Layer) -> str:
    config = layer.get_config()
    names = sorted({*config} - {"name", "trainable", "dtype"})
    return " ".join(str(config[name]) for name in names)


def _renamed(part: Any, names: dict[str, str]) -> Any:
    """Replaces strings, and keys, by new names in nested lists, tuples and mappings."""
    if isinstance(part, dict):
        return {names.get(key, key): _renamed(inner, names) for key, inner in part.items()}
    if isinstance(part, (list, tuple)):
        return [_renamed(inner, names) for inner in part]
    return names.get(part, part) if isinstance(part, str) else part


def _build(model: PartitionedModel) -> keras.Model:
    """Builds the Keras model without values, so that it can be described."""
    with model_graph(), recorded_compile():
        built = model.build()
    restore_argument_names(built)
    replace_constants(built)
    return built


def _shape(spec: tf.TensorSpec) -> list:
    return [spec.shape.as_list(), spec.dtype.name]


def to_keras(model: PartitionedModel, values: Mapping[str, np.ndarray]) -> keras.Model:
    """Builds the Keras model and assigns values to its variables.

    Args:
        model: The partitioned model.
        values: Variable name to value, for all but the frozen ones.

    Returns:
        An independent Keras model, which trains, predicts and saves as any other.
    """
    values, created = model.as_keras_values(values), []

    def record(next_creator, **kwargs):
        created.append(next_creator(**kwargs))
        return created[-1]

    with tf.variable_creator_scope(record):
        built = model.build()
        empty = {
            name: tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)
            for name, spec in model.input_spec.items()
        }
        built(model.arrange(empty))
    # Variables of its optimizer and metrics were created, too.
    references = {variable.ref() for variable in weights_of(built)}
    weights = [variable for variable in created if variable.ref() in references]
    if [tuple(v.shape) for v in weights] != [spec.shape for spec in model.all_variables]:
        raise ValueError(
            f"the Keras model has the variables {[v.name for v in weights]}, the partitioned model "
            f"{[spec.name for spec in model.all_variables]}."
        )
    for variable, spec in zip(weights, model.all_variables):
        variable.assign(model.frozen.array(spec.name) if spec.is_frozen else values[spec.name])
    return built
