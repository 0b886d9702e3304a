"""Values as JSON knows them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any


def to_json(value: Any) -> Any:
    """Returns a value as JSON can hold it.

    NumPy numbers and arrays, tuples, sets, dataclasses and paths become numbers, lists, objects and
    texts; infinities and NaN, for which JSON has no numbers, the texts that `float` reads.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(to_json, value))
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
