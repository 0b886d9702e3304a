"""A leaderboard of two tiny tasks: tiny_board.py FOLDER. It is killed, and run again."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

from fedpersonal.suite.commands import startup
from fedpersonal.suite.leaderboard import page
from fedpersonal.suite.leaderboard.advice import advise
from fedpersonal.suite.leaderboard.board import Board
from fedpersonal.suite.leaderboard.table import FEDERATED, BoardTable, Cell, Row, tabulate_board
from fedpersonal.suite.leaderboard.tasks import ENTRIES, QUICK, Size
from fedpersonal.suite.papers.table import Cell as Figure

NAMES = ("furl",)
# The settings that come with the command are of other sizes.
_ABSENT = pathlib.Path("absent")
_TINY = {"user_column": "who", "embedding_dim": 2, "total_rounds": 6, "clients_per_round": 4}
RATINGS, RANKING = (next(e for e in ENTRIES if e.name == n) for n in ("ratings", "ranking"))
_SIZES = (
    Size("movielens_quick", {**_TINY, "ratings_file": "ratings.csv"}),
    Size("interactions_quick", {**_TINY, "interactions_file": "ratings.csv"}),
)


def board(folder, *, tune=None, settings=_ABSENT):
    """Returns the board; the folder of its table is the current one."""
    pairs = zip((RATINGS, RANKING), _SIZES)
    entries = [dataclasses.replace(entry, sizes={QUICK: size}) for entry, size in pairs]
    return Board(entries, NAMES, QUICK, [0], folder, settings, jobs=2, tune=tune)


def make_table(ranks, clear, *, kept=(), moved=None, setting=None):
    """Returns a table of hand-made ranks by method and task."""
    cells = {
        name: {
            entry.name: Cell(
                Figure((1.0,)),
                rank=place,
                down=(moved or {}).get(name, 10),
                up=0,
                kept=8 if name in kept else 0,
                setting=setting,
            )
            for entry, place in zip((RATINGS, RANKING), places)
        }
        for name, places in ranks.items()
    }
    rows = [Row(name, name.upper(), FEDERATED, own) for name, own in cells.items()]
    return BoardTable((RATINGS, RANKING), QUICK, [0], rows, clear)


def main(folder):
    """Runs the board, of a table in the current folder."""
    startup.start()
    out = pathlib.Path(folder).resolve()
    asked = board(out)
    asked.check()
    table = tabulate_board(asked, asked.run())
    page.write_pages(table, advise(table), out, "tiny_board")


if __name__ == "__main__":
    main(sys.argv[1])
