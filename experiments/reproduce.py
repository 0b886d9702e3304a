"""Reproduces a table or figure: runs what is missing, prints published figures beside measured.

fedpersonal reproduce --target=table1 --data_dir=path/to/ml-1m
fedpersonal reproduce --target=table2 --text_file=path/to/texts.jsonl.gz
fedpersonal reproduce --target=fedperc_tables --data_dir=path/to/tv_shows
fedpersonal reproduce --target=dp_table --data_dir=path/to/ml-1m
fedpersonal reproduce --target=recommendation
"""

from __future__ import annotations

import importlib
import pathlib

from absl import flags

from experiments import launch, option_flags
from experiments.papers.targets import TARGETS
from fedpersonal.errors import UserError

# Runs a row, where not 3.
_SEEDS = {"figure3": 1, "dp_table": 4}
# Rows settle these, and tables are of all users.
_SETTLED = (
    *("vocab_size", "num_oov_buckets", "evaluate_on", "split_by", "leaky_negatives"),
    *("num_users", "users_file"),
)

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "target",
    "table1",
    list(TARGETS),
    "Of Federated Reconstruction: table1 is rating prediction, table2 and figure2 next word "
    "prediction, figure3 both. Of FURL: table3, with its figures, document classification. Of "
    "FedPerC: fedperc_tables, all of its tables, utterances; fedperc_parts has other parts of the "
    "same base beside it. dp_table has errors of rating "
    "prediction by the epsilon of differential privacy. recommendation ranks the next item by "
    "PFedRec and others, with negatives that leak nothing, and that leak.",
)
flags.DEFINE_string("output_dir", None, "Where tables, figures go. [default: results/<target>]")
flags.DEFINE_string(
    "runs_dir",
    None,
    "Where the runs of table2 are, which figure2 and figure3 share. [default: --output_dir if "
    "given, else results/table2]",
)
flags.DEFINE_integer(
    "seeds",
    None,
    "Runs a row, each with a seed and a split of its own. [default: 3; figure3: 1; dp_table: 4]",
    lower_bound=1,
)
flags.DEFINE_float("scale_rounds", 1.0, "Share of the rounds to run, for a quick look.", 0.001)
flags.DEFINE_enum(
    "preset",
    "auto",
    ["auto", "quick", "paper"],
    "Hyperparameters of texts. auto: of next word prediction, paper for TFF's Stack Overflow, else "
    "quick; of the others, quick for generated texts, else paper.",
)
flags.DEFINE_list("rows", [], "The rows wanted, by name. [default: the usual ones]")
flags.DEFINE_list(
    "vocab_sizes",
    [],
    "table2, figure2, figure3: known words. [default: 1000,5000,10000; of figure2 the largest of "
    "these that there are words for]",
)
flags.DEFINE_list(
    "datasets",
    [],
    "fedperc_tables: some of tv_shows, reddit, generated. [default: --text_file, else tv_shows of "
    "--data_dir, else generated]",
)
flags.DEFINE_string(
    "movielens_dir", None, "figure3: the folder of MovieLens-1M. [default: MovieLens-100K]"
)
_OPTIONS = option_flags.define_shared(
    *dict.fromkeys(task.own_options for *_, task in TARGETS.values()), without=_SETTLED
)


def main() -> None:
    """Runs what is missing and prints the table."""
    module, function, task = TARGETS[FLAGS.target]
    given = option_flags.given(_OPTIONS, task.own_options, f"--target={FLAGS.target}")
    task.options(**given)  # Mistakes show before TensorFlow is imported.
    from experiments.papers.reproduction import Reproduction

    output_dir = pathlib.Path(FLAGS.output_dir or f"results/{FLAGS.target}")
    asked = Reproduction(
        output_dir,
        seeds=range(FLAGS.seeds or _SEEDS.get(FLAGS.target, 3)),
        preset=FLAGS.preset,
        scale_rounds=FLAGS.scale_rounds,
        given=given,
        rows=FLAGS.rows,
        vocab_sizes=_vocab_sizes(),
        datasets=FLAGS.datasets,
        movielens_dir=FLAGS.movielens_dir,
        runs_dir=pathlib.Path(FLAGS.runs_dir or FLAGS.output_dir or "results/table2"),
    )
    report = getattr(importlib.import_module(f"experiments.papers.{module}"), function)(asked)
    print(report.write(output_dir))
    print(f"written to {output_dir}/{report.name}.md, .json and .csv, with pictures beside them")


def _vocab_sizes() -> list[int]:
    given = FLAGS.vocab_sizes
    if not all(size.isdigit() and int(size) for size in given):
        raise UserError(f"--vocab_sizes={','.join(given)}: whole numbers above 0 are needed.")
    return list(dict.fromkeys(map(int, given)))


if __name__ == "__main__":
    launch.run(main)
