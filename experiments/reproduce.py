"""Reproduces a table of a paper: runs its rows, prints paper beside measured, writes both down.

python -m experiments.reproduce --target=table1 --data_dir=path/to/ml-1m
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "target", "table1", ["table1"], "Which table: table1 of Federated Reconstruction."
)
flags.DEFINE_string("data_dir", None, "The folder of MovieLens-1M. [default: MovieLens-100K]")
flags.DEFINE_string("output_dir", "results/table1", "Where runs and tables go.")
flags.DEFINE_integer("seeds", 3, "Runs a row, each with a seed and a split of its own.", 1)
flags.DEFINE_float("scale_rounds", 1.0, "Share of the rounds to run, for a quick look.", 0.001)


def main() -> None:
    """Runs the rows that are missing and prints the table."""
    from fedpersonal.datasets import movielens

    if FLAGS.data_dir:
        ratings = movielens.load_movielens_1m(FLAGS.data_dir)
    else:
        ratings = movielens.load_movielens_100k()
    from fedpersonal.tasks import table1

    table = table1.run(
        ratings, FLAGS.output_dir, seeds=range(FLAGS.seeds), scale_rounds=FLAGS.scale_rounds
    )
    print(table1.as_markdown(table, ratings.name, FLAGS.seeds))
    print(f"written to {FLAGS.output_dir}/table1.md and table1.json")


if __name__ == "__main__":
    launch.run(main)
