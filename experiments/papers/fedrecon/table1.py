"""Table 1 of the FedRecon paper (Singhal et al., section 5.2): MovieLens matrix factorization."""

from __future__ import annotations

from experiments.papers.result_table import Cells, Report, ResultTable, over_seeds
from experiments.papers.runs import complete
from experiments.papers.sweep import Row, Sweep, choose_rows
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.tasks.ratings.task import TASK

RMSE, ACCURACY = "RMSE", "accuracy %"
_SEEN = {"evaluate_on": "seen"}


def _row(name: str, preset: str, rmse: float, accuracy: float, **values: str) -> Row:
    return Row(name, preset, values, {RMSE: rmse, ACCURACY: accuracy})


FED_RECON = _row("FedRecon", "movielens_paper", 0.907, 43.3)
ROWS = (
    _row("Centralized + StandardEval", "movielens_centralized", 0.923, 43.2, **_SEEN),
    _row("Centralized + ReconEval", "movielens_centralized", 1.36, 40.8),
    _row("FedAvg + StandardEval", "movielens_fed_avg", 0.939, 41.5, **_SEEN),
    _row("FedAvg + ReconEval", "movielens_fed_avg", 0.934, 40.0),
    FED_RECON,
)


def about_ratings(ratings: Ratings) -> str:
    """Returns the data's name, and plainly whether they are the paper's."""
    paper = "movielens-1m"
    stand_in = "" if ratings.name == paper else " (a stand-in: the paper's are MovieLens-1M's)"
    return f"{ratings.name}{stand_in}"


def run(sweep: Sweep) -> Report:
    """Runs what is missing, and returns the table."""
    rows = choose_rows(ROWS, sweep.rows, table="table 1")
    source = sweep.read(TASK, FED_RECON.preset)
    runs = {
        row: sweep.runs(TASK, row, row.name.lower().replace(" + ", "_").replace(" ", "_"))
        for row in rows
    }
    every = [run for own in runs.values() for run in own]
    complete(every, source.describe(), isolated=sweep.isolated)
    cells: Cells = {
        row.name: {
            RMSE: over_seeds(own, "test", "rmse", published=row.published[RMSE]),
            ACCURACY: over_seeds(
                own, "test", "accuracy", scale=100, published=row.published[ACCURACY]
            ),
        }
        for row, own in runs.items()
    }
    table = ResultTable("test", cells, digits={RMSE: 3, ACCURACY: 1}, published="difference")
    heading = f"# Table 1 on {about_ratings(source)}\n\n{sweep.seeds_in_words().capitalize()}."
    return Report("table1", sweep.seeds, [heading, table], facts={"data": source.describe()})
