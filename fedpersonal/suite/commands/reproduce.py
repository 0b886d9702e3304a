"""Reproduces a paper's table or figure: runs missing runs, prints published and measured figures.

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

from fedpersonal.errors import UserError
from fedpersonal.suite.commands import launch, option_flags
from fedpersonal.suite.papers.targets import TARGETS

# Runs per row of targets that do not have 3.
_SEEDS = {"figure3": 1, "dp_table": 4}
# Options without flags: rows set them, and tables include all users.
_NO_FLAGS = (
    *("vocab_size", "num_oov_buckets", "evaluate_on", "split_by", "leaky_negatives"),
    *("num_users", "users_file"),
)

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "target",
    "table1",
    list(TARGETS),
    "Federated Reconstruction: table1 (rating prediction), table2 and figure2 (next word "
    "prediction), figure3 (both). FURL: table3, with its figures (document classification). "
    "FedPerC: fedperc_tables, all of its tables (utterances); fedperc_parts compares it with other "
    "parts of the same base. dp_table: errors of rating prediction by the epsilon of differential "
    "privacy. recommendation: rank of the next item by PFedRec and others, with and without "
    "negatives that leak.",
)
flags.DEFINE_string("output_dir", None, "Folder of tables and figures. [default: results/<target>]")
flags.DEFINE_string(
    "runs_dir",
    None,
    "Folder of the runs of table2, which figure2 and figure3 share. [default: --output_dir if "
    "set, else results/table2]",
)
flags.DEFINE_integer(
    "seeds",
    None,
    "Runs per row; each has another seed and split. [default: 3; figure3: 1; dp_table: 4]",
    lower_bound=1,
)
flags.DEFINE_float("scale_rounds", 1.0, "Share of the rounds to run, for a quick look.", 0.001)
flags.DEFINE_enum(
    "preset",
    "auto",
    ["auto", "quick", "paper"],
    "Hyperparameters for texts. auto: for next word prediction, paper with TFF's Stack Overflow, "
    "else quick; for other tasks, quick with generated texts, else paper.",
)
flags.DEFINE_list("rows", [], "The rows to run, by name. [default: the usual ones]")
flags.DEFINE_list(
    "vocab_sizes",
    [],
    "table2, figure2, figure3: sizes of the vocabulary. [default: 1000,5000,10000; figure2: the "
    "largest of these that the data have]",
)
flags.DEFINE_list(
    "datasets",
    [],
    "fedperc_tables: from tv_shows, reddit, generated. [default: --text_file, else tv_shows of "
    "--data_dir, else generated]",
)
flags.DEFINE_string(
    "movielens_dir", None, "figure3: the folder of MovieLens-1M. [default: MovieLens-100K]"
)
_OPTIONS = option_flags.define_shared(
    *dict.fromkeys(task.extra_options for *_, task in TARGETS.values()), without=_NO_FLAGS
)


def main() -> None:
    """Runs the missing runs and prints the table."""
    module, function, task = TARGETS[FLAGS.target]
    options = option_flags.parse_shared(_OPTIONS, task.extra_options, f"--target={FLAGS.target}")
    task.options(**options)  # Reports mistakes before TensorFlow is imported.
    from fedpersonal.suite.papers.reproduction import Reproduction

    output_dir = pathlib.Path(FLAGS.output_dir or f"results/{FLAGS.target}")
    reproduction = Reproduction(
        output_dir,
        seeds=range(FLAGS.seeds or _SEEDS.get(FLAGS.target, 3)),
        preset=FLAGS.preset,
        scale_rounds=FLAGS.scale_rounds,
        options=options,
        rows=FLAGS.rows,
        vocab_sizes=_vocab_sizes(),
        datasets=FLAGS.datasets,
        movielens_dir=FLAGS.movielens_dir,
        runs_dir=pathlib.Path(FLAGS.runs_dir or FLAGS.output_dir or "results/table2"),
    )
    make_report = getattr(importlib.import_module(f"fedpersonal.suite.papers.{module}"), function)
    report = make_report(reproduction)
    print(report.write(output_dir))
    print(f"written to {output_dir}/{report.name}.md, .json and .csv, with pictures next to them")


def _vocab_sizes() -> list[int]:
    sizes = FLAGS.vocab_sizes
    if not all(size.isdigit() and int(size) for size in sizes):
        raise UserError(f"--vocab_sizes={','.join(sizes)}: whole numbers above 0 are needed.")
    return list(dict.fromkeys(map(int, sizes)))


if __name__ == "__main__":
    launch.run(main)
