"""Start of every program: flags first, heavy imports afterwards.

The program of a task has `main = launch.task_main(TASK)`, and ends with
`if __name__ == "__main__": launch.run(main)`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import inspect
import os
import re
import select
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags, logging

from fedpersonal import runtime
from fedpersonal.errors import UserError, printable, with_count
from fedpersonal.suite.commands import option_flags, program_help, startup

if TYPE_CHECKING:
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.suite.tasks.task import Task

flags.disclaim_key_flags()

# Errors of the system on a file, which are no mistakes of the program.
_REFUSALS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
}
_MISTAKE = 2
_INTERRUPTED = 130
_UNREAD = 141


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that defines its flags when it runs, so that importing its module defines none.

    Attributes:
        main: The function of the program, as for `run`.
        define: Defines its flags; receives the arguments with flag files expanded.
        subcommand: The subcommand that runs a task; empty for other programs.
        usage: The text about a task in its help; other programs have a docstring.
    """

    main: Callable[..., None]
    define: Callable[[Sequence[str]], None]
    subcommand: str = ""
    usage: str = ""


def run(main: Callable[..., None] | Program) -> None:
    """Parses the flags, runs `main` and exits.

    Importing TensorFlow Federated takes seconds, so `main` imports it, not its module: help and
    errors in flags appear at once. Under Bazel, relative paths refer to the folder in which
    `bazel run` was called.

    Exit status: 0; 2 after a mistake of the user; 130 after Ctrl-C; 143 after SIGTERM; 141 if the
    output has lost its reader, as with `| head`.

    Args:
        main: The program. It reads its flags from `absl.flags`. If it has a parameter, it receives
            the list of the arguments that are no flags, which other programs refuse.
    """
    _enter_calling_folder()
    program = main if isinstance(main, Program) else Program(main, lambda arguments: None)
    main = program.main
    takes_arguments = bool(inspect.signature(main).parameters)
    arguments = _parse_flags(program, sys.argv, takes_arguments=takes_arguments)
    logging.use_absl_handler()
    startup.start()
    status = 0
    try:
        _check_temporary_folder()
        main(arguments) if takes_arguments else main()
    except UserError as error:
        status = _complain(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            startup.leave(_UNREAD)
        if error.errno not in _REFUSALS:
            raise
        status = _complain(f"{error.filename or 'a file'}: {error.strerror}.")
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    startup.leave(status)


def task_main(task: Task, subcommand: str = "") -> Program:
    """Returns the program that runs a task.

    Args:
        task: The task.
        subcommand: The subcommand that runs it; empty for the task's name.
    """
    subcommand = subcommand or task.name

    def define(arguments: Sequence[str]) -> None:
        del arguments  # All flags belong to this task.
        folder = "The run folder. [default: results/<experiment_name>]"
        flags.DEFINE_string("output_dir", None, folder)
        name = f"The run's name. [default: {subcommand}, and the size]"
        flags.DEFINE_string("experiment_name", None, name)
        option_flags.define_size(task.name)
        option_flags.define(task.options)

    def main() -> None:
        # If the program is also its task's module, that must not be imported a second time.
        sys.modules.setdefault(task.module, sys.modules[type(task).__module__])
        with _reporting_early_end():
            experiment, folder = prepare()
        from fedpersonal.suite.tasks.running import run_experiment

        with _reporting_early_end(folder):
            summary = run_experiment(experiment, folder)
        lines = [*task.report(summary), *_validation_lines(task, summary), *_privacy_lines(summary)]
        for line in lines:
            print(line)
        rounds, milliseconds = summary["rounds"], 1000 * summary["median_round_seconds"]
        print(
            f"{with_count(rounds, 'rounds')} in {summary['train_wall_seconds']:.1f} s, median "
            f"round {milliseconds:.0f} ms ({runtime.describe_runtime()}); results in {folder.path}"
        )

    def prepare() -> tuple[Experiment, RunFolder]:
        from fedpersonal.runs.folder import check_writable
        from fedpersonal.suite.tasks.idle import check_declared

        name = option_flags.complete(subcommand, task.name)
        options, typed = option_flags.parse(task.options), option_flags.typed()
        runtime.check_runtime(str(options.values()["runtime"]))
        path = flags.FLAGS.output_dir or f"results/{flags.FLAGS.experiment_name or name}"
        idle = check_declared(task, options, typed)
        check_writable(path)
        source = task.read(options)
        print(source.summary(), flush=True)
        options, replaced = task.replace_presets(source, options, option_flags.set_by_presets())
        for line in [*idle, *replaced, *task.warnings(source, options)]:
            print("warning:", line, file=sys.stderr, flush=True)
        # Mistakes in options and data are reported before TensorFlow is imported.
        with runtime.quick_imports(), startup.fewer_imports():
            from fedpersonal.suite.tasks.running import open_experiment
        gc.freeze()  # Imported modules stay, so garbage collections need not visit them.

        declared = task.options.declarations().items()
        sizes = {n: size for n, size in source.describe().items() if isinstance(size, int)}
        return open_experiment(
            task,
            source,
            options,
            path,
            config={"task": task.module, **options.values()},
            may_differ=[name for name, declaration in declared if declaration.rule.may_differ],
            data={**sizes, "values": source.fingerprint()},
            typed=typed,
        )

    return Program(main, define, subcommand, task.usage)


@contextlib.contextmanager
def _reporting_early_end(folder: RunFolder | None = None) -> Iterator[None]:
    """Prints a line if Ctrl-C or a signal ends the run before the first round of its folder.

    Reading and pretraining save their progress, and print that themselves.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if folder is None or not folder.metrics_csv.exists():
            print("Stopped before the first round.", file=sys.stderr, flush=True)
        raise


def _validation_lines(task: Task, summary: Mapping[str, Any]) -> list[str]:
    """Returns the line on the best round on validation clients, or on passes without rounds."""
    # Modules that read tables are imported only after the run.
    from fedpersonal.evaluation.client_metrics import unit_of
    from fedpersonal.runs.validation import BestRound, passes_sentence

    if "standalone" in summary:
        return [passes_sentence(summary["standalone"])]
    entry = summary.get("validation")
    if entry is None:
        return []

    fields = {field.name for field in dataclasses.fields(BestRound)}
    best = BestRound(**{name: value for name, value in entry.items() if name in fields})
    unit = unit_of(task.meanings_of(summary).get(best.metric))
    line = best.sentence(unit, entry["tested_round"])
    if entry["tested_round"] == best.last_round and not best.is_last:
        line += (
            f": --best={best.metric} tests the best round's model, and --early_stopping=5 ends "
            "after 5 validations that are no better"
        )
    return [line]


def _privacy_lines(summary: Mapping[str, Any]) -> list[str]:
    """Returns the line on the differential privacy of the global variables, if a run has it."""
    privacy = summary.get("privacy")
    if privacy is None:
        return []
    if privacy["epsilon"] is None:
        return ["no differential privacy: updates are clipped, but there is no noise"]
    secret, public = (f"{privacy[f'epsilon_{kind}_draw']:.3f}" for kind in ("secret", "public"))
    adversary = f"if the sampled clients stay secret, {public} if they are known"
    if privacy["draw"] == "public":
        adversary = (
            "against an adversary who knows the sampled clients, but not the noise; "
            f"{secret} if both stay secret (--dp_noise=secret)"
        )
    return [
        f"epsilon {privacy['epsilon']:.3f} at delta {privacy['delta']:.2g} "
        f"({privacy['neighbours']}) {adversary}; noise multiplier "
        f"{privacy['noise_multiplier']:.4g} ({privacy['noise']}), "
        f"{privacy['client_sampling']} sampling; metrics and evaluations are not covered"
    ]


def _check_temporary_folder() -> None:
    """Checks for a temporary folder, without which TensorFlow's import fails without a message.

    Raises:
        UserError: If there is none.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError(f"{error.strerror}; is the disk full (df, ulimit -f)?") from None


def _enter_calling_folder() -> None:
    """Enters the user's folder, and makes its modules importable, as `python -m` does."""
    folder = os.environ.get("BUILD_WORKING_DIRECTORY")
    if folder:
        os.chdir(folder)
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())


def _parse_flags(program: Program, argv: list[str], *, takes_arguments: bool) -> list[str]:
    """Returns the arguments that are no flags."""
    program_help.define_flags(option_flags.defined, program.subcommand, program.usage)
    flags.FLAGS.set_gnu_getopt()  # Flags may come last.
    expanded: list[str] = []
    try:
        expanded = option_flags.expand_flagfiles(argv)
        program.define(expanded)
        expanded = option_flags.rename_former(expanded)
        option_flags.set_by.update(option_flags.files_of(expanded[1:]))
        option_flags.preset.update(option_flags.presets_of(expanded[1:]))
        rest = flags.FLAGS(expanded)
    except UserError as error:
        sys.exit(_complain(error))
    except flags.Error as error:
        sys.exit(_complain(option_flags.mistake(error)))
    except BrokenPipeError:  # The reader of the help has ended.
        os._exit(_UNREAD)
    if len(rest) > 1 and not takes_arguments:
        sys.exit(_complain(f"unexpected argument {rest[1]!r}; flags are written --name=value."))
    return rest[1:]


def _complain(error: object) -> int:
    """Prints a mistake of the user, with the sources of the flags it names; returns the status."""
    line, set_by = " ".join(str(error).replace("ERROR::", "").split()), option_flags.set_by
    named = [name for name in dict.fromkeys(re.findall(r"--(\w+)", line)) if name in set_by]
    if named:
        sources = ", ".join(f"{set_by[name]} sets --{name}" for name in named)
        line = f"{line.removesuffix('.')} ({sources})."
    with contextlib.suppress(OSError):  # The disk with the log may be full, too.
        print("error:", printable(line), file=sys.stderr)
    return _MISTAKE


def _is_unread() -> bool:
    """Returns whether the pipe of stdout or stderr has lost its reader."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
