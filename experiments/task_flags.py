"""The task that a command names, and the flags of what it and others are asked."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments import option_flags
from experiments.command import OWN_DATA
from fedpersonal.errors import UserError
from fedpersonal.options import Options, Value
from fedpersonal.tasks.find import all_tasks, find_task
from fedpersonal.tasks.task import Task

flags.disclaim_key_flags()


class TaskFlags:
    """The flag `--task`, and one for each option of any task: the library's, and the one named.

    `launch.Program(main, task_flags.define)` defines them when it is known what is typed.
    """

    def __init__(self, *, without: Sequence[str] = ()):
        """Defines `--task`.

        Args:
            without: Options that are no flags.
        """
        flags.DEFINE_string(
            "task",
            None,
            f"Whose flags the others are: {', '.join(_names())}, or the module of an own task, "
            "such as my_package.houses.",
        )
        option_flags.define_size(*all_tasks())
        self._without = without
        self._tasks: list[Task] = []
        self.shared: dict[str, set[type[Options]]] = {}

    def define(self, arguments: Sequence[str]) -> None:
        """Defines the flags.

        Args:
            arguments: What is typed, the program first, with what flag files say in their place. An
                own task is `--task`, or the first of them.

        Raises:
            UserError: If there is no such task.
        """
        named = _named(arguments[1:])
        self._tasks = [*dict.fromkeys([*all_tasks().values(), *map(_find, named)])]
        classes = (task.options for task in self._tasks)
        self.shared = option_flags.define_shared(*classes, without=self._without)

    def given(self, programs: Sequence[str] = ()) -> tuple[str, Task, dict[str, Value]]:
        """Returns the command's name for its task, the task, and what flags give of its options.

        Args:
            programs: The arguments that are no flags; one of them may be the task.

        Raises:
            UserError: If there is no such task, or it has not all of these options.
        """
        name = flags.FLAGS.task
        names = [*programs, *([name] if name else [])]
        if len(names) != 1:
            wrong = f"not {' '.join(names)}" if names else "such as --task=ratings"
            raise UserError(f"give one task, {wrong}: {', '.join(_names())}, or an own module.")
        task = _find(names[0])
        if task not in self._tasks:
            raise UserError(f"give an own task before all else, or as --task={names[0]}.")
        option_flags.complete(names[0], task.name)
        who = f"--task={name}" if name else names[0]
        called = names[0] if names[0] in OWN_DATA else task.name
        return called, task, option_flags.given(self.shared, task.options, who)


def _names() -> list[str]:
    return [*OWN_DATA, *all_tasks()]


def _find(name: str) -> Task:
    return find_task(OWN_DATA[name].task if name in OWN_DATA else name)


def _named(arguments: Sequence[str]) -> list[str]:
    """Returns the task that arguments name, if any: flags cannot be parsed before it is known."""
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        flag, equals, value = argument.partition("=")
        if flag in ("--task", "-task"):
            return [value if equals else following]
    return [*arguments[:1]] if arguments and arguments[0][:1] != "-" else []
