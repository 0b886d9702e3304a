"""Checks by experiment what a run would send between server and clients, without training.

fedpersonal audit --task=movielens --method=furl --data_dir=path/to/ml-1m
fedpersonal audit --task=reddit --flagfile=experiments/presets/reddit_quick.flags

It takes the flags of the task's command. Exit status: 0 if all checks hold, 1 if a leak is found.
"""

from __future__ import annotations

import sys

from absl import flags

from fedpersonal import runtime
from fedpersonal.errors import UserError, with_count
from fedpersonal.suite.commands import launch, option_flags
from fedpersonal.suite.commands.task_flags import TaskFlags

FLAGS = flags.FLAGS

flags.DEFINE_integer("audit_rounds", 4, "Rounds to audit.", lower_bound=1, upper_bound=10_000)
flags.DEFINE_string("output", None, "A JSON file for the findings.")
# Presets name their runs.
for _name in ("experiment_name", "output_dir"):
    flags.DEFINE_string(_name, None, "A flag of runs, accepted for presets; not used.")
_TASK = TaskFlags()

_LEAK = 1


def _main() -> None:
    """Audits the process that the flags describe."""
    _, task, values = _TASK.parse()
    from fedpersonal.suite.tasks.idle import check_declared

    options = task.options(**values)
    runtime.check_runtime(str(options.values()["runtime"]))
    typed = option_flags.typed() & values.keys()
    for line in check_declared(task, options, typed):
        print("warning:", line, file=sys.stderr, flush=True)
    source = task.read(options)
    print(source.summary(), flush=True)
    # Mistakes in options and data are reported before TensorFlow is imported.
    from fedpersonal.files import write_json
    from fedpersonal.suite.tasks.experiment import build_experiment
    from fedpersonal.suite.tasks.running import audit_experiment

    runtime.use_runtime(
        options.runtime,
        # Compiling takes longer than the few audited rounds.
        compile=options.compile and FLAGS["compile"].present,
        ray_address=options.ray_address,
    )
    experiment = build_experiment(task, source, options, typed=typed)
    rounds = FLAGS.audit_rounds
    audit = audit_experiment(experiment, rounds=rounds)
    for line in audit.lines():
        print(line)
    failed = [verdict.check for verdict in audit.verdicts if not verdict.holds]
    outcome = f"failed: {', '.join(failed)} found a leak" if failed else "passed: no leak was found"
    print(f"audit {outcome} by {len(audit.verdicts)} checks in {with_count(rounds, 'rounds')}")
    if FLAGS.output:
        try:
            write_json(FLAGS.output, audit.as_json())
        except OSError as error:
            raise UserError(f"--output: {error}") from None
    if not audit.holds:
        sys.exit(_LEAK)


main = launch.Program(_main, _TASK.define)

if __name__ == "__main__":
    launch.run(main)
