"""TFF computations of TensorFlow code that builds Keras models.

TFF traces TensorFlow code in a graph of its own, where Keras falls back to its TF 1 behaviour and
refuses much that users write. Traced as a `tf.function` first, a model is built as in TF 2.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


def keras_computation(*types: Any) -> Callable[[Callable[..., Any]], tff.Computation]:
    """Decorates TensorFlow code as a TFF computation of arguments of the given types."""
    tff_types = [tff.to_type(t) for t in types]
    # Arguments are fed flat: a concrete function takes no OrderedDict for a ModelWeights.
    structures = [_spec(t) for t in tff_types]

    def decorate(fn: Callable[..., Any]) -> tff.Computation:
        @tf.function(input_signature=tf.nest.flatten(structures), autograph=False)
        def flat_fn(*flat):
            return fn(*tf.nest.pack_sequence_as(structures, flat))

        concrete = flat_fn.get_concrete_function()

        def call(*positional, **named):
            arguments = [*positional, *named.values()]
            for argument, structure in zip(arguments, structures):
                tf.nest.assert_same_structure(argument, structure)
            return concrete(*tf.nest.flatten(list(arguments)))

        # TFF reads the number of arguments from the signature and takes no varargs.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [f"argument_{i}" for i in range(len(types))]
        signed: Any = call
        signed.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
        return tff.tensorflow.computation(signed, *tff_types)

    return decorate


def _spec(type_spec: tff.Type) -> Any:
    """Returns the structure of `tf.TypeSpec` of a TFF type."""
    if isinstance(type_spec, tff.SequenceType):
        return tf.data.DatasetSpec(_spec(type_spec.element))
    if isinstance(type_spec, tff.TensorType):
        return tf.TensorSpec(type_spec.shape, type_spec.dtype)
    fields = [(name, _spec(t)) for name, t in tff.structure.iter_elements(type_spec)]
    container = type_spec.python_container
    if issubclass(container, (list, tuple)) and not hasattr(container, "_fields"):
        return container(spec for _, spec in fields)
    if issubclass(container, dict):
        return container(fields)
    return container(**dict(fields))
