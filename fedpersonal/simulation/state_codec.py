"""A nested state as named arrays and a description, and back, to the same bits.

Arrays are named by their place in the state ('state/global_model_weights/trainable/0'); the rest,
containers, Python numbers and texts, is written down in a description that JSON can hold.
Unlike a pickle it can be read with nothing but NumPy, and reading it runs no foreign code. Nor must
its classes be importable, which those of TFF's aggregators are not: they are taken from another
state of the same process.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, str)
_MAPPINGS = {"dict": dict, "OrderedDict": collections.OrderedDict}
_SEQUENCES = {"list": list, "tuple": tuple}
_OBJECTS = ("namedtuple", "object")


def encode(state: Any) -> tuple[dict, dict[str, np.ndarray]]:
    """Takes a state apart.

    Args:
        state: A nesting of dicts and OrderedDicts with text or int keys, lists, tuples, named
            tuples, dataclasses and attrs objects around NumPy arrays and scalars, tensors, Python
            numbers, texts and None. Tensors come back as NumPy arrays.

    Returns:
        The description and the arrays by name.

    Raises:
        TypeError: The state holds something else; the message says where.
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(state, "state", arrays), arrays


def decode(description: dict, arrays: dict[str, np.ndarray], *, like: Any) -> Any:
    """Puts a state together again.

    Args:
        description: What `encode` returned first.
        arrays: What `encode` returned second.
        like: A state, such as the first of the same process, that holds an object of each class.

    Raises:
        TypeError: The state holds an object of a class that `like` has not.
    """
    classes: dict[str, type] = {}
    _collect_classes(like, classes)
    return _decode(description, arrays, classes)


def _decode(node: dict, arrays: dict[str, np.ndarray], classes: dict[str, type]) -> Any:
    kind = node["kind"]
    if kind == "plain":
        return node["value"]
    if kind == "array":
        return arrays[node["name"]]
    if kind == "scalar":
        return arrays[node["name"]][()]
    parts = [_decode(child, arrays, classes) for child in node["parts"]]
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](parts)
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](zip(node["keys"], parts))
    name = node["class"]
    if name not in classes:
        raise TypeError(f"The saved state holds a {name}, which the process's first state has not.")
    if kind == "namedtuple":
        return tuple.__new__(classes[name], parts)
    value = object.__new__(classes[name])
    for key, part in zip(node["keys"], parts):
        object.__setattr__(value, key, part)
    return value


def _encode(value: Any, place: str, arrays: dict[str, np.ndarray]) -> dict:
    if value is None or type(value) in _PLAIN:
        return {"kind": "plain", "value": value}
    if _is_leaf(value):
        value = value.numpy() if hasattr(value, "numpy") else value
        array = np.asarray(value)
        if array.dtype.kind not in "biufcSUmM":
            raise TypeError(f"{place} has dtype {array.dtype}, which a checkpoint cannot keep.")
        # Keys like 'a/b' may give two places one name.
        name = place if place not in arrays else f"{place}#{len(arrays)}"
        arrays[name] = array
        return {"kind": "array" if isinstance(value, np.ndarray) else "scalar", "name": name}

    kind, keys, parts = _open(value, place)
    names = range(len(parts)) if keys is None else keys
    node = {
        "kind": kind,
        "parts": [_encode(part, f"{place}/{name}", arrays) for name, part in zip(names, parts)],
    }
    if keys is not None:
        node["keys"] = keys
    if kind in _OBJECTS:
        node["class"] = _class_name(type(value), keys)
    return node


def _open(value: Any, place: str) -> tuple[str, list | None, list]:
    """Returns the kind of a container, the keys of its parts (None: numbered), and its parts."""
    cls = type(value)
    if cls.__name__ in _MAPPINGS and cls is _MAPPINGS[cls.__name__]:
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{place} has the key {key!r}; a text or an int is needed.")
        return cls.__name__, list(value), list(value.values())
    if cls in (list, tuple):
        return cls.__name__, None, list(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return "namedtuple", list(cls._fields), list(value)
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    elif hasattr(cls, "__attrs_attrs__"):
        names = [attribute.name for attribute in cls.__attrs_attrs__]
    else:
        raise TypeError(
            f"{place} is a {cls.__module__}.{cls.__qualname__}, which a checkpoint cannot keep; "
            "make it an array, a number, a container of these or a dataclass."
        )
    return "object", names, [getattr(value, name) for name in names]


def _is_leaf(value: Any) -> bool:
    return (
        value is None
        or type(value) in _PLAIN
        or isinstance(value, (np.ndarray, np.generic))
        or hasattr(value, "numpy")
    )


def _collect_classes(value: Any, classes: dict[str, type]) -> None:
    if _is_leaf(value):
        return
    kind, keys, parts = _open(value, "state")
    if kind in _OBJECTS:
        classes[_class_name(type(value), keys)] = type(value)
    for part in parts:
        _collect_classes(part, classes)


def _class_name(cls: type, keys: Sequence[str]) -> str:
    """Returns a name with the fields, since classes made inside functions may share the rest."""
    return f"{cls.__module__}.{cls.__qualname__}({', '.join(keys)})"
