"""Resident memory of the program over many rounds.

    python -m benchmarks.memory --rounds=4000

Runs the paper's MovieLens preset. Prints one line of JSON: megabytes at some rounds, and the growth
from the first of them to the last.
"""

from __future__ import annotations

from absl import flags

from experiments import launch
from fedpersonal import runtime

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: generated ratings]")
flags.DEFINE_integer("rounds", 4000, "Rounds to run.", lower_bound=101)
flags.DEFINE_enum("runtime", "local", runtime.RUNTIMES, "Where they run.")
flags.DEFINE_bool("compile", True, "local, ray: whether XLA compiles.")
flags.DEFINE_integer("shards", None, "As of the experiments. [default: one a processor]")

FIRST_LOOK = 100
LOOKS = 5


def main() -> None:
    """Runs the rounds and looks at memory between them."""
    import json

    import numpy as np
    import psutil

    from benchmarks.rating_data import load, paper_options, paper_trainer
    from fedpersonal.local_state.rounds import Rounds

    runtime.use_runtime(FLAGS.runtime, compile=FLAGS.compile)
    train, num_items, name = load(FLAGS.data_dir, 0)
    trainer = paper_trainer(
        train, num_items=num_items, options=paper_options(), shards=FLAGS.shards
    )
    rounds = Rounds(trainer.process)
    state = rounds.initialize()
    looks = np.linspace(FIRST_LOOK, FLAGS.rounds, LOOKS).astype(int).tolist()
    megabytes = {}
    for round_number in range(1, FLAGS.rounds + 1):
        state = rounds.next(state, trainer.cohort(round_number)).state
        if round_number in looks:
            megabytes[round_number] = round(psutil.Process().memory_info().rss / 2**20, 1)
    first, last = megabytes[looks[0]], megabytes[looks[-1]]
    growth = round(100 * (last / first - 1), 2)
    about = {"data": name, "runtime": FLAGS.runtime, "compile": FLAGS.compile}
    print(json.dumps({**about, "resident_mb": megabytes, "growth_percent": growth}))


if __name__ == "__main__":
    launch.run(main)
