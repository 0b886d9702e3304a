"""Which layers should be local? Makes each layer, or each listed set, local in turn.

fedpersonal ablation --task=movielens --flagfile=experiments/presets/movielens_quick.flags
fedpersonal ablation --task=reddit --layer_sets="user_embedding;hidden,logits" --seeds=3

It takes the flags of the task's binary, and goes on where it stopped.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

from experiments import launch, option_flags
from experiments.task_flags import TaskFlags
from fedpersonal import runtime

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "layer_sets",
    None,
    "What is local in turn: sets parted by semicolons, of layers parted by commas. [default: each "
    "layer that moves]",
)
flags.DEFINE_integer("seeds", 1, "Runs of each, with a seed and a split of its own.", lower_bound=1)
flags.DEFINE_string("output_dir", None, "Where the table goes. [default: results/ablation_<task>]")
flags.DEFINE_string("experiment_name", None, "Of a run's flags; not used.")
# What a row settles.
SETTLED = ("method", "local_layers", "local_state", "evaluate_on", "seed")
_TASK = TaskFlags()


def _main() -> None:
    """Runs what is missing and prints the table."""
    name, task, given = _TASK.given()
    options = task.options(**given)
    runtime.check_runtime(str(given.get("runtime", "local")))
    from fedpersonal.tasks.idle import check_declared

    typed = (option_flags.typed() & given.keys()) - {*SETTLED}
    for line in check_declared(task, options.replace(method="fed_sim"), typed):
        print("warning:", line, file=sys.stderr, flush=True)
    # Mistakes in flags show before TensorFlow is imported.
    from experiments.papers.ablation import Ablation, layer_sets

    sets = layer_sets(FLAGS.layer_sets)
    output_dir = pathlib.Path(FLAGS.output_dir or f"results/ablation_{name}")
    given = {name: value for name, value in given.items() if name not in SETTLED}
    report = Ablation(task, given, sets, range(FLAGS.seeds), output_dir).run()
    print(report.write(output_dir))
    print(f"written to {output_dir}/{report.name}.md, .json and .csv")


main = launch.Program(_main, _TASK.define)

if __name__ == "__main__":
    launch.run(main)
