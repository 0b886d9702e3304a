"""Writes the page `report.html` of finished runs.

fedpersonal report results/movielens results/reddit
fedpersonal report --show_clients results/movielens

Pages can be shared: they number clients, unless --show_clients shows their names.
"""

from __future__ import annotations

from absl import flags

from fedpersonal.errors import UserError
from fedpersonal.suite.commands import launch

FLAGS = flags.FLAGS

flags.DEFINE_bool(
    "show_clients", False, "Show clients' names, texts and items; do not share such a page."
)


def main(folders: list[str]) -> None:
    """Writes the page of each folder."""
    if not folders:
        raise UserError("name the folder of a finished run, such as results/movielens.")
    from fedpersonal.report.page import write_report

    for folder in folders:
        print(write_report(folder, show_clients=FLAGS.show_clients))


if __name__ == "__main__":
    launch.run(main)
