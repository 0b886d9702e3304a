"""Finds tasks: those of the library by name, and others by the module that has it as `TASK`."""

from __future__ import annotations

import functools
import importlib
import pathlib
import pkgutil
import traceback
from collections.abc import Mapping, Sequence

import fedpersonal.suite.tasks
from fedpersonal.errors import UserError, did_you_mean, one_line, quoted
from fedpersonal.suite.tasks.task import Task

PACKAGE = fedpersonal.suite.tasks.__name__


@functools.cache
def all_tasks() -> Mapping[str, Task]:
    """Returns the tasks in the folders next to this file, by name."""
    path = fedpersonal.suite.tasks.__path__
    folders = [module.name for module in pkgutil.iter_modules(path) if module.ispkg]
    modules = (importlib.import_module(f"{PACKAGE}.{name}.task") for name in folders)
    tasks = [module.TASK for module in modules]
    return {task.name: task for task in tasks}


def find_task(name: str) -> Task:
    """Returns a task of the library by its name, or another by the module that has it as `TASK`.

    Args:
        name: A name such as `movielens` or `my_package.houses`.

    Raises:
        UserError: If there is no such task, or its module cannot be imported.
    """
    return all_tasks().get(name) or import_task(name, [*all_tasks()])


def import_task(name: str, others: Sequence[str]) -> Task:
    """Returns the task that a module has as `TASK`.

    Args:
        name: The module's name.
        others: Names to suggest in an error.

    Raises:
        UserError: If there is no such module, it cannot be imported, or it has no task.
    """
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if not name.strip(".") or (missing and f"{name}.".startswith(f"{missing}.")):
            raise UserError(
                f"there is no task {quoted(name)}, and no module of this name"
                f"{did_you_mean(name, others)} There are {', '.join(others)}; name a task of yours "
                "by its module, such as my_package.houses."
            ) from None
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name == "<module>"]
        places = [f" ({pathlib.Path(f.filename).name}, line {f.lineno})" for f in frames]
        raise UserError(
            f"the module {name} cannot be imported: {type(error).__name__}: {one_line(error)}"
            f"{(places or [''])[-1]}."
        ) from error
    task = getattr(module, "TASK", None)
    if not isinstance(task, Task):
        raise UserError(
            f"the module {name} has no TASK, an instance of a subclass of fedpersonal.suite.Task."
        )
    # A module may also register methods for a task of the library.
    task.module = name
    return task
