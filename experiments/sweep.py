"""Chooses options of a program: runs of a grid, or drawn at random, judged on validation clients.

fedpersonal sweep movielens --grid='client_learning_rate=0.1,0.3;embedding_dim=16,32'
fedpersonal sweep ratings --ratings_file=ratings.csv --size=quick --grid=ridge_l2=3,10
fedpersonal sweep my_package.houses --grid='hidden_dim=log:16..64' --random=20

The other flags are those of the program, a task's name or the module of an own one. The same
command goes on where it was interrupted.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from absl import flags

from experiments import launch, option_flags
from experiments.task_flags import TaskFlags
from fedpersonal import runtime
from fedpersonal.errors import UserError

if TYPE_CHECKING:  # Flags are read before heavy modules are imported.
    from experiments.sweeping.sweep import Sweep
    from fedpersonal.tasks.task import Task

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
    "random", None, "Draw so many settings, not all of the grid.", lower_bound=1, upper_bound=10_000
)
flags.DEFINE_integer("draw_seed", 0, "Fixes these draws.", lower_bound=0)
flags.DEFINE_integer(
    "jobs",
    None,
    "Runs at once. [default: one a processor, where there are 1.5 GB of memory for each]",
    lower_bound=1,
    upper_bound=1000,
)
flags.DEFINE_string(
    "metric", None, "Of validation clients, chooses. [default: the first that the program prints]"
)
flags.DEFINE_integer(
    "runners_up",
    1,
    "Settings next to the chosen one that are tested, for comparison.",
    lower_bound=0,
)
flags.DEFINE_string("output_dir", None, "Where all goes. [default: results/sweep_<program>]")
flags.DEFINE_string("experiment_name", None, "Of a run's flags; not used.")
_TASK = TaskFlags(without=["seed"])


def _main(programs: list[str]) -> None:
    """Runs what is missing, and prints the table and the chosen command."""
    program, task, shared = _TASK.given(programs)
    runtime.check_runtime(str(shared.get("runtime", "local")))
    from experiments.sweeping import page
    from experiments.sweeping.grid import all_settings, draw_settings, parse_grid
    from experiments.sweeping.sweep import Sweep

    grid = parse_grid(FLAGS.grid, task.options)
    if "seed" in grid:
        raise UserError("--grid: --seeds says how many seeds each setting has.")
    number = FLAGS.random
    settings = draw_settings(grid, number, FLAGS.draw_seed) if number else all_settings(grid)
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
    for line in _check_read(task, sweep, grid):
        print("warning:", line, file=sys.stderr, flush=True)
    # Mistakes in the data show before the first run.
    print(task.read(sweep.trials[0].run.options).summary(), flush=True)
    ranked = sweep.run()
    print(page.write_page(sweep, ranked, program))
    written = [output_dir / f"sweep.{kind}" for kind in ("html", "md", "csv")]
    print(f"written: {', '.join(map(str, [*written, *page.compare(sweep, ranked)]))}")


def _check_read(task: Task, sweep: Sweep, grid: Collection[str]) -> list[str]:
    """Returns warnings of options.

    Raises:
        UserError: If no setting's method reads an option, or as of `check_rounds`.
    """
    from fedpersonal.tasks.idle import check_declared, check_rounds, idle_options

    settings = [task.options(**one.run.values) for one in sweep.trials[: len(sweep.settings)]]
    idle = set.intersection(*(idle_options(task, one, grid) for one in settings))
    for name in grid:
        if name in idle:
            raise settings[0].idle(name, where="in any setting of the grid")
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
