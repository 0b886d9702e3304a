"""Compares finished runs of up to 10 methods: a page to look at, and its rows as CSV.

fedpersonal compare results/fed_avg_1 results/fed_avg_2 results/fed_recon_1 ...
fedpersonal compare FedPer=results/own_1 FedPer=results/own_2 alone=results/alone_1 ...

Runs that differ by their seed alone are one method, which can be given a name. The first run's
method is the one that others are compared with, on the same examples of the same clients, seed by
seed.
"""

from __future__ import annotations

import pathlib

from absl import flags

from experiments import launch
from fedpersonal.errors import UserError, escaped
from fedpersonal.tasks.find import find_task

FLAGS = flags.FLAGS

flags.DEFINE_string("output", "compare.html", "The page; its rows are written beside it as CSV.")
flags.DEFINE_string("metric", None, "The metric to judge by. [default: the usual one of the runs]")
flags.DEFINE_string(
    "task", None, "The module of the own task whose runs these are, for the metrics that it names."
)
flags.DEFINE_bool("show_clients", False, "Give clients' names, which others need not know.")


def main(folders: list[str]) -> None:
    """Writes the comparison of the folders named, and prints its verdict."""
    if not FLAGS.output.endswith(".html"):
        raise UserError(f"--output is {FLAGS.output}; give a file that ends in .html.")
    from fedpersonal.report.comparison import compare_runs
    from fedpersonal.report.comparison_page import verdicts, write_page

    if FLAGS.task:
        find_task(FLAGS.task)  # It has been imported then, where runs look for it.
    comparison = compare_runs(_by_name(folders), metric=FLAGS.metric)
    paths = write_page(comparison, FLAGS.output, show_clients=FLAGS.show_clients)
    for line in verdicts(comparison):
        print(escaped(line))
    for path in paths:
        print(path.resolve())


def _by_name(arguments: list[str]) -> dict[str | None, list[str]]:
    """Returns the folders by the names that they are given, None where they have none."""
    named: dict[str | None, list[str]] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        has_name = equals and not pathlib.Path(argument).exists()  # A sweep's have one in the path.
        named.setdefault(name if has_name else None, []).append(folder if has_name else argument)
    return named


if __name__ == "__main__":
    launch.run(main)
