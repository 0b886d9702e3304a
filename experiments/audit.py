"""Checks by experiment what a run would send between server and clients, and trains nothing.

fedpersonal audit --task=movielens --method=furl --data_dir=path/to/ml-1m
fedpersonal audit --task=reddit --flagfile=experiments/presets/reddit_quick.flags

It takes the flags of the task's binary. Exit status: 0 if all checks hold, 1 if a leak is found.
"""

from __future__ import annotations

import sys

from absl import flags

from experiments import launch, option_flags
from experiments.task_flags import TaskFlags
from fedpersonal import runtime
from fedpersonal.errors import UserError, counted

FLAGS = flags.FLAGS

flags.DEFINE_integer("audit_rounds", 4, "Rounds to look at.", lower_bound=1, upper_bound=10_000)
flags.DEFINE_string("output", None, "Receives what was found, as JSON.")
# Presets name their runs.
for _name in ("experiment_name", "output_dir"):
    flags.DEFINE_string(_name, None, "Of a run's flags; not used.")
_TASK = TaskFlags()

_LEAK = 1


def _main() -> None:
    """Audits the process that the flags describe."""
    _, task, given = _TASK.given()
    from fedpersonal.tasks.idle import check_declared

    options = task.options(**given)
    runtime.check_runtime(str(options.values()["runtime"]))
    typed = option_flags.typed() & given.keys()
    for line in check_declared(task, options, typed):
        print("warning:", line, file=sys.stderr, flush=True)
    source = task.read(options)
    print(source.summary(), flush=True)
    # Mistakes in options and data have shown before TensorFlow is imported.
    from fedpersonal.files import write_json
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.running import audit_experiment

    runtime.use_runtime(
        options.runtime,
        # Compiling takes longer than the few rounds that are looked at.
        compile=options.compile and FLAGS["compile"].present,
        ray_address=options.ray_address,
    )
    experiment = build_experiment(task, source, options, typed=typed)
    rounds = FLAGS.audit_rounds
    found = audit_experiment(experiment, rounds=rounds)
    for line in found.lines():
        print(line)
    failed = [verdict.check for verdict in found.verdicts if not verdict.holds]
    outcome = f"failed: {', '.join(failed)} found a leak" if failed else "passed: no leak was found"
    print(f"audit {outcome} by {len(found.verdicts)} checks in {counted(rounds, 'rounds')}")
    if FLAGS.output:
        try:
            write_json(FLAGS.output, found.as_json())
        except OSError as error:
            raise UserError(f"--output: {error}") from None
    if not found.holds:
        sys.exit(_LEAK)


main = launch.Program(_main, _TASK.define)

if __name__ == "__main__":
    launch.run(main)
