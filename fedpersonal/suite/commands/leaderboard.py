"""Compares all methods on all tasks, with the same tuning effort, in one table.

fedpersonal leaderboard --size=quick
fedpersonal leaderboard --tasks=ratings,texts --methods=fed_recon,ditto --tune=8

The quick size needs no data and no network. The same command resumes an interrupted one.
"""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from absl import flags

from fedpersonal import runtime
from fedpersonal.errors import UserError, did_you_mean, join_words
from fedpersonal.suite.commands import launch
from fedpersonal.suite.leaderboard.tasks import DATA, ENTRIES, MOVIELENS, QUICK, user_entry

if TYPE_CHECKING:  # Flags are read before TensorFlow is imported.
    from fedpersonal.suite.leaderboard.table import BoardTable

FLAGS = flags.FLAGS
# Flags on which figures depend, and all flags of runs.
_FIGURE_FLAGS = ("size", "tasks", "methods", "seeds", "tune", "tuning_seeds", "runtime")
_RUN_FLAGS = (*_FIGURE_FLAGS, "settings", "jobs", "ray_address", DATA, MOVIELENS)

flags.DEFINE_enum(
    "size", QUICK, ["quick", "full"], "quick: small data and few rounds. full: the real ones."
)
flags.DEFINE_list(
    "tasks",
    [],
    f"Tasks: {', '.join(e.name for e in ENTRIES)}, or modules of your tasks, such as "
    "my_package.houses, at their defaults. [default: all but yours]",
)
flags.DEFINE_list(
    "methods",
    [],
    "Methods by name; FedAvg with fine-tuning, the reference, is always included. "
    "[default: all that fit any model, and the methods of single tasks]",
)
flags.DEFINE_integer("seeds", 1, "Runs of a cell, which share a split.", 1, 100)
flags.DEFINE_integer(
    "tune",
    None,
    "Number of settings to try for each method and task first, on validation clients, by other "
    "seeds. [default: use the settings of --settings, else the first one]",
    1,
    10_000,
)
flags.DEFINE_integer("tuning_seeds", 1, "Seeds that try each setting.", 1, 100)
flags.DEFINE_string(
    "settings",
    None,
    "A file of tuned settings. [default: the file in fedpersonal/suite/leaderboard]",
)
flags.DEFINE_integer(
    "jobs",
    None,
    "Parallel runs. [default: one per processor with 1.5 GB of memory for each; 6 GB in the full "
    "size]",
    1,
    1000,
)
flags.DEFINE_enum("runtime", "local", runtime.RUNTIMES, "The runtime of runs.")
flags.DEFINE_string("ray_address", None, "ray: the cluster's host:port.")
flags.DEFINE_string(DATA, None, "full: the folder with texts.")
flags.DEFINE_string(MOVIELENS, None, "full: the folder of MovieLens-1M.")
flags.DEFINE_list(
    "joined",
    [],
    "Run nothing, and join tables of several tasks: files leaderboard.json. If several tables have "
    "a task, the last one counts.",
)
flags.DEFINE_string(
    "output_dir", None, "Output directory. [default: results/leaderboard_<size>, or _joined]"
)


def main() -> None:
    """Runs the missing runs, and prints advice and the paths of the table."""
    if FLAGS.joined:
        _join([*map(pathlib.Path, FLAGS.joined)])
        return
    library = {entry.name: entry for entry in ENTRIES}
    tasks = dict.fromkeys(FLAGS.tasks or library)
    entries = [library[name] if name in library else user_entry(name) for name in tasks]
    methods = {name for entry in entries for name in entry.library.methods}
    names = _chosen("methods", FLAGS.methods, sorted(methods))
    runtime.check_runtime(FLAGS.runtime)
    if FLAGS.settings and not pathlib.Path(FLAGS.settings).is_file():
        raise UserError(f"--settings={FLAGS.settings}: there is no such file.")
    from fedpersonal.suite.leaderboard.board import Board
    from fedpersonal.suite.leaderboard.settings import COMMITTED
    from fedpersonal.suite.leaderboard.table import tabulate_board

    output_dir = pathlib.Path(FLAGS.output_dir or f"results/leaderboard_{FLAGS.size}").resolve()
    runtime_options = {"runtime": FLAGS.runtime, "ray_address": FLAGS.ray_address}
    board = Board(
        entries,
        names,
        FLAGS.size,
        range(FLAGS.seeds),
        output_dir,
        pathlib.Path(FLAGS.settings) if FLAGS.settings else COMMITTED,
        {name: FLAGS[name].value for name in (DATA, MOVIELENS) if FLAGS[name].value},
        {name: value for name, value in runtime_options.items() if FLAGS[name].present},
        FLAGS.jobs,
        FLAGS.tune,
        FLAGS.tuning_seeds,
    )
    board.check()
    _write(tabulate_board(board, board.run()), output_dir, _command())


def _join(paths: Sequence[pathlib.Path]) -> None:
    """Writes the table joined from other tables, and their tuned settings."""
    for name in _RUN_FLAGS:
        if FLAGS[name].present:
            raise UserError(f"--joined runs nothing: leave --{name} out.")
    from fedpersonal.suite.leaderboard.board import SETTINGS
    from fedpersonal.suite.leaderboard.joined import join_tables, tuned_settings
    from fedpersonal.suite.leaderboard.settings import write_settings

    table = join_tables(paths)
    output_dir = pathlib.Path(FLAGS.output_dir or "results/leaderboard_joined").resolve()
    names = ",".join(f"{path.resolve().parent.name}/{path.name}" for path in paths)
    command = shlex.join(["fedpersonal", "leaderboard", f"--joined={names}"])
    _write(table, output_dir, command)
    write_settings(output_dir / SETTINGS, table.size, tuned_settings(table))


def _write(table: BoardTable, output_dir: pathlib.Path, command: str) -> None:
    """Writes the table, and prints advice and the paths of the table."""
    from fedpersonal.suite.leaderboard import page
    from fedpersonal.suite.leaderboard.advice import advise

    advice = advise(table)
    written = page.write_pages(table, advice, output_dir, command)
    print("\n".join(advice))
    print(f"written: {', '.join(map(str, written))}")


def _command() -> str:
    """Returns the command that makes the table again, without this machine's folders."""
    folders = {DATA: "TEXTS", MOVIELENS: "ML-1M"}
    names = (*_FIGURE_FLAGS, *folders)
    parts = ["fedpersonal", "leaderboard"]
    for name in names:
        if FLAGS[name].present:
            value = FLAGS[name].value
            text = ",".join(value) if isinstance(value, list) else value
            parts.append(f"--{name}={folders.get(name, text)}")
    return shlex.join(parts)


def _chosen(flag: str, names: list[str], choices: Collection[str]) -> list[str]:
    """Returns the names that a flag lists, without repetitions.

    Raises:
        UserError: If one is none of the choices.
    """
    for name in names:
        if name not in choices:
            nearest = did_you_mean(name, choices)
            raise UserError(f"--{flag}: {name!r} is none of {join_words([*choices])}{nearest}")
    return [*dict.fromkeys(names)]


if __name__ == "__main__":
    launch.run(main)
