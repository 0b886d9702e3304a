"""Compares finished runs of up to 10 methods: a page, and its rows as CSV.

fedpersonal compare results/fed_avg_1 results/fed_avg_2 results/fed_recon_1 ...
fedpersonal compare FedPer=results/own_1 FedPer=results/own_2 alone=results/alone_1 ...

Runs that differ only by their seed form one method, which NAME=FOLDER names. The first run's method
is the reference: others are compared with it on the same examples of the same clients, seed by
seed.
"""

from __future__ import annotations

import pathlib

from absl import flags

from fedpersonal.errors import UserError, printable
from fedpersonal.suite.commands import launch
from fedpersonal.suite.tasks.find import find_task

FLAGS = flags.FLAGS

flags.DEFINE_string("output", "compare.html", "The page; its rows go to a CSV file next to it.")
flags.DEFINE_string("metric", None, "The main metric. [default: the usual one of the runs]")
flags.DEFINE_string(
    "task", None, "The module of your task, if runs are of such a task; it names the metrics."
)
flags.DEFINE_bool("show_clients", False, "Show clients' names; do not share such a page.")


def main(folders: list[str]) -> None:
    """Writes the comparison of the folders, and prints its verdict."""
    if not FLAGS.output.endswith(".html"):
        raise UserError(f"--output is {FLAGS.output}; name a file that ends in .html.")
    from fedpersonal.report.comparison import compare_runs
    from fedpersonal.report.comparison_page import verdicts, write_page

    if FLAGS.task:
        find_task(FLAGS.task)  # Imports the module, which runs look up in sys.modules.
    comparison = compare_runs(_by_name(folders), metric=FLAGS.metric)
    paths = write_page(comparison, FLAGS.output, show_clients=FLAGS.show_clients)
    for line in verdicts(comparison):
        print(printable(line))
    for path in paths:
        print(path.resolve())


def _by_name(arguments: list[str]) -> dict[str | None, list[str]]:
    """Returns the folders by the names of their methods, None for unnamed ones."""
    by_name: dict[str | None, list[str]] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        has_name = equals and not pathlib.Path(argument).exists()  # Paths of sweeps have a "=".
        by_name.setdefault(name if has_name else None, []).append(folder if has_name else argument)
    return by_name


if __name__ == "__main__":
    launch.run(main)
