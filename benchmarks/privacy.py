"""What differential privacy costs a round of the paper's MovieLens preset.

    python -m benchmarks.privacy --data_dir=path/to/ml-1m --shards=2

All run on the same clients in turn, by sampling and runtime: the mean with uniform weights, and
private sums with fixed and with adaptive clipping. Prints a table, and one line of JSON: median
milliseconds, and how many times as long as without privacy a round takes. Without --data_dir,
ratings of MovieLens-1M's size are generated.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: generated ratings]")
flags.DEFINE_multi_enum("sampling", ["fixed", "poisson"], ["fixed", "poisson"], "Of clients.")
flags.DEFINE_multi_enum(
    "runtime",
    ["plain", "compiled"],
    ["tff", "plain", "compiled"],
    "TFF's own; local ones by compiling.",
)
flags.DEFINE_multi_enum("clipping", ["fixed", "adaptive"], ["fixed", "adaptive"], "Of updates.")
flags.DEFINE_float("noise_multiplier", 1.0, "0: updates are clipped alone.", lower_bound=0)
flags.DEFINE_integer("rounds", 20, "Rounds timed, of each side.", lower_bound=3)
flags.DEFINE_integer("clients_per_round", 100, "Clients a round.", lower_bound=1)
flags.DEFINE_integer("shards", None, "As of the experiments. [default: one a processor]")
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)

OPEN = "no privacy"


def main() -> None:
    """Times all sides and prints the table and the JSON line."""
    import itertools
    import json

    import tabulate

    from benchmarks.rating_data import load, paper_options, paper_trainer
    from benchmarks.side_by_side import Ours, median, time_rounds
    from fedpersonal.process.privacy import DifferentialPrivacy

    train, num_items, name = load(FLAGS.data_dir, FLAGS.seed)
    options = paper_options(
        clients_per_round=FLAGS.clients_per_round, seed=FLAGS.seed, weighting="uniform"
    )
    kinds: dict[str, DifferentialPrivacy | None] = {OPEN: None}
    for clipping in FLAGS.clipping:
        kinds[f"{clipping} clipping"] = DifferentialPrivacy(
            FLAGS.noise_multiplier, clipping=clipping
        )
    rows = []
    for sampling in FLAGS.sampling:
        trainers = {
            kind: paper_trainer(
                train,
                num_items=num_items,
                options=options,
                shards=FLAGS.shards,
                client_sampling=sampling,
                privacy=privacy,
            )
            for kind, privacy in kinds.items()
        }
        sides = {
            (runtime, kind): Ours(trainer, runtime)
            for runtime, (kind, trainer) in itertools.product(FLAGS.runtime, trainers.items())
        }
        medians = {side: median(own) for side, own in time_rounds(sides, FLAGS.rounds).items()}
        for (runtime, kind), seconds in medians.items():
            rows.append(
                {
                    "sampling": sampling,
                    "runtime": runtime,
                    "privacy": kind,
                    "milliseconds": round(1000 * seconds, 2),
                    "times_as_long": round(seconds / medians[runtime, OPEN], 3),
                }
            )
    print(tabulate.tabulate(rows, "keys", tablefmt="github"))
    about = {"data": name, "clients": FLAGS.clients_per_round, "rounds": FLAGS.rounds}
    print(json.dumps({**about, "noise_multiplier": FLAGS.noise_multiplier, "sides": rows}))


if __name__ == "__main__":
    launch.run(main)
