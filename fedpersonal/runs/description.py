"""What a run was trained with, for JSON: to be read, and compared when the run goes on.

Dataclasses, Keras objects, TFF's optimizers and factories are described by their parts. Functions
have none: they are compared by their code, by what they close over, and by the global values and
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
# So deep is what is described at most.
_DEEPEST = 20
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (tuple, list, dict, set, frozenset, np.ndarray)


def describe(value: Any, above: Sequence[Any] = ()) -> Any:
    """Returns what tells a value from others of its kind, as JSON can hold it.

    Args:
        value: Anything that a program gives to a `Trainer`.
        above: What it is a part of, which is not described again.
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
    """Returns what a TFF computation is compared by: its operations and constants, without names.

    TensorFlow calls functions otherwise each time that they are traced.
    """
    import tensorflow as tf

    from fedpersonal.runtime.interpreter import blocks_in

    found: list[Any] = []
    for block in blocks_in(computation.to_building_block()):
        literal = repr(block.value) if type(block).__name__ == "Literal" else None
        found.append([type(block).__name__, getattr(block, "uri", literal)])
        if hasattr(block, "proto") and block.proto.HasField("tensorflow"):
            graph = tf.compat.v1.GraphDef()
            block.proto.tensorflow.graph_def.Unpack(graph)
            functions = sorted(_nodes(one.node_def) for one in graph.library.function)
            found += [_nodes(graph.node), functions]
    return _hashed(json.dumps(found).encode())


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
    """Returns what Keras says of an object, or else the numbers and texts that it has been given.

    Keras has functions and the like as texts, which also say where a lambda is written: these are
    described as any.
    """
    try:
        config = dict(value.get_config())
    except (NotImplementedError, TypeError, ValueError):
        own = {n: v for n, v in vars(value).items() if n[0] != "_" and isinstance(v, _PLAIN)}
        config = {**own, "name": getattr(value, "name", None)}
    for name in config:
        part = getattr(value, name, None)
        is_named = isinstance(config[name], str) and _is_of_library(part)
        config[name] = part if callable(part) and not is_named else config[name]
    return _each(config, inner)


def _named(kind: type, inner: Any) -> Any:
    """Returns a class' name; of one of the program's also what its functions are compared by.

    So are those of a class within a function, which may close over what the function was given.
    """
    if _is_known(kind):
        return kind.__name__.lstrip("_")
    functions = {
        f"{owner.__name__}.{name}": inner(getattr(item, "__func__", item))
        for owner in kind.__mro__
        if not _is_known(owner)
        for name, item in vars(owner).items()
        if inspect.isfunction(getattr(item, "__func__", item))
    }
    text = _hashed(json.dumps(functions, sort_keys=True).encode())
    return f"{kind.__qualname__}, compared by its code {text}"


def _function(function: types.FunctionType, inner: Any) -> Any:
    is_library, code = _is_of_library(function), function.__code__
    name = function.__qualname__
    about: dict[str, Any] = {}
    if not _is_known(function):
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
    """Returns what a function does, without where it is written."""
    consts = [
        _code(one) if isinstance(one, types.CodeType) else repr(_sorted(one))
        for one in code.co_consts
        if one is not doc or one is None
    ]
    return [code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars]


def _sorted(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Returns the values, and the program's functions and classes, that a function names."""
    found, codes = {}, [function.__code__]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            is_code = inspect.isfunction(value) or isinstance(value, type)
            if isinstance(value, (*_PLAIN[:-1], *_CONTAINERS, functools.partial)) or (
                is_code and not _is_of_library(value)
            ):
                found[name] = value
    return found


def _named_values(values: Mapping[str, Any], inner: Any) -> dict[str, Any]:
    """Describes what a function names; of lists and the like, which may be of clients, a hash."""
    told = _each(values, inner)
    for name, value in values.items():
        if isinstance(value, _CONTAINERS):
            text = _hashed(json.dumps(told[name], sort_keys=True, default=str).encode())
            told[name] = f"{type(value).__name__} {text}"
    return told


def _each(values: Mapping[str, Any], inner: Any) -> dict[str, Any]:
    """Describes each value: a mapping of them would count as one more level of depth."""
    return {str(name): inner(value) for name, value in values.items()}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It has none yet.
        return None


def _kind(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__.lstrip("_")


def _is_of_library(value: Any) -> bool:
    """Tells whether a class or function is this library's, an installed one's or Python's own."""
    name = str(getattr(value, "__module__", None) or "builtins")
    if name.partition(".")[0] in ("fedpersonal", "builtins"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and file.startswith(_LIBRARIES)


def _is_known(value: Any) -> bool:
    """Tells whether a class or function is a library's, and the only one of its name there."""
    return _is_of_library(value) and "<" not in value.__qualname__


def _hashed(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()
