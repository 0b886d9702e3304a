"""Rounds of very many clients, of very many items and of very large cohorts.

    python -m benchmarks.scale --cases=rebuilt,kept --cohorts=100,1000

Each measurement has a process of its own and prints a line of JSON: seconds until the data are
there, until the first round is done and of opening a store; milliseconds (medians) of making a
cohort, which training hides by making it a round ahead, of a round, and of committing what clients
keep; and peak memory.

The cases: `rebuilt` and `kept`, matrix factorization with vectors of 50 floats that clients rebuild
or keep, all of them in the store beforehand; `items`, with 100 clients a round; `texts`, FURL on
generated comments.
"""

from __future__ import annotations

from typing import Any

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

CASES = ("rebuilt", "kept", "items", "texts")
flags.DEFINE_list("cases", ["rebuilt", "kept"], "Of " + ", ".join(CASES) + ".")
flags.DEFINE_integer("clients", 1_000_000, "How many clients have ratings.", lower_bound=1)
flags.DEFINE_list("ratings", ["3", "20"], "Ratings of a client.")
flags.DEFINE_list("cohorts", ["100", "1000", "10000"], "Clients a round.")
flags.DEFINE_list("items", ["100000", "1000000"], "Of the case `items`.")
flags.DEFINE_integer("texts", 200_000, "Of the case `texts`, 10 a client.", lower_bound=1000)
flags.DEFINE_integer("text_cohort", 5000, "Its clients a round.", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "Rounds timed, each.", lower_bound=1)
flags.DEFINE_integer("shards", None, "As of the experiments. [default: one a processor]")

FEW_ITEMS = 3706


def main() -> None:
    """Measures everything that is asked for."""
    import itertools

    from benchmarks.scale_measurement import measure
    from experiments.papers.child_process import run_in_child

    wanted: list[dict[str, Any]] = []
    for case in FLAGS.cases:
        if case == "texts":
            wanted.append({"case": case, "texts": FLAGS.texts, "cohort": FLAGS.text_cohort})
        elif case == "items":
            ratings = {"clients": 6040, "ratings": 100, "cohort": 100}
            wanted += [{"case": case, "items": int(n), **ratings} for n in FLAGS.items]
        else:
            for each, cohort in itertools.product(FLAGS.ratings, FLAGS.cohorts):
                sizes = {"items": FEW_ITEMS, "ratings": int(each), "cohort": int(cohort)}
                wanted.append({"case": case, "clients": FLAGS.clients, **sizes})
    for sizes in wanted:
        run_in_child(measure, sizes, FLAGS.rounds, FLAGS.shards)


if __name__ == "__main__":
    launch.run(main)
