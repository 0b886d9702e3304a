"""A partitioned model in files: in JSON, where it is made of Keras' own parts, and exported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError, quoted
from fedpersonal.model.compiled import recorded_compile
from fedpersonal.model.inspection import sketched
from fedpersonal.model.keras import (
    describe_connections,
    is_network,
    is_operation,
    keras,
    list_layers,
    replace_constants,
    restore_argument_names,
)
from fedpersonal.model.partition import PartitionedModel

# These hold code or read files.
_LAYERS_WITH_CODE = ("Lambda", "DenseFeatures")
_OPERATION_LAYERS = ("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer")
# Functions of TensorFlow, as Keras names them; some have `compat.v1.` before their names. Of these
# modules, but not of those within them, every function computes and does nothing else.
_OPERATION_MODULES = ("__operators__", "linalg", "math", "nn", "strings")
_OPERATIONS = frozenset(
    """
    argsort boolean_mask broadcast_to cast clip_by_norm clip_by_value concat convert_to_tensor
    einsum ensure_shape expand_dims eye fill floor_div gather gather_nd identity linspace norm
    one_hot ones ones_like pad random.normal random.uniform range rank realdiv repeat reshape
    reverse reverse_sequence roll scatter_nd searchsorted sequence_mask shape size slice sort split
    squeeze stack stop_gradient strided_slice tensor_scatter_nd_add tensor_scatter_nd_update
    tensordot tile transpose truncatediv truncatemod unstack where zeros zeros_like
    """.split()
)
# Kinds of operations of a graph: Keras writes these of a model that was built in one.
_KINDS = frozenset(
    """
    Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin AsString Asin Asinh Atan Atan2 Atanh AvgPool
    BatchMatMul BatchMatMulV2 BatchMatMulV3 BatchToSpaceND BiasAdd Bincount BroadcastArgs
    BroadcastTo Bucketize Cast Ceil Cholesky ClipByValue Concat ConcatV2 Conv2D Cos Cosh Cumprod
    Cumsum CumulativeLogsumexp DenseBincount DepthwiseConv2dNative Digamma Div DivNoNan Einsum Elu
    EnsureShape Equal Erf Erfc Exp ExpandDims Expm1 Fill Floor FloorDiv FloorMod Gather GatherNd
    GatherV2 Greater GreaterEqual Identity IdentityN InvertPermutation IsFinite IsInf IsNan L2Loss
    LeakyRelu Less LessEqual Lgamma LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr
    MatMul MatrixBandPart MatrixDeterminant MatrixDiag MatrixDiagPart MatrixDiagPartV3 MatrixDiagV3
    MatrixInverse MatrixSetDiagV3 MatrixSolve Max MaxPool MaxPoolV2 Maximum Mean Min Minimum
    MirrorPad Mul MulNoNan Neg NotEqual OneHot OnesLike Pack Pad PadV2 Pow Prod Range Rank RealDiv
    Reciprocal Relu Relu6 Reshape ReverseSequence ReverseV2 Rint Roll Round Rsqrt ScatterNd
    SegmentMax SegmentMean SegmentMin SegmentSum Select SelectV2 Selu Shape Sigmoid Sign Sin Sinh
    Size Slice Softmax SoftmaxCrossEntropyWithLogits Softplus Softsign SpaceToBatchND
    SparseSoftmaxCrossEntropyWithLogits Split SplitV Sqrt Square SquaredDifference Squeeze
    StaticRegexReplace StopGradient StridedSlice StringJoin StringLength StringLower StringStrip
    StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr Sum Tan
    Tanh TensorScatterAdd TensorScatterUpdate Tile TopKV2 Transpose TruncateDiv TruncateMod Unpack
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum Xdivy Xlogy ZerosLike
    """.split()
)
# Of these modules of Keras every class is allowed, and no function: they compute.
_MODULES = ("constraints", "initializers", "losses", "metrics", "mixed_precision", "regularizers")
_INSTEAD = "give load_run the model itself (model=)"


def check_parts(described: dict[str, Any]) -> None:
    """Makes sure that a description names known layers, operations and other parts of Keras alone.

    Args:
        described: As of `model.description`, its `keras` read from JSON.

    Raises:
        UserError: If it has code, names anything else, or gives a layer a file to read.
    """
    top = described["keras"]
    if top.get("class_name") not in ("Functional", "Model", "Sequential"):
        raise _refusal("the model", top.get("class_name"))
    if {*top} - {"class_name", "config", "keras_version", "backend"}:
        raise UserError(f"the model has entries that Keras does not write; {_INSTEAD}.")
    _check([top.get("config"), described.get("loss"), described.get("metrics")])


def _check(part: Any) -> None:
    if isinstance(part, dict):
        if "class_name" in part:
            _check_class(part)
        if isinstance(part.get("vocabulary"), (str, dict)):
            raise _refusal("a vocabulary of the file", part["vocabulary"])
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        _check(inner)


def _check_class(part: dict[str, Any]) -> None:
    """Checks the object that Keras makes of a dictionary with `class_name`."""
    name, module = part["class_name"], str(part.get("module"))
    if name in ("__ellipsis__", "__numpy__", "__tensor__"):  # Values.
        return
    if name in _OPERATION_LAYERS:
        config = part["config"]
        in_graph = name == "TensorFlowOpLayer"
        operation = config["node_def"]["op"] if in_graph else config["function"]
        if not (operation in _KINDS if in_graph else _is_known_operation(operation)):
            raise _refusal("the operation", operation)
        is_known = module.startswith("keras.") and part.get("registered_name") == name
    else:
        package, _, rest = module.partition(".")
        kind = getattr(getattr(keras, rest, None), str(name), None)
        is_layer = rest == "layers" and name not in _LAYERS_WITH_CODE
        is_known = package == "keras" and (is_layer or rest in _MODULES) and isinstance(kind, type)
        # Another name would be that of a class that the program has registered.
        is_known &= part.get("registered_name") is None
    if not is_known:
        is_layer = module == "keras.layers"
        raise _refusal("the layer", name) if is_layer else _refusal("the part", f"{module}.{name}")


def _is_known_operation(name: object) -> bool:
    plain = str(name).removeprefix("compat.v1.")
    return plain in _OPERATIONS or plain.rpartition(".")[0] in _OPERATION_MODULES


def _refusal(kind: str, name: object) -> UserError:
    return UserError(f"{kind} {quoted(str(name))} is not read from a file; {_INSTEAD}.")


_OPTIONS = "lookups owned_tables example_weight unit sequence_length chunk_places".split()


def list_parts(model: PartitionedModel) -> dict[str, Any]:
    """Returns what tells a partitioned model from others: names, Keras' objects, functions.

    Of a Sequential or functional model these are its layers and how they are connected; of others,
    whose code connects them, the model and the function that builds it, too.
    """
    built = _build(model)
    parts, connections = list_layers(built), {}
    for part in parts:
        if is_network(part) and not isinstance(part, keras.Sequential):
            described = describe_connections(part)
            # Keras numbers models without a name through all of a program.
            name = "the model" if part.built else described["name"]
            connections[name] = {k: v for k, v in described.items() if k != "name"}
    is_described = isinstance(built, keras.Sequential) or "the model" in connections
    layers = [one for one in parts if not is_network(one)]
    # Keras numbers operations such as `x[:, 1:]` through all models of a program.
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
        **{name: getattr(model, name) for name in _OPTIONS},
    }


def _operation(layer: keras.layers.Layer) -> str:
    config = layer.get_config()
    names = sorted({*config} - {"name", "trainable", "dtype"})
    return " ".join(str(config[name]) for name in names)


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
    layers = [layer for layer in list_layers(built) if layer is not built]
    # Keras may read a nested model without end, if it was built in a graph.
    if not all(_is_keras(layer) and not isinstance(layer, keras.Model) for layer in layers):
        return None
    try:
        described = {
            "keras": built.to_json(),
            "loss": _name(model.given_loss, keras.losses),
            "metrics": [
                _name(metric, keras.metrics) for metric in tf.nest.flatten(model.given_metrics)
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


def _build(model: PartitionedModel) -> keras.Model:
    """Returns a Keras model that can be described, without values."""
    with sketched(), recorded_compile():
        built = model.build()
    restore_argument_names(built)
    replace_constants(built)
    return built


def read_model(described: dict[str, Any]) -> PartitionedModel:
    """Returns the partitioned model that `describe_model` described.

    Raises:
        UserError: If Keras cannot build it, or it names other parts than `check_parts` knows.
    """
    try:
        read = json.loads(described["keras"])
        check_parts({**described, "keras": read})
        text, input_spec = json.dumps(read), described["input_spec"]
        keras.models.model_from_json(text)
        return PartitionedModel(
            lambda: keras.models.model_from_json(text),
            local_layers=described["local_layers"],
            loss=_find(described["loss"], keras.losses),
            metrics=[_find(metric, keras.metrics) for metric in described["metrics"]],
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
    return kind.__module__.startswith("keras.") and not isinstance(part, keras.layers.Lambda)


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


def to_keras(model: PartitionedModel, values: Mapping[str, np.ndarray]) -> keras.Model:
    """Builds the Keras model and gives it values.

    Args:
        model: The partitioned model.
        values: Variable's name to value, of all but the frozen ones.

    Returns:
        A Keras model of its own, which trains, predicts and saves as any other.
    """
    values, created = model.applied(values), []

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
    # Its optimizer and its metrics have variables, too.
    weights = {variable.ref() for variable in built.weights}
    own = [variable for variable in created if variable.ref() in weights]
    if [tuple(v.shape) for v in own] != [spec.shape for spec in model.all_variables]:
        raise ValueError(
            f"the Keras model has the variables {[v.name for v in own]}, the partitioned model "
            f"{[spec.name for spec in model.all_variables]}."
        )
    for variable, spec in zip(own, model.all_variables):
        variable.assign(model.frozen.array(spec.name) if spec.is_frozen else values[spec.name])
    return built
