"""Descriptions of the parts of a training for JSON, which are compared when a run is resumed.

Dataclasses, Keras objects, TFF's optimizers and factories are described by their parts. Functions
have none: they are compared by their code, by their closures, and by the global values and
functions of the program that they name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import platform
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
# The largest depth of a description.
_DEEPEST = 20
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (tuple, list, dict, set, frozenset, np.ndarray)


def describe(value: Any, above: Sequence[Any] = ()) -> Any:
    """Returns a description that distinguishes a value from others of its kind, for JSON.

    Args:
        value: Anything that a program passes to a `Trainer`.
        above: The values of which this one is a part; they are not described again.
    """
    if isinstance(value, np.generic):
        return float(str(value)) if isinstance(value, np.floating) else value.item()
    if isinstance(value, _PLAIN):
        return value
    if len(above) > _DEEPEST or any(value is one for one in above):
        return f"a {_kind(value)} within itself"
    inner = functools.partial(describe, above=[*above, value])
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(inner, value), key=json.dumps)
    if isinstance(value, (list, tuple, range)):
        return [inner(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bytes):
        return f"bytes {_hashed(value)}"
    if isinstance(value, functools.partial):
        return {
            "partial": inner(value.func),
            **_each({"args": value.args, **value.keywords}, inner),
        }
    if inspect.ismethod(value):
        return {"method": inner(value.__func__), "of": inner(value.__self__)}
    if inspect.isfunction(value):
        return _function(value, inner)
    if isinstance(value, type):
        return _named(value, inner)
    return _object(value, inner)


def flat(described: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of a description by their paths, such as `algorithm.phases[0].epochs`."""
    parts: Iterator[tuple[str, Any]]
    if isinstance(described, Mapping) and described:
        parts = ((f"{path}.{name}" if path else name, v) for name, v in described.items())
    elif isinstance(described, list) and described:
        parts = ((f"{path}[{place}]", v) for place, v in enumerate(described))
    else:
        return {path: described}
    return {name: leaf for place, part in parts for name, leaf in flat(part, place).items()}


def _object(value: Any, inner: Any) -> Any:
    kind = _named(type(value), inner)
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}
        return {"kind": kind, **_each(fields, inner)}
    if hasattr(value, "python_function"):  # A `tf.function`.
        return inner(value.python_function)
    if hasattr(value, "fingerprint"):
        return {"kind": kind, "values": value.fingerprint()}
    if hasattr(value, "to_building_block"):
        return {"kind": kind, "type": str(value.type_signature), "content": _computed(value)}
    if hasattr(value, "as_numpy_dtype"):
        return value.name
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        text = _hashed(array.tobytes() if array.dtype != object else repr(array.tolist()).encode())
        return inner(array[()]) if not array.shape else f"{array.dtype} {list(array.shape)} {text}"
    if hasattr(value, "get_config"):
        return {"kind": kind, **_config(value, inner)}
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{inner(value.dtype)} {value.shape}"
    if callable(value) and not hasattr(value, "__dict__"):
        return getattr(value, "__qualname__", None) or kind
    parts = {name.lstrip("_"): part for name, part in getattr(value, "__dict__", {}).items()}
    return {"kind": kind, **_each(parts, inner)}


def _computed(computation: Any) -> str:
    """Returns a hash of a TFF computation: of its operations and constants, without names.

    TensorFlow gives functions a new name each time that they are traced.
    """
    import tensorflow as tf

    from fedpersonal.runtime.interpreter import blocks_in

    parts: list[Any] = []
    for block in blocks_in(computation.to_building_block()):
        literal = repr(block.value) if type(block).__name__ == "Literal" else None
        parts.append([type(block).__name__, getattr(block, "uri", literal)])
        if hasattr(block, "proto") and block.proto.HasField("tensorflow"):
            graph = tf.compat.v1.GraphDef()
            block.proto.tensorflow.graph_def.Unpack(graph)
            functions = sorted(_nodes(one.node_def) for one in graph.library.function)
            parts += [_nodes(graph.node), functions]
    return _hashed(json.dumps(parts).encode())


def _nodes(nodes: Any) -> list[Any]:
    kinds = ("i", "f", "b", "s", "type", "shape", "tensor", "list")
    return [
        [
            "call" if node.op.startswith("__") else node.op,
            len(node.input),
            [
                f"{name} {attribute}"
                for name, attribute in sorted(node.attr.items())
                if name[0] != "_" and attribute.WhichOneof("value") in kinds
            ],
        ]
        for node in nodes
    ]


def _config(value: Any, inner: Any) -> dict[str, Any]:
    """Returns an object's Keras config, or, if it has none, its public numbers and texts.

    In a Keras config, functions are texts that also name the line of a lambda. They are replaced
    here by the usual descriptions of functions.
    """
    try:
        config = dict(value.get_config())
    except (NotImplementedError, TypeError, ValueError):
        plain = {n: v for n, v in vars(value).items() if n[0] != "_" and isinstance(v, _PLAIN)}
        config = {**plain, "name": getattr(value, "name", None)}
    for name in config:
        part = getattr(value, name, None)
        is_named = isinstance(config[name], str) and _is_of_library(part)
        config[name] = part if callable(part) and not is_named else config[name]
    return _each(config, inner)


def _named(kind: type, inner: Any) -> Any:
    """Returns a class' name and, if the class is of the program, a hash of its functions.

    The hash is also added for library classes inside functions, which may close over arguments.
    """
    if _is_unique_in_library(kind):
        return kind.__name__.lstrip("_")
    functions = {
        f"{base.__name__}.{name}": inner(getattr(item, "__func__", item))
        for base in kind.__mro__
        if not _is_unique_in_library(base)
        for name, item in vars(base).items()
        if inspect.isfunction(getattr(item, "__func__", item))
    }
    text = _hashed(json.dumps(functions, sort_keys=True).encode())
    return f"{kind.__qualname__}, compared by its code {text}"


def _function(function: types.FunctionType, inner: Any) -> Any:
    is_library, code = _is_of_library(function), function.__code__
    name = function.__qualname__
    about: dict[str, Any] = {}
    if not _is_unique_in_library(function):
        text = _hashed(json.dumps(_code(code, function.__doc__)).encode())
        version = ".".join(platform.python_version_tuple()[:2])
        about["code"] = f"compared by its code {text} in Python {version}"
    cells = zip(code.co_freevars, function.__closure__ or ())
    about.update(_named_values({n: _content(cell) for n, cell in cells}, inner))
    defaults = {f"default {n}": v for n, v in enumerate(function.__defaults__ or ())}
    about.update(_each({**defaults, **(function.__kwdefaults__ or {})}, inner))
    if not is_library:
        about.update(_named_values(_globals_of(function), inner))
    return {"function": name, **about} if about else f"{function.__module__}.{name}"


def _code(code: types.CodeType, doc: str | None = None) -> list[Any]:
    """Returns the code of a function, without file names and line numbers."""
    consts = [
        _code(one) if isinstance(one, types.CodeType) else repr(_sorted(one))
        for one in code.co_consts
        if one is not doc or one is None
    ]
    return [code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars]


def _sorted(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Returns the global values, and the program's functions and classes, in a function's code."""
    matches, codes = {}, [function.__code__]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            is_code = inspect.isfunction(value) or isinstance(value, type)
            if isinstance(value, (*_PLAIN[:-1], *_CONTAINERS, functools.partial)) or (
                is_code and not _is_of_library(value)
            ):
                matches[name] = value
    return matches


def _named_values(values: Mapping[str, Any], inner: Any) -> dict[str, Any]:
    """Describes the values that a function names; containers, maybe of clients, are hashed."""
    described = _each(values, inner)
    for name, value in values.items():
        if isinstance(value, _CONTAINERS):
            text = _hashed(json.dumps(described[name], sort_keys=True, default=str).encode())
            described[name] = f"{type(value).__name__} {text}"
    return described


def _each(values: Mapping[str, Any], inner: Any) -> dict[str, Any]:
    """Describes each value; describing the mapping itself would add a level of depth."""
    return {str(name): inner(value) for name, value in values.items()}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The cell is still empty.
        return None


def _kind(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__.lstrip("_")


def _is_of_library(value: Any) -> bool:
    """Reports whether a class or function is of this library, an installed one or Python's."""
    name = str(getattr(value, "__module__", None) or "builtins")
    if name.partition(".")[0] in ("fedpersonal", "builtins"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_LIBRARIES)


def _is_unique_in_library(value: Any) -> bool:
    """Reports whether a class or function is of a library, and the only one with its name."""
    return _is_of_library(value) and "<" not in value.__qualname__


def _hashed(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()
