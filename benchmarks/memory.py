"""Resident memory of the program and its worker, at round 100 and at the last round.

    python -m benchmarks.memory --rounds=1000

Prints one line of JSON: megabytes at both rounds and the growth.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: generated ratings]")
flags.DEFINE_integer("rounds", 1000, "Rounds to run.", lower_bound=101)

FIRST_LOOK = 100


def main() -> None:
    """Runs the paper's preset and looks at memory twice."""
    import json

    from benchmarks.rating_data import load, paper_options, paper_trainer
    from fedpersonal import runtime
    from fedpersonal.local_state.rounds import Rounds

    train, num_items, name = load(FLAGS.data_dir, 0)
    trainer = paper_trainer(train, num_items=num_items, options=paper_options())
    rounds = Rounds(trainer.process)
    state = rounds.initialize()
    for round_number in range(1, FLAGS.rounds + 1):
        state = rounds.next(state, trainer.cohort(round_number)).state
        if round_number == FIRST_LOOK:
            early = runtime.rss_mb()
    late = runtime.rss_mb()
    print(
        json.dumps(
            {
                "data": name,
                "rounds": [FIRST_LOOK, FLAGS.rounds],
                "resident_mb": [round(early, 1), round(late, 1)],
                "growth_percent": round(100 * (late / early - 1), 2),
            }
        )
    )


if __name__ == "__main__":
    launch.run(main)
