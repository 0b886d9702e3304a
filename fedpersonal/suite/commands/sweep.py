"""Chooses options of a program on validation clients, from a grid or from random settings.

fedpersonal sweep movielens --grid='client_learning_rate=0.1,0.3;embedding_dim=16,32'
fedpersonal sweep ratings --ratings_file=ratings.csv --size=quick --grid=ridge_l2=3,10
fedpersonal sweep my_package.houses --grid='hidden_dim=log:16..64' --random=20

The program is the name of a task or the module of your task; the other flags are those of the
program. The same command resumes an interrupted one.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from absl import flags

from fedpersonal import runtime
from fedpersonal.errors import UserError
from fedpersonal.suite.commands import launch, option_flags
from fedpersonal.suite.commands.task_flags import TaskFlags

if TYPE_CHECKING:  # Flags are read before heavy modules are imported.
    from fedpersonal.suite.sweeps.sweep import Sweep
    from fedpersonal.suite.tasks.task import Task

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "grid",
    None,
    "Values of each option: name=value,value;name=value. With --random also ranges, low..high, or "
    "log:low..high for logarithms. Several values of one option are joined by +.",
    required=True,
)
flags.DEFINE_integer("seeds", 3, "Runs of a setting, which share a split.", lower_bound=1)
flags.DEFINE_integer(
    "random",
    None,
    "Number of settings to sample from the grid. [default: run all settings]",
    lower_bound=1,
    upper_bound=10_000,
)
flags.DEFINE_integer("draw_seed", 0, "Seed of the sampled settings.", lower_bound=0)
flags.DEFINE_integer(
    "jobs",
    None,
    "Parallel runs. [default: one per processor with 1.5 GB of memory for each]",
    lower_bound=1,
    upper_bound=1000,
)
flags.DEFINE_string(
    "metric",
    None,
    "Metric of validation clients that chooses. [default: the first that the program prints]",
)
flags.DEFINE_integer(
    "runners_up",
    1,
    "Number of next best settings that are also tested, for comparison.",
    lower_bound=0,
)
flags.DEFINE_string("output_dir", None, "Output directory. [default: results/sweep_<program>]")
flags.DEFINE_string("experiment_name", None, "A flag of runs, accepted for presets; not used.")
_TASK = TaskFlags(without=["seed"])


def _main(programs: list[str]) -> None:
    """Runs the missing runs, and prints the table and the command of the chosen setting."""
    program, task, shared = _TASK.parse(programs)
    runtime.check_runtime(str(shared.get("runtime", "local")))
    from fedpersonal.suite.sweeps import page
    from fedpersonal.suite.sweeps.grid import all_settings, parse_grid, sample_settings
    from fedpersonal.suite.sweeps.sweep import Sweep

    grid = parse_grid(FLAGS.grid, task.options)
    if "seed" in grid:
        raise UserError("--grid: use --seeds for the number of seeds of each setting.")
    number = FLAGS.random
    settings = sample_settings(grid, number, FLAGS.draw_seed) if number else all_settings(grid)
    output_dir = pathlib.Path(FLAGS.output_dir or f"results/sweep_{program}").resolve()
    sweep = Sweep(
        task,
        {name: value for name, value in shared.items() if name not in grid},
        settings,
        range(FLAGS.seeds),
        output_dir,
        FLAGS.metric,
        FLAGS.jobs,
        FLAGS.runners_up,
    )
    sweep.check()
    for line in _check_options(task, sweep, grid):
        print("warning:", line, file=sys.stderr, flush=True)
    # Mistakes in the data are reported before the first run.
    print(task.read(sweep.trials[0].run.options).summary(), flush=True)
    ranked = sweep.run()
    print(page.write_page(sweep, ranked, program))
    written = [output_dir / f"sweep.{kind}" for kind in ("html", "md", "csv")]
    print(f"written: {', '.join(map(str, [*written, *page.compare(sweep, ranked)]))}")


def _check_options(task: Task, sweep: Sweep, grid: Collection[str]) -> list[str]:
    """Returns warnings on options.

    Raises:
        UserError: If an option has no effect in all settings, or as by `check_rounds`.
    """
    from fedpersonal.suite.tasks.idle import check_declared, check_rounds, idle_options

    settings = [task.options(**one.run.values) for one in sweep.trials[: len(sweep.settings)]]
    idle = set.intersection(*(idle_options(task, one, grid) for one in settings))
    for name in grid:
        if name in idle:
            raise settings[0].idle_error(name, where="in any setting of the grid")
    warnings: dict[str, None] = {}
    refusals = []
    for options in settings:
        check_rounds(task, options)
        try:
            warnings.update(
                dict.fromkeys(check_declared(task, options, {*grid} | option_flags.typed()))
            )
        except UserError as error:
            refusals.append(error)
    if len(refusals) == len(settings):
        raise refusals[0]
    return [*warnings]


main = launch.Program(_main, _TASK.define)

if __name__ == "__main__":
    launch.run(main)
