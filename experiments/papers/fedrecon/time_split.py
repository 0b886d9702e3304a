"""What it is worth to be tested on random ratings in place of the last ones by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.papers.fedrecon.rating_rows import ACCURACY, RMSE, add_guesses, rating_cells
from experiments.papers.reproduction import Reproduction, Row
from experiments.papers.result_table import Cells, Column, ResultTable
from experiments.papers.runs import Run, complete, share_trainings
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.tasks.options import TableOptions
from fedpersonal.tasks.ratings.task import TASK

_SPLITS = ("time", "random")
_CAPTION = """\
**What a random split is worth**, on {name}, which has times: seen users tested on their last \
ratings by time, and on random ones. The hyperparameters are those of MovieLens-1M."""


def table(
    asked: Reproduction, source: Ratings, seen: Mapping[Row, Sequence[Run]], preset: str
) -> ResultTable:
    """Runs what is missing, and returns the table.

    Args:
        asked: What is asked.
        source: The ratings; MovieLens-100K stands in for them if they have no times.
        seen: Rows of seen users, with their runs on these ratings.
        preset: The preset by which guesses' ratings are split.
    """
    if source.times is None:
        where = {*TableOptions.declarations(), "ratings_file", "item_column", "rating_column"}
        given = {name: value for name, value in asked.given.items() if name not in where}
        asked = asked.replace(given={**given, "dataset": "movielens_100k"})
        source = asked.read(TASK, preset)
        seen = {row: [] for row in seen}
    # Where there are times, the runs that there are split by them.
    by_split = {("time", row): own for row, own in seen.items() if own}
    for split in _SPLITS:
        for row in [row for row in seen if (split, row) not in by_split]:
            folder = f"time_split/{split}/{row.preset}_{row.values.get('algorithm', 'own')}"
            note = f" on {source.name}, split by {split}"
            by_split[split, row] = asked.runs(TASK, row, folder, note=note, split_by=split)
    runs = share_trainings(by_split)
    every = [run for own in runs.values() for run in own]
    complete(every, source.describe(), isolated=asked.isolated)
    cells: Cells = {row.name: {} for row in seen}
    for (split, row), own in runs.items():
        found = rating_cells(own)
        cells[row.name].update({f"{column}, {split}": cell for column, cell in found.items()})
    for split in _SPLITS:
        options = {"evaluate_on": "seen", "split_by": split}
        add_guesses(cells, asked, source, preset, note=f", {split}", **options)
    digits: dict[Column, int] = {}
    for split in _SPLITS:
        digits.update({f"{RMSE}, {split}": 3, f"{ACCURACY}, {split}": 1})
    return ResultTable("time_split", cells, _CAPTION.format(name=source.name), digits)
