"""Which method should I take? All methods on all tasks, tuned alike, in one table.

fedpersonal leaderboard --size=quick
fedpersonal leaderboard --tasks=ratings,texts --methods=fed_recon,ditto --tune=8

The quick size needs no data and no network. The same command goes on where it was interrupted.
"""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from absl import flags

from experiments import launch
from experiments.board.tasks import DATA, ENTRIES, MOVIELENS, QUICK, own_entry
from fedpersonal import runtime
from fedpersonal.errors import UserError, did_you_mean, listed

if TYPE_CHECKING:  # Flags are read before TensorFlow is imported.
    from experiments.board.table import BoardTable

FLAGS = flags.FLAGS
# What figures depend on, and what else runs do.
_OF_FIGURES = ("size", "tasks", "methods", "seeds", "tune", "tuning_seeds", "runtime")
_OF_RUNS = (*_OF_FIGURES, "settings", "jobs", "ray_address", DATA, MOVIELENS)

flags.DEFINE_enum("size", QUICK, ["quick", "full"], "Small data and few rounds, or the real ones.")
flags.DEFINE_list(
    "tasks",
    [],
    f"Some of {', '.join(e.name for e in ENTRIES)}, or modules of own tasks, such as "
    "my_package.houses, at their defaults. [default: all but own ones]",
)
flags.DEFINE_list(
    "methods",
    [],
    "Methods by name; FedAvg with fine-tuning, which others are compared with, is always there. "
    "[default: all that fit any model, and what a task has of its own]",
)
flags.DEFINE_integer("seeds", 1, "Runs of a cell, which share a split.", 1, 100)
flags.DEFINE_integer(
    "tune",
    None,
    "Try so many settings for each method and task first, on validation clients, by other seeds. "
    "[default: use the settings that were found before, else the first one]",
    1,
    10_000,
)
flags.DEFINE_integer("tuning_seeds", 1, "Seeds that try each setting.", 1, 100)
flags.DEFINE_string(
    "settings", None, "A file of settings found. [default: those that come with it]"
)
flags.DEFINE_integer(
    "jobs",
    None,
    "Runs at once. [default: one a processor, where there are 1.5 GB of memory for each; 6 GB in "
    "the full size]",
    1,
    1000,
)
flags.DEFINE_enum("runtime", "local", runtime.RUNTIMES, "Where runs compute, as of any run.")
flags.DEFINE_string("ray_address", None, "ray: the cluster's host:port.")
flags.DEFINE_string(DATA, None, "full: the folder with texts.")
flags.DEFINE_string(MOVIELENS, None, "full: the folder of MovieLens-1M.")
flags.DEFINE_list(
    "joined",
    [],
    "Run nothing, and put tables of several tasks together, given by their leaderboard.json. Of a "
    "task that several have, the last one counts.",
)
flags.DEFINE_string(
    "output_dir", None, "Where all goes. [default: results/leaderboard_<size>, or _joined]"
)


def main() -> None:
    """Runs what is missing, and prints what to take, and where the table is."""
    if FLAGS.joined:
        _join([*map(pathlib.Path, FLAGS.joined)])
        return
    known = {entry.name: entry for entry in ENTRIES}
    asked = dict.fromkeys(FLAGS.tasks or known)
    entries = [known[name] if name in known else own_entry(name) for name in asked]
    methods = {name for entry in entries for name in entry.library.methods}
    names = _chosen("methods", FLAGS.methods, sorted(methods))
    runtime.check_runtime(FLAGS.runtime)
    if FLAGS.settings and not pathlib.Path(FLAGS.settings).is_file():
        raise UserError(f"--settings={FLAGS.settings}: there is no such file.")
    from experiments.board.board import Board
    from experiments.board.settings import KEPT
    from experiments.board.table import tabulate_board

    output_dir = pathlib.Path(FLAGS.output_dir or f"results/leaderboard_{FLAGS.size}").resolve()
    given = {"runtime": FLAGS.runtime, "ray_address": FLAGS.ray_address}
    board = Board(
        entries,
        names,
        FLAGS.size,
        range(FLAGS.seeds),
        output_dir,
        pathlib.Path(FLAGS.settings) if FLAGS.settings else KEPT,
        {name: FLAGS[name].value for name in (DATA, MOVIELENS) if FLAGS[name].value},
        {name: value for name, value in given.items() if FLAGS[name].present},
        FLAGS.jobs,
        FLAGS.tune,
        FLAGS.tuning_seeds,
    )
    board.check()
    _write(tabulate_board(board, board.run()), output_dir, _command())


def _join(paths: Sequence[pathlib.Path]) -> None:
    """Writes the table that others make together, and the settings found."""
    for name in _OF_RUNS:
        if FLAGS[name].present:
            raise UserError(f"--joined runs nothing: leave --{name} out.")
    from experiments.board.board import SETTINGS
    from experiments.board.joined import join_tables, settings_found
    from experiments.board.settings import write_found

    table = join_tables(paths)
    output_dir = pathlib.Path(FLAGS.output_dir or "results/leaderboard_joined").resolve()
    names = ",".join(f"{path.resolve().parent.name}/{path.name}" for path in paths)
    command = shlex.join(["fedpersonal", "leaderboard", f"--joined={names}"])
    _write(table, output_dir, command)
    write_found(output_dir / SETTINGS, table.size, settings_found(table))


def _write(table: BoardTable, output_dir: pathlib.Path, command: str) -> None:
    """Writes the table, and prints what to take, and where it is."""
    from experiments.board import page
    from experiments.board.advice import advise

    advice = advise(table)
    written = page.write_pages(table, advice, output_dir, command)
    print("\n".join(advice))
    print(f"written: {', '.join(map(str, written))}")


def _command() -> str:
    """Returns the command that makes the table again, without this machine's folders."""
    folders = {DATA: "TEXTS", MOVIELENS: "ML-1M"}
    names = (*_OF_FIGURES, *folders)
    parts = ["fedpersonal", "leaderboard"]
    for name in names:
        if FLAGS[name].present:
            value = FLAGS[name].value
            text = ",".join(value) if isinstance(value, list) else value
            parts.append(f"--{name}={folders.get(name, text)}")
    return shlex.join(parts)


def _chosen(flag: str, names: list[str], known: Collection[str]) -> list[str]:
    """Returns the names that a flag lists, each once.

    Raises:
        UserError: If one is not known.
    """
    for name in names:
        if name not in known:
            nearest = did_you_mean(name, known)
            raise UserError(f"--{flag}: {name!r} is none of {listed([*known])}{nearest}")
    return [*dict.fromkeys(names)]


if __name__ == "__main__":
    launch.run(main)
