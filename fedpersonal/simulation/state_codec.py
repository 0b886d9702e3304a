"""A nested state as named arrays and a description, and back, to the same bits.

Arrays are named by their place in the state ('state/global_model_weights/trainable/0'); the rest is
a description that JSON can hold. Unlike a pickle it runs no foreign code when it is read, nor must
its classes be importable, which those of TFF's aggregators are not: they are taken from another
state of the same process.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np

from fedpersonal.errors import one_line

_PLAIN = (type(None), bool, int, float, str)
_DICTS = {"dict": dict, "OrderedDict": collections.OrderedDict}


class ForeignClass(TypeError):
    """A saved state is that of another process."""


def encode(state: Any) -> tuple[dict, dict[str, np.ndarray]]:
    """Takes a state apart.

    Args:
        state: A nesting of dicts and OrderedDicts with text or int keys, lists, tuples, named
            tuples, dataclasses and attrs objects around NumPy arrays and scalars, tensors, Python
            numbers, texts, bytes and None. Tensors come back as NumPy arrays.

    Returns:
        The description and the arrays by name.

    Raises:
        TypeError: The state holds something else; the message says where.
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(state, "state", arrays, {}), arrays


def decode(description: dict, arrays: dict[str, np.ndarray], *, like: Any) -> Any:
    """Puts a state together again.

    Args:
        description: What `encode` returned first.
        arrays: What `encode` returned second.
        like: A state, such as the first of the same process, that holds an object of each class.

    Raises:
        ForeignClass: The state holds an object of a class that `like` has not.
        ValueError: The description is none of these arrays'.
    """
    classes: dict[str, type] = {}
    _encode(like, "state", {}, classes)
    try:
        return _decode(description, arrays, classes)
    except ForeignClass:
        raise
    except Exception as error:  # Whatever is no description ends in another way.
        raise ValueError(f"it describes no state ({one_line(repr(error))})") from error


def _decode(node: dict, arrays: dict[str, np.ndarray], classes: dict[str, type]) -> Any:
    kind = node["kind"]
    if kind == "plain":
        return _checked(node["value"], _PLAIN)
    if kind == "bytes":
        return arrays[node["name"]].tobytes()
    if kind in ("array", "scalar"):
        return arrays[node["name"]] if kind == "array" else arrays[node["name"]][()]
    parts = [_decode(child, arrays, classes) for child in node["parts"]]
    keys = [_checked(key, (str, int)) for key in node["keys"]]
    if len(keys) != len(parts):
        raise ValueError(f"{len(keys)} keys of {len(parts)} parts")
    if kind in _DICTS:
        return _DICTS[kind](zip(keys, parts))
    if kind in ("list", "tuple"):
        return parts if kind == "list" else tuple(parts)
    name = node["class"]
    if name not in classes:
        raise ForeignClass(
            f"The saved state holds a {one_line(name)}, which the process's first state has not."
        )
    if not name.endswith(f"({', '.join(keys)})"):
        raise ValueError(f"{keys} are not its fields")
    if kind == "namedtuple":
        return tuple.__new__(classes[name], parts)
    value: Any = object.__new__(classes[name])
    for key, part in zip(keys, parts):
        object.__setattr__(value, key, part)
    return value


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"a {type(value).__name__} in place of one of {kinds}")
    return value


def _encode(
    value: Any, place: str, arrays: dict[str, np.ndarray], classes: dict[str, type]
) -> dict:
    """Describes a value, and adds its arrays by name and its classes by what it calls them."""
    cls = type(value)
    if cls in _PLAIN:
        return {"kind": "plain", "value": value}
    kind = None
    if cls is bytes:
        value, kind = np.frombuffer(value, np.uint8), "bytes"
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "numpy"):
        value = value.numpy() if hasattr(value, "numpy") else value
        array = np.asarray(value)
        if array.dtype.kind not in "biufcSUmM":
            raise TypeError(f"{place} has dtype {array.dtype}, which a checkpoint cannot keep.")
        # Keys like 'a/b' may give two places one name.
        name = place if place not in arrays else f"{place}#{len(arrays)}"
        arrays[name] = array
        kind = kind or ("array" if isinstance(value, np.ndarray) else "scalar")
        return {"kind": kind, "name": name}

    kind, keys, parts = _open(value, place)
    children = [_encode(p, f"{place}/{key}", arrays, classes) for key, p in zip(keys, parts)]
    node = {"kind": kind, "keys": keys, "parts": children}
    if kind not in ("namedtuple", "object"):
        return node
    # Classes made inside functions may share all but their fields.
    name = f"{cls.__module__}.{cls.__qualname__}({', '.join(keys)})"
    classes[name] = cls
    return {**node, "class": name}


def _open(value: Any, place: str) -> tuple[str, list, list]:
    """Returns the kind of a container, the keys of its parts, and its parts."""
    cls = type(value)
    if cls in _DICTS.values():
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{place} has the key {key!r}; a text or an int is needed.")
        return cls.__name__, list(value), list(value.values())
    if cls in (list, tuple):
        return cls.__name__, list(range(len(value))), list(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return "namedtuple", list(cls._fields), list(value)
    is_dataclass = dataclasses.is_dataclass(cls)
    fields = dataclasses.fields(cls) if is_dataclass else getattr(cls, "__attrs_attrs__", None)
    if fields is None:
        raise TypeError(
            f"{place} is a {cls.__module__}.{cls.__qualname__}, which a checkpoint cannot keep; "
            "make it an array, a number, a container of these or a dataclass."
        )
    names = [field.name for field in fields]
    return "object", names, [getattr(value, name) for name in names]
