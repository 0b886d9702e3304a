"""Measures which layers should be local: makes each layer, or each listed set, local in turn.

fedpersonal ablation --task=movielens --flagfile=experiments/presets/movielens_quick.flags
fedpersonal ablation --task=reddit --layer_sets="user_embedding;hidden,logits" --seeds=3

It takes the flags of the task's command, and resumes where it was stopped.
"""

from __future__ import annotations

import pathlib
import sys

from absl import flags

from fedpersonal import runtime
from fedpersonal.suite.commands import launch, option_flags
from fedpersonal.suite.commands.task_flags import TaskFlags

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "layer_sets",
    None,
    "Sets of layers to make local in turn: sets separated by semicolons, layers by commas. "
    "[default: each trainable layer]",
)
flags.DEFINE_integer(
    "seeds", 1, "Runs of each set; each run has another seed and split.", lower_bound=1
)
flags.DEFINE_string("output_dir", None, "Folder of the table. [default: results/ablation_<task>]")
flags.DEFINE_string("experiment_name", None, "A flag of runs, accepted for presets; not used.")
# Options that each row sets.
ROW_OPTIONS = ("method", "local_layers", "local_state", "evaluate_on", "seed")
_TASK = TaskFlags()


def _main() -> None:
    """Runs the missing runs and prints the table."""
    name, task, values = _TASK.parse()
    options = task.options(**values)
    runtime.check_runtime(str(values.get("runtime", "local")))
    from fedpersonal.suite.tasks.idle import check_declared

    typed = (option_flags.typed() & values.keys()) - {*ROW_OPTIONS}
    for line in check_declared(task, options.replace(method="fed_sim"), typed):
        print("warning:", line, file=sys.stderr, flush=True)
    # Mistakes in flags are reported before TensorFlow is imported.
    from fedpersonal.suite.papers.ablation import Ablation, layer_sets

    sets = layer_sets(FLAGS.layer_sets)
    output_dir = pathlib.Path(FLAGS.output_dir or f"results/ablation_{name}")
    values = {name: value for name, value in values.items() if name not in ROW_OPTIONS}
    report = Ablation(task, values, sets, range(FLAGS.seeds), output_dir).run()
    print(report.write(output_dir))
    print(f"written to {output_dir}/{report.name}.md, .json and .csv")


main = launch.Program(_main, _TASK.define)

if __name__ == "__main__":
    launch.run(main)
