"""The flag `--task`, and flags for the options of all tasks."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from fedpersonal.errors import UserError
from fedpersonal.options import Options, Value
from fedpersonal.suite.commands import option_flags
from fedpersonal.suite.commands.subcommands import DATA_COMMANDS
from fedpersonal.suite.tasks.find import all_tasks, find_task
from fedpersonal.suite.tasks.task import Task

flags.disclaim_key_flags()


class TaskFlags:
    """The flag `--task`, and one for each option of the library's tasks and of the chosen task.

    `launch.Program(main, task_flags.define)` defines them after it has read the arguments, since
    the chosen task may be a user's module.
    """

    def __init__(self, *, without: Sequence[str] = ()):
        """Defines `--task`.

        Args:
            without: Options that get no flags.
        """
        flags.DEFINE_string(
            "task",
            None,
            f"The task, whose options are flags, too: {', '.join(_names())}, or the module of your "
            "task, such as my_package.houses.",
        )
        option_flags.define_size(*all_tasks())
        self._without = without
        self._tasks: list[Task] = []
        self.shared: dict[str, set[type[Options]]] = {}

    def define(self, arguments: Sequence[str]) -> None:
        """Defines the flags.

        Args:
            arguments: The program and its arguments, with flag files expanded. A user's task must
                be `--task`, or the first argument.

        Raises:
            UserError: If there is no such task.
        """
        named = _named(arguments[1:])
        self._tasks = [*dict.fromkeys([*all_tasks().values(), *map(_find, named)])]
        classes = (task.options for task in self._tasks)
        self.shared = option_flags.define_shared(*classes, without=self._without)

    def parse(self, programs: Sequence[str] = ()) -> tuple[str, Task, dict[str, Value]]:
        """Returns the name of the task's command, the task, and the options set by flags.

        Args:
            programs: The arguments that are no flags; one of them may be the task.

        Raises:
            UserError: If there is no such task, or it lacks one of these options.
        """
        name = flags.FLAGS.task
        names = [*programs, *([name] if name else [])]
        if len(names) != 1:
            wrong = f"not {' '.join(names)}" if names else "such as --task=ratings"
            raise UserError(f"name one task, {wrong}: {', '.join(_names())}, or your module.")
        task = _find(names[0])
        if task not in self._tasks:
            raise UserError(f"name your task before all flags, or as --task={names[0]}.")
        option_flags.complete(names[0], task.name)
        program = f"--task={name}" if name else names[0]
        command = names[0] if names[0] in DATA_COMMANDS else task.name
        return command, task, option_flags.parse_shared(self.shared, task.options, program)


def _names() -> list[str]:
    return [*DATA_COMMANDS, *all_tasks()]


def _find(name: str) -> Task:
    return find_task(DATA_COMMANDS[name].task if name in DATA_COMMANDS else name)


def _named(arguments: Sequence[str]) -> list[str]:
    """Returns the task in arguments, if any; flags can be parsed only after it is found."""
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        flag, equals, value = argument.partition("=")
        if flag in ("--task", "-task"):
            return [value if equals else following]
    return [*arguments[:1]] if arguments and arguments[0][:1] != "-" else []
