"""The suite above the library: tasks, their models and readers, papers, sweeps, commands."""

from __future__ import annotations

import importlib
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.find import find_task
    from fedpersonal.suite.tasks.task import EvaluationSet, Task
    from fedpersonal.suite.testing import check_method

__all__ = ["EvaluationSet", "PRESETS", "ROOT", "Task", "check_method", "find_task"]

# The checkout, or the folder of installed packages.
ROOT = pathlib.Path(__file__).resolve().parents[2]
_INSTALLED = pathlib.Path(__file__).parent / "presets"
# Files of flags. A wheel has them in the package, a checkout next to the binaries.
PRESETS = _INSTALLED if _INSTALLED.is_dir() else ROOT / "experiments" / "presets"
_HOMES = {
    "EvaluationSet": "tasks.task",
    "Task": "tasks.task",
    "check_method": "testing",
    "find_task": "tasks.find",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
