"""Inspection of a Keras model, which is built and called once in a separate graph."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from fedpersonal.errors import UserError, one_line
from fedpersonal.model.compiled import (
    CompileOptions,
    ReadyModel,
    prepare_copies,
    recorded_compile,
)
from fedpersonal.model.ids import InputCheck, find_checks
from fedpersonal.model.keras import (
    keras,
    layers_within,
    list_layers,
    mask_of,
    mixes_precision,
    weights_of,
)
from fedpersonal.model.noise import NoiseDraws, fold
from fedpersonal.model.unsupported import (
    check_batch_randomness,
    check_captures,
    check_layers,
    check_methods,
    check_operations,
    check_origins,
    check_output,
    check_updates,
    list_operations,
)
from fedpersonal.model.variables import (
    Created,
    Start,
    VariableSpec,
    as_function,
    creation_key,
    seeded_initializer,
    starts,
)

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
    model: keras.Model, input_spec: InputSpec | None
) -> tuple[dict[str, tf.TensorSpec], str]:
    """Returns the inputs' specs by name, and whether a model takes a `dict`, `list` or `tensor`.

    Raises:
        UserError: If the model does not declare its inputs, or `input_spec` has others.
    """
    declared = getattr(model, "inputs", None)
    is_single = isinstance(model, keras.Sequential) or isinstance(input_spec, tf.TensorSpec)
    specs: Mapping[str, tf.TensorSpec] | None
    specs = {"x": input_spec} if isinstance(input_spec, tf.TensorSpec) else input_spec
    if specs is None and not declared:
        raise UserError(
            f"{model.name!r} does not declare its inputs: give input_spec, a mapping of input name "
            "to tf.TensorSpec with the batch dimension first, or one tf.TensorSpec for a model "
            "that is called with a tensor."
        )
    if specs is not None and is_single and len(specs) > 1:
        raise UserError(f"{model.name!r} takes one input; input_spec names {list(specs)}.")
    if specs is not None and not declared:
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
    """Raises a UserError if a model's input, or its labels, are texts: examples are numbers.

    Args:
        what: The input or the labels in the message, such as `input 'text'`.
        spec: Its spec.
    """
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
        raise UserError(
            f"the model's {what} is {spec.dtype.name}; clients' examples must be numbers. Encode "
            "them first, as by tf.keras.layers.StringLookup or TextVectorization on the column, "
            "and have the model start from the numbers."
        )


ModelBuilder = Callable[[], keras.Model]


class Inspection(NamedTuple):
    """Properties of a model.

    Attributes:
        variables: Its variables, in the order in which it creates them.
        untrained: Names of variables that Keras does not train by gradient.
        updated: Names of variables that the model assigns to in training.
        values: Variable name to initial value, where the builder or a built model fixes it.
        keys: The `creation_key` of each variable, by which its creation is recognised.
        input_spec: Input name to `tf.TensorSpec`, batch dimension first.
        takes: Whether the model is called with a `dict`, a `list` or one `tensor`.
        compiled: The arguments of its `compile`, or None.
        draws_noise: Whether layers such as Dropout use random numbers in training.
        output_spec: Its output's shape and dtype.
        is_masked: Whether its output has a Keras mask.
        assigns: Whether its builder assigns initial values to variables.
        input_checks: Checks for input values that the model cannot take.
    """

    variables: tuple[VariableSpec, ...]
    untrained: frozenset[str]
    updated: frozenset[str]
    values: Mapping[str, np.ndarray]
    keys: tuple[tuple, ...]
    input_spec: dict[str, tf.TensorSpec]
    takes: str
    compiled: CompileOptions | None
    draws_noise: bool
    output_spec: tf.TensorSpec
    is_masked: bool
    assigns: bool
    input_checks: tuple[InputCheck, ...]


# Larger variables get no value during inspection. The values that preprocessing layers learn, and
# read when they are built, are smaller.
MOST_READ = 2**18


class _ValuelessVariable(UninitializedVariable):
    """A variable without a value: assignments to it only call `on_assign`."""

    on_assign: Callable[[tf.Variable], None]

    def assign(self, value: Any, use_locking=None, name=None, read_value=True) -> tf.Variable:
        """Calls `on_assign`."""
        del value, use_locking, name, read_value
        self.on_assign(self)
        return self

    assign_add = assign_sub = assign


@contextlib.contextmanager
def model_graph(
    start: Start = types.MappingProxyType({}),
    on_assign: Callable[[tf.Variable], None] = lambda variable: None,
) -> Iterator[tuple[tf.Graph, list[tuple[tf.Variable, dict]]]]:
    """Yields a graph to build a model in, and a list of its variables with creation arguments.

    It is a function's graph: in a graph of TensorFlow 1, Keras would change the classes of all
    layers of the program, in other threads, too. Variables have no values and take no memory,
    except small ones that `start` has a value for. Assignments to them only call `on_assign`.
    """
    remaining_starts = {key: list(values) for key, values in start.items()}
    created: list[tuple[tf.Variable, dict]] = []

    def record(next_creator, **kwargs):
        del next_creator
        value = kwargs["initial_value"]
        shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
        if shape is None or dtype is None:
            if callable(value):  # Its random numbers must not count as the model's.
                with func_graph.FuncGraph("value").as_default():
                    value = tf.convert_to_tensor(value(), dtype)
            value = tf.convert_to_tensor(value, dtype)
            shape, dtype = value.shape, value.dtype
        options = {name: kwargs.get(name) for name in ("trainable", "name", "constraint")}
        variable = _ValuelessVariable(shape=shape, dtype=tf.as_dtype(dtype), **options)
        variable.on_assign = on_assign
        start_values = remaining_starts.get(creation_key(kwargs))
        first = start_values.pop(0) if start_values else None
        if first is not None and first.size <= MOST_READ:
            with tf.init_scope():
                UninitializedVariable.assign(variable, first)
        created.append((variable, {**kwargs, "start": first}))
        return variable

    graph = func_graph.FuncGraph("sketch")
    with graph.as_default(), tf.variable_creator_scope(record):
        yield graph, created


class _BuilderAssigns(Exception):
    """Raised when a model's builder assigns initial values to variables."""


class _Assignments:
    """Records the variables that a model assigns to while it is called."""

    def __init__(self, *, allows_builder: bool):
        """Takes whether the builder may assign, since the values that it assigns are known."""
        self._is_built, self._allows_builder = False, allows_builder
        self.updated: dict[object, tf.Variable] = {}

    def __call__(self, variable: tf.Variable) -> None:
        if self._is_built:
            self.updated[variable.ref()] = variable
        elif not self._allows_builder:
            raise _BuilderAssigns(variable.name)

    def end_of_build(self) -> None:
        """Marks the end of building: the model is called from now on."""
        self._is_built = True


def inspect_model(
    build_model: ModelBuilder, input_spec: InputSpec | None, ready: ReadyModel | None = None
) -> tuple[Inspection, ModelBuilder]:
    """Builds a model and calls it once on placeholders, as in training.

    A builder that assigns initial weights is called once more, outside of a graph.

    Args:
        build_model: Returns a new Keras model at each call.
        input_spec: The inputs' specs, or None if the model declares them.
        ready: A built model, or None.

    Returns:
        The model's properties, and its builder. If the builder only works outside of graphs, a
        builder of copies of the model that it has built.

    Raises:
        UserError: If it is no Keras model, does not declare its inputs, has several outputs, uses
            random numbers that Keras' layers do not generate, two of its variables share a name,
            or it has features that training here would ignore.
    """
    if ready is not None:
        try:
            inspection = _inspect(
                ready.build_model, input_spec, ready.start, originals=ready.weights
            )
            return inspection, ready.build_model
        except UserError:
            raise
        except Exception as error:  # A layer's code may raise anything.
            raise _not_traced(error) from error
    try:
        return _inspect(build_model, input_spec), build_model
    except UserError:
        raise
    except _BuilderAssigns:
        try:
            with recorded_compile():
                _, values = build_once(build_model)
            return _inspect(build_model, input_spec, starts(values), assigns=True), build_model
        except UserError:
            raise
        except Exception as error:  # Such as from `fit` or `get_weights` in the builder.
            return _inspect_built(build_model, input_spec, error)
    except Exception as error:  # A layer's code may raise anything.
        return _inspect_built(build_model, input_spec, error)


def _inspect_built(
    build_model: ModelBuilder, input_spec: InputSpec | None, error: Exception
) -> tuple[Inspection, ModelBuilder]:
    """Does what `inspect_model` does, for a builder that has raised an error in a graph."""
    try:
        ready = prepare_copies(*build_once(build_model))
        inspection = _inspect(ready.build_model, input_spec, ready.start, originals=ready.weights)
    except Exception as other:
        raise (other if isinstance(other, UserError) else _not_traced(error)) from error
    compiled = inspection.compiled or ready.compiled
    return inspection._replace(compiled=compiled), ready.build_model


def _not_traced(error: Exception) -> UserError:
    return UserError(
        "the model cannot be built and called in a graph, as it is for clients: "
        f"{type(error).__name__}: {one_line(error)}"
    )


def _inspect(
    build_model: ModelBuilder,
    input_spec: InputSpec | None,
    start: Start = types.MappingProxyType({}),
    *,
    assigns: bool = False,
    originals: Sequence[tf.Variable] = (),
) -> Inspection:
    """Does what `inspect_model` does, with fixed initial values.

    Args:
        build_model: Returns a new Keras model at each call.
        input_spec: The inputs' specs, or None if the model declares them.
        start: Initial values of variables.
        assigns: Whether the builder assigns initial values to variables.
        originals: The weights of the built model, if `build_model` copies one.
    """
    assignments = _Assignments(allows_builder=bool(start))
    with model_graph(start, assignments) as (graph, created), recorded_compile() as compiled:
        model = build_model()
        assignments.end_of_build()
        if not isinstance(model, keras.Model):
            raise UserError(f"build_model must return a tf.keras.Model, it returned {model!r}.")
        check_methods(model)
        check_batch_randomness(model)
        mixed = [layer for layer in list_layers(model) if mixes_precision(layer)]
        if mixed:
            raise UserError(
                f"layer {mixed[-1].name!r} computes in {mixed[-1].compute_dtype}: mixed precision "
                "cannot be trained here. Build the model after "
                "tf.keras.mixed_precision.set_global_policy('float32')."
            )
        specs, takes = read_inputs(model, input_spec)
        for name, spec in specs.items():
            check_is_numbers(f"input {name!r}", spec)
        draws = NoiseDraws(fold(tf.zeros([1], tf.uint64), 0))
        draws.give_to(model)
        inputs = {k: tf.compat.v1.placeholder(s.dtype, s.shape) for k, s in specs.items()}
        before = list_operations(graph)
        output = model(arrange_inputs(inputs, specs, takes), training=True)
        check_output(model, output)
        check_layers(model)
        check_origins(model, {variable.ref() for variable, _ in created})
        check_operations({*list_operations(graph)} - {*before})
        check_captures("a layer", graph, originals)
        variables, keys, values = _list_variables(model, created)
        checks = find_checks(inputs, [v for v, _ in created])
    check_updates(model, assignments.updated.values(), {v.ref() for v in weights_of(model)})
    names = [v.name for v in variables]
    if len(set(names)) != len(names):
        raise UserError(f"two variables share a name; give their layers different names: {names}.")
    references = {name: ref for name, (ref, _) in keys.items()}
    untrained = {v.ref() for v in model.non_trainable_variables if hasattr(v, "ref")}
    return Inspection(
        variables=variables,
        untrained=frozenset(name for name, ref in references.items() if ref in untrained),
        updated=frozenset(name for name, ref in references.items() if ref in assignments.updated),
        values=values,
        keys=tuple(key for _, key in keys.values()),
        input_spec=specs,
        takes=takes,
        compiled=compiled.get(id(model)),
        draws_noise=draws.count > 0,
        output_spec=tf.TensorSpec(output.shape, output.dtype),
        is_masked=mask_of(output) is not None,
        assigns=assigns,
        input_checks=checks,
    )


def build_once(build_model: ModelBuilder) -> tuple[keras.Model, list[Created]]:
    """Builds a model outside of graphs.

    Returns:
        The model, and the variables that it has created, each with its value if that differs from
        the value that it was created with.
    """
    created: list[tuple[tf.Variable, tuple, bytes | None]] = []

    def record(next_creator, **kwargs):
        variable = next_creator(**kwargs)
        is_restored = hasattr(kwargs["initial_value"], "checkpoint_position")
        # A variable created within a function, such as by `adapt`, has a value once it has run.
        digest = _digest(variable) if tf.executing_eagerly() and not is_restored else None
        created.append((variable, creation_key(kwargs), digest))
        return variable

    with context.eager_mode(), tf.variable_creator_scope(record):
        model = build_model()
        variables = [
            Created(v, key, v.numpy() if _digest(v) != first else None) for v, key, first in created
        ]
    return model, variables


def _digest(variable: tf.Variable) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(variable.numpy()).tobytes()).digest()


def _list_variables(
    model: keras.Model, created: list[tuple[tf.Variable, dict]]
) -> tuple[tuple[VariableSpec, ...], dict[str, tuple[object, tuple]], dict[str, np.ndarray]]:
    """Lists the model's variables, without those of an optimizer or of Keras' metrics.

    Where Keras gives two variables the same name, they are named by their layers' paths.

    Returns:
        The variables; variable name to reference and `creation_key`; and variable name to initial
        value, where it is fixed.
    """
    weights = {v.ref() for v in weights_of(model)}
    around = _layers_around(model)
    paths = {path for layer_paths in around.values() for path in layer_paths}
    listed = [(v, kwargs) for v, kwargs in created if v.ref() in weights or v.trainable]
    uses = collections.Counter(_name(v) for v, _ in listed)
    variables, keys = [], {}
    values: dict[str, np.ndarray] = {}
    for variable, kwargs in listed:
        shape, dtype = tuple(variable.shape), variable.dtype.base_dtype
        name, layer_paths = _name(variable), around.get(variable.ref(), [model.name])
        if uses[name] > 1:
            name = f"{layer_paths[-1]}/{name.rpartition('/')[2]}"
        parts = name.split("/")
        prefixes = ["/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
        names = [name, *reversed(layer_paths), *(p for p in prefixes if p not in paths)]
        initial_value = kwargs.get("initial_value")
        if kwargs["start"] is not None:
            initial_value = values[name] = kwargs["start"]
        initializer = seeded_initializer(initial_value, shape, dtype)
        unique = tuple(dict.fromkeys(names))
        spec = VariableSpec(name, layer_paths[0], shape, dtype, False, initializer, unique)
        variables.append(
            dataclasses.replace(spec, constraint=as_function(kwargs.get("constraint")))
        )
        keys[name] = variable.ref(), creation_key(kwargs)
    # The more variables a name chooses, the less specific it is.
    counts = collections.Counter(name for v in variables for name in v.names)
    ordered = [tuple(sorted(v.names, key=counts.__getitem__)) for v in variables]
    variables = [dataclasses.replace(v, names=names) for v, names in zip(variables, ordered)]
    return tuple(variables), keys, values


def _layers_around(model: keras.Model) -> dict[object, list[str]]:
    """Returns variable reference to the paths of the layers around it, outermost first.

    For a layer used in several places, the last one counts.
    """
    around: dict[object, list[str]] = {}
    for paths, layer in layers_within(model):
        around.update({v.ref(): paths for v in weights_of(layer)})
    return around


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
