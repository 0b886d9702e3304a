"""The task that a command names, and the flags of what it and others are asked."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments import option_flags
from fedpersonal.errors import UserError
from fedpersonal.options import Options, Value
from fedpersonal.tasks.task import Task, all_tasks, find_task

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
            f"Whose flags the others are: {', '.join(all_tasks())}, or the module of an own task, "
            "such as my_package.houses.",
        )
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
        self._tasks = [*dict.fromkeys([*all_tasks().values(), *map(find_task, named)])]
        classes = (task.options for task in self._tasks)
        self.shared = option_flags.define_shared(*classes, without=self._without)

    def given(self, programs: Sequence[str] = ()) -> tuple[Task, dict[str, Value]]:
        """Returns the task that is named, and those of its options that flags give.

        Args:
            programs: The arguments that are no flags; one of them may be the task.

        Raises:
            UserError: If there is no such task, or it has not all of these options.
        """
        name = flags.FLAGS.task
        names = [*programs, *([name] if name else [])]
        if len(names) != 1:
            wrong = f"not {' '.join(names)}" if names else "such as --task=movielens"
            raise UserError(f"give one task, {wrong}: {', '.join(all_tasks())}, or an own module.")
        task = find_task(names[0])
        if task not in self._tasks:
            raise UserError(f"give an own task before all else, or as --task={names[0]}.")
        who = f"--task={name}" if name else names[0]
        return task, option_flags.given(self.shared, task.options, who)


def _named(arguments: Sequence[str]) -> list[str]:
    """Returns the task that arguments name, if any: flags cannot be parsed before it is known."""
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        flag, equals, value = argument.partition("=")
        if flag in ("--task", "-task"):
            return [value if equals else following]
    return [*arguments[:1]] if arguments and arguments[0][:1] != "-" else []
