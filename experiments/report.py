"""Writes the page `report.html` of finished runs.

fedpersonal report results/movielens results/reddit
fedpersonal report --show_clients results/movielens

Pages are made to be shared: clients have numbers there, unless --show_clients gives their names.
"""

from __future__ import annotations

from absl import flags

from experiments import launch
from fedpersonal.errors import UserError

FLAGS = flags.FLAGS

flags.DEFINE_bool(
    "show_clients", False, "Give clients' names, texts and items; others need not know."
)


def main(folders: list[str]) -> None:
    """Writes the pages of the folders named."""
    if not folders:
        raise UserError("give the folder of a finished run, such as results/movielens.")
    from fedpersonal.report.page import write_report

    for folder in folders:
        print(write_report(folder, show_clients=FLAGS.show_clients))


if __name__ == "__main__":
    launch.run(main)
