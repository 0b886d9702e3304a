"""A model's inputs: their names and specs, and the structure in which it takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import tensorflow as tf

from fedpersonal.errors import UserError

InputSpec = Union[Mapping[str, tf.TensorSpec], tf.TensorSpec]
ModelInputs = Union[dict[str, tf.Tensor], list[tf.Tensor], tf.Tensor]


def arrange_inputs(
    features: Mapping[str, tf.Tensor], input_spec: Mapping[str, tf.TensorSpec], takes: str
) -> ModelInputs:
    """Returns inputs in the structure with which the model is called."""
    if takes == "dict":
        return dict(features)
    ordered = [features[name] for name in input_spec]
    return ordered if takes == "list" else ordered[0]


def read_inputs(
    model: tf.keras.Model, given: InputSpec | None
) -> tuple[dict[str, tf.TensorSpec], str]:
    """Returns the inputs' specs by name, and whether a model takes a `dict`, `list` or `tensor`.

    Raises:
        UserError: If the model does not tell its inputs, or has others than are given.
    """
    known = getattr(model, "inputs", None)
    is_single = isinstance(model, tf.keras.Sequential) or isinstance(given, tf.TensorSpec)
    specs: Mapping[str, tf.TensorSpec] | None
    specs = {"x": given} if isinstance(given, tf.TensorSpec) else given
    if specs is None and not known:
        raise UserError(
            f"{model.name!r} does not tell its inputs: give input_spec, a mapping of input name "
            "to tf.TensorSpec with the batch dimension first, or one tf.TensorSpec for a model "
            "that is called with a tensor."
        )
    if specs is not None and is_single and len(specs) > 1:
        raise UserError(f"{model.name!r} takes one input; input_spec names {list(specs)}.")
    if specs is not None and not known:
        return dict(specs), "tensor" if is_single else "dict"
    if isinstance(model.input, Mapping):
        names, tensors = zip(*sorted(model.input.items()))
    else:
        names, tensors = model.input_names, model.inputs
    takes = "dict" if isinstance(model.input, Mapping) else "list" if len(names) > 1 else "tensor"
    if specs is None:
        return {n: tf.TensorSpec(t.shape, t.dtype) for n, t in zip(names, tensors)}, takes
    if set(specs) != set(names) and len(names) > 1:
        raise UserError(f"input_spec names {list(specs)}; the model's inputs are {list(names)}.")
    by_name = specs if set(specs) == set(names) else dict(zip(names, specs.values()))
    return {name: by_name[name] for name in names}, takes


def check_is_numbers(what: str, spec: tf.TensorSpec) -> None:
    """Raises a UserError if a model's input, or its labels, are texts: clients' examples are not.

    Args:
        what: Names it to the user, such as `input 'text'`.
        spec: Its spec.
    """
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
        raise UserError(
            f"the model's {what} is {spec.dtype.name}; clients' examples must be numbers. Encode "
            "them first, as by tf.keras.layers.StringLookup or TextVectorization on the column, "
            "and have the model start from the numbers."
        )
