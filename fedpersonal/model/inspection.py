"""What is found out of a Keras model by building it once, in a graph of its own."""

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
    recorded_compile,
    take_apart,
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
    check_captures,
    check_draws,
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
    model: keras.Model, given: InputSpec | None
) -> tuple[dict[str, tf.TensorSpec], str]:
    """Returns the inputs' specs by name, and whether a model takes a `dict`, `list` or `tensor`.

    Raises:
        UserError: If the model does not tell its inputs, or has others than are given.
    """
    known = getattr(model, "inputs", None)
    is_single = isinstance(model, keras.Sequential) or isinstance(given, tf.TensorSpec)
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


ModelBuilder = Callable[[], keras.Model]


class Inspection(NamedTuple):
    """A model's parts.

    Attributes:
        variables: Its variables, in the order in which it creates them.
        untrained: Names of those that Keras does not train by gradient.
        updated: Names of those that the model assigns to while it is trained.
        values: Variable's name to the value that the model starts from, where it is known.
        keys: For each of them what tells it from variables that are not the model's.
        input_spec: Input name to `tf.TensorSpec`, batch dimension first.
        takes: Whether the model is called with a `dict`, a `list` or one `tensor`.
        compiled: What the model was compiled with, or None.
        draws_noise: Whether layers such as Dropout draw random numbers in training.
        output_spec: Its output's shape and dtype.
        is_masked: Whether its output has a Keras mask.
        assigns: Whether its builder assigns to variables: sets the values that they start from.
        input_checks: What finds values of its inputs that it cannot take.
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


# Larger variables get no value in a sketch. What preprocessing layers have learned is smaller, and
# read where they are built.
MOST_READ = 2**18


class _Sketched(UninitializedVariable):
    """A variable without a value, which tells when it is assigned to, and is not."""

    on_assign: Callable[[tf.Variable], None]

    def assign(self, value: Any, use_locking=None, name=None, read_value=True) -> tf.Variable:
        """Says that a value is assigned."""
        del value, use_locking, name, read_value
        self.on_assign(self)
        return self

    assign_add = assign_sub = assign


@contextlib.contextmanager
def sketched(
    start: Start = types.MappingProxyType({}),
    on_assign: Callable[[tf.Variable], None] = lambda variable: None,
) -> Iterator[tuple[tf.Graph, list[tuple[tf.Variable, dict]]]]:
    """Yields a graph to build a model in, and the list of its variables with what made them.

    The graph is that of a function: in one of TensorFlow 1, Keras would change the classes of all
    layers of the program, in its other threads, too. Variables have no values and take no memory,
    but for small ones of which `start` has a value. Nothing is assigned to them; `on_assign` is
    called instead.
    """
    known_starts = {key: list(values) for key, values in start.items()}
    created: list[tuple[tf.Variable, dict]] = []

    def record(next_creator, **kwargs):
        del next_creator
        value = kwargs["initial_value"]
        shape, dtype = kwargs.get("shape"), kwargs.get("dtype")
        if shape is None or dtype is None:
            if callable(value):  # Its draws are none of the model's.
                with func_graph.FuncGraph("value").as_default():
                    value = tf.convert_to_tensor(value(), dtype)
            value = tf.convert_to_tensor(value, dtype)
            shape, dtype = value.shape, value.dtype
        known = {name: kwargs.get(name) for name in ("trainable", "name", "constraint")}
        variable = _Sketched(shape=shape, dtype=tf.as_dtype(dtype), **known)
        variable.on_assign = on_assign
        of_key = known_starts.get(creation_key(kwargs))
        first = of_key.pop(0) if of_key else None
        if first is not None and first.size <= MOST_READ:
            with tf.init_scope():
                UninitializedVariable.assign(variable, first)
        created.append((variable, {**kwargs, "start": first}))
        return variable

    graph = func_graph.FuncGraph("sketch")
    with graph.as_default(), tf.variable_creator_scope(record):
        yield graph, created


class _AssignedInBuilder(Exception):
    """Says that a model's builder sets the values that variables start from."""


class _Assignments:
    """What a model assigns to, at first while it is built, then while it is called."""

    def __init__(self, *, is_known: bool):
        """Takes whether it is known what is assigned while the model is built."""
        self._is_built, self._is_known = False, is_known
        self.updated: dict[object, tf.Variable] = {}

    def __call__(self, variable: tf.Variable) -> None:
        if self._is_built:
            self.updated[variable.ref()] = variable
        elif not self._is_known:
            raise _AssignedInBuilder(variable.name)

    def end_of_build(self) -> None:
        """Says that the model is called from now on."""
        self._is_built = True


def inspect_model(
    build_model: ModelBuilder, input_spec: InputSpec | None, ready: ReadyModel | None = None
) -> tuple[Inspection, ModelBuilder]:
    """Builds a model and calls it once on placeholders, as in training.

    Where the builder sets starting weights, it is called once more, outside of a graph. `ready` is
    a model that has been built, or None.

    Returns:
        What was found; and the builder, or, of one that works outside of graphs alone, what copies
        the model that it has built.

    Raises:
        UserError: If it is no Keras model, does not tell its inputs, has several outputs, draws
            random numbers by itself, two of its variables share a name, or it has what training
            here would leave out.
    """
    if ready is not None:
        try:
            found = _inspect(ready.build_model, input_spec, ready.start, originals=ready.weights)
            return found, ready.build_model
        except UserError:
            raise
        except Exception as error:  # Whatever a layer's own code raises.
            raise _not_traced(error) from error
    try:
        return _inspect(build_model, input_spec), build_model
    except UserError:
        raise
    except _AssignedInBuilder:
        try:
            with recorded_compile():
                _, values = build_once(build_model)
            return _inspect(build_model, input_spec, starts(values), assigns=True), build_model
        except UserError:
            raise
        except Exception as error:  # Such as of `fit` or `get_weights` in the builder.
            return _inspect_built(build_model, input_spec, error)
    except Exception as error:  # Whatever a layer's own code raises.
        return _inspect_built(build_model, input_spec, error)


def _inspect_built(
    build_model: ModelBuilder, input_spec: InputSpec | None, error: Exception
) -> tuple[Inspection, ModelBuilder]:
    """As `inspect_model`, of a builder that has raised an error in a graph."""
    try:
        copied = take_apart(*build_once(build_model))
        found = _inspect(copied.build_model, input_spec, copied.start, originals=copied.weights)
    except Exception as other:
        raise (other if isinstance(other, UserError) else _not_traced(error)) from error
    return found._replace(compiled=found.compiled or copied.compiled), copied.build_model


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
    """As `inspect_model`; `start` has the values that variables start from.

    `originals` are the weights of the model of which `build_model` makes copies.
    """
    assignments = _Assignments(is_known=bool(start))
    with sketched(start, assignments) as (graph, created), recorded_compile() as compiled:
        model = build_model()
        assignments.end_of_build()
        if not isinstance(model, keras.Model):
            raise UserError(f"build_model must return a tf.keras.Model, it returned {model!r}.")
        check_methods(model)
        check_draws(model)
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
    owned = {v.ref() for v in weights_of(model)}
    check_updates(model, assignments.updated.values(), owned)
    names = [v.name for v in variables]
    if len(set(names)) != len(names):
        raise UserError(f"two variables share a name; name their layers apart: {names}.")
    of_name = {name: ref for name, (ref, _) in keys.items()}
    untrained = {v.ref() for v in model.non_trainable_variables if hasattr(v, "ref")}
    return Inspection(
        variables=variables,
        untrained=frozenset(name for name, ref in of_name.items() if ref in untrained),
        updated=frozenset(name for name, ref in of_name.items() if ref in assignments.updated),
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
        The model; and what variables it has created, with their values where these are others than
        those that they were made with.
    """
    created: list[tuple[tf.Variable, tuple, bytes | None]] = []

    def record(next_creator, **kwargs):
        variable = next_creator(**kwargs)
        is_restored = hasattr(kwargs["initial_value"], "checkpoint_position")
        # What a function has made, such as `adapt`, has a value when it has run.
        digest = _digest(variable) if tf.executing_eagerly() and not is_restored else None
        created.append((variable, creation_key(kwargs), digest))
        return variable

    with context.eager_mode(), tf.variable_creator_scope(record):
        model = build_model()
        made = [
            Created(v, key, v.numpy() if _digest(v) != first else None) for v, key, first in created
        ]
    return model, made


def _digest(variable: tf.Variable) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(variable.numpy()).tobytes()).digest()


def _list_variables(
    model: keras.Model, created: list[tuple[tf.Variable, dict]]
) -> tuple[tuple[VariableSpec, ...], dict[str, tuple[object, tuple]], dict[str, np.ndarray]]:
    """Lists the model's own variables: those of an optimizer or of Keras' metrics are not.

    Returns:
        The variables; by name, each one's reference and key; and the values that are given. Where
        Keras gives two one name, they are called by their layers' paths.
    """
    weights = {v.ref() for v in weights_of(model)}
    around = _layers_around(model)
    paths = {path for own in around.values() for path in own}
    owned = [(v, kwargs) for v, kwargs in created if v.ref() in weights or v.trainable]
    uses = collections.Counter(_name(v) for v, _ in owned)
    variables, keys = [], {}
    values: dict[str, np.ndarray] = {}
    for variable, kwargs in owned:
        shape, dtype = tuple(variable.shape), variable.dtype.base_dtype
        name, own_paths = _name(variable), around.get(variable.ref(), [model.name])
        if uses[name] > 1:
            name = f"{own_paths[-1]}/{name.rpartition('/')[2]}"
        parts = name.split("/")
        prefixes = ["/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
        names = [name, *reversed(own_paths), *(p for p in prefixes if p not in paths)]
        initial_value = kwargs.get("initial_value")
        if kwargs["start"] is not None:
            initial_value = values[name] = kwargs["start"]
        initializer = seeded_initializer(initial_value, shape, dtype)
        unique = tuple(dict.fromkeys(names))
        spec = VariableSpec(name, own_paths[0], shape, dtype, False, initializer, unique)
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

    Of a layer that is used in several places the last one counts.
    """
    around: dict[object, list[str]] = {}
    for paths, layer in layers_within(model):
        around.update({v.ref(): paths for v in weights_of(layer)})
    return around


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
