"""What is found out of a Keras model by building it once, in a graph of its own."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from fedpersonal.errors import UserError
from fedpersonal.model.compiled import CompileOptions, recorded_compile
from fedpersonal.model.ids import RowSelection, find_row_selections
from fedpersonal.model.keras import keras, layers_within, list_layers, mixes_precision
from fedpersonal.model.noise import NoiseDraws, fold
from fedpersonal.model.variables import VariableSpec, seeded_initializer

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

# Operations that draw from a state of TensorFlow's own, which no seed of a round reaches.
_UNSEEDED_DRAWS = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle"),
    "Multinomial",
)


class Inspection(NamedTuple):
    """A model's parts.

    Attributes:
        variables: Its variables, in the order in which it creates them.
        untrained: Names of those that Keras does not train by gradient.
        values: Variable's name to value, of a model that has been built.
        keys: For each of them what tells it from variables that are not the model's.
        input_spec: Input name to `tf.TensorSpec`, batch dimension first.
        takes: Whether the model is called with a `dict`, a `list` or one `tensor`.
        compiled: What the model was compiled with, or None.
        draws_noise: Whether layers such as Dropout draw random numbers in training.
        num_outputs: The last size of its output, or None where that is open.
        row_selections: Where it selects rows of tables by ids that follow from its inputs alone.
    """

    variables: tuple[VariableSpec, ...]
    untrained: frozenset[str]
    values: Mapping[str, np.ndarray]
    keys: tuple[tuple, ...]
    input_spec: dict[str, tf.TensorSpec]
    takes: str
    compiled: CompileOptions | None
    draws_noise: bool
    num_outputs: int | None
    row_selections: tuple[RowSelection, ...]


def creation_key(kwargs: Mapping[str, Any]) -> tuple:
    """Returns what is equal each time that a variable is created, of its creator's arguments."""
    shape = kwargs.get("shape")
    return kwargs.get("name"), None if shape is None else tuple(shape), kwargs.get("trainable")


@contextlib.contextmanager
def sketched() -> Iterator[tuple[tf.Graph, list[tuple[tf.Variable, dict]]]]:
    """Yields a graph to build a model in, and the list of its variables with what made them.

    The graph is that of a function: in one of TensorFlow 1, Keras would change the classes of all
    layers of the program, in its other threads, too. Variables have no values and take no memory.
    """
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
        variable = UninitializedVariable(shape=shape, dtype=tf.as_dtype(dtype), **known)
        created.append((variable, kwargs))
        return variable

    graph = func_graph.FuncGraph("sketch")
    with graph.as_default(), tf.variable_creator_scope(record):
        yield graph, created


def inspect_model(
    build_model: ModelBuilder, input_spec: InputSpec | None, start: list[np.ndarray] | None
) -> Inspection:
    """Builds a model and calls it once on placeholders, as in training.

    `start` are initial values of the model's weights, in Keras' order, or None for those that its
    initializers draw.

    Raises:
        UserError: If it is no Keras model, does not tell its inputs, has several outputs, draws
            random numbers by itself, or two of its variables share a name.
    """
    with sketched() as (graph, created), recorded_compile() as compiled:
        model = build_model()
        if not isinstance(model, keras.Model):
            raise UserError(f"build_model must return a tf.keras.Model, it returned {model!r}.")
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
        before = _list_operations(graph)
        output = model(arrange_inputs(inputs, specs, takes), training=True)
        _check_output(model, output)
        _check_draws({*_list_operations(graph)} - {*before})
        variables, keys, untrained, values = _list_variables(model, created, start)
        selections = find_row_selections(inputs, [v for v, _ in created])
    names = [v.name for v in variables]
    if len(set(names)) != len(names):
        raise UserError(f"two variables share a name; name their layers apart: {names}.")
    options, draws_noise = compiled.get(id(model)), draws.count > 0
    last = output.shape[-1] if output.shape.rank else None
    return Inspection(
        *(variables, untrained, values, keys, specs, takes, options, draws_noise, last, selections)
    )


def _check_output(model: keras.Model, output: object) -> None:
    if tf.is_tensor(output):
        return
    names, listed = getattr(model, "output_names", None), "model.output"
    if isinstance(output, Mapping):
        names, listed = list(output), "list(model.output.values())"
    raise UserError(
        f"the model has several outputs, {names or output!r}; it needs one. Wrap it: "
        f"tf.keras.Model(model.input, tf.keras.layers.Concatenate()({listed})), and have the loss "
        "take them apart."
    )


def _list_operations(graph: tf.Graph) -> list[tuple[str, str]]:
    """Returns type and name of all operations, those of functions, such as loops, included."""
    definition = graph.as_graph_def()
    found = [(node.op, node.name) for node in definition.node]
    for function in definition.library.function:
        prefix = function.signature.name
        found += [(node.op, f"{prefix}/{node.name}") for node in function.node_def]
    return found


def _check_draws(added: set[tuple[str, str]]) -> None:
    """Raises a UserError if an operation draws without a seed of ours."""
    for kind, name in added:
        if kind in _UNSEEDED_DRAWS:
            raise UserError(
                f"the model draws random numbers by itself ({kind} {name!r}), and would draw anew "
                "in each run. Have a Keras layer draw them, such as Dropout or GaussianNoise, made "
                "before the model is called: their draws follow the run's seed."
            )


def _list_variables(
    model: keras.Model, created: list[tuple[tf.Variable, dict]], start: list[np.ndarray] | None
) -> tuple[tuple[VariableSpec, ...], tuple[tuple, ...], frozenset[str], dict[str, np.ndarray]]:
    """Lists the model's own variables: those of an optimizer or of Keras' metrics are not.

    Returns:
        The variables, their keys, the names of the untrained ones, and values that are given. Where
        Keras gives two one name, they are called by their layers' paths.
    """
    weights = {v.ref(): i for i, v in enumerate(model.weights)}
    untrained = {v.ref() for v in model.non_trainable_variables}
    around = _layers_around(model)
    paths = {path for own in around.values() for path in own}
    owned = [(v, kwargs) for v, kwargs in created if v.ref() in weights or v.trainable]
    uses = collections.Counter(_name(v) for v, _ in owned)
    variables, keys, names_of_untrained = [], [], set()
    values: dict[str, np.ndarray] = {}
    for variable, kwargs in owned:
        shape, dtype = tuple(variable.shape), variable.dtype.base_dtype
        name, own_paths = _name(variable), around.get(variable.ref(), [model.name])
        if uses[name] > 1:
            name = f"{own_paths[-1]}/{name.rpartition('/')[2]}"
        if variable.ref() in untrained:
            names_of_untrained.add(name)
        parts = name.split("/")
        prefixes = ["/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]
        names = [name, *reversed(own_paths), *(p for p in prefixes if p not in paths)]
        initial_value = kwargs.get("initial_value")
        if start is not None and variable.ref() in weights:
            initial_value = values[name] = start[weights[variable.ref()]]
        initializer = seeded_initializer(initial_value, shape, dtype)
        unique = tuple(dict.fromkeys(names))
        variables.append(VariableSpec(name, own_paths[0], shape, dtype, False, initializer, unique))
        keys.append(creation_key(kwargs))
    # The more variables a name chooses, the less specific it is.
    counts = collections.Counter(name for v in variables for name in v.names)
    ordered = [tuple(sorted(v.names, key=counts.__getitem__)) for v in variables]
    variables = [dataclasses.replace(v, names=names) for v, names in zip(variables, ordered)]
    return tuple(variables), tuple(keys), frozenset(names_of_untrained), values


def _layers_around(model: keras.Model) -> dict[object, list[str]]:
    """Returns variable reference to the paths of the layers around it, outermost first.

    Of a layer that is used in several places the last one counts.
    """
    around: dict[object, list[str]] = {}
    for paths, layer in layers_within(model):
        around.update({v.ref(): paths for v in layer.variables})
    return around


def _name(variable: tf.Variable) -> str:
    return variable.name.split(":")[0]
