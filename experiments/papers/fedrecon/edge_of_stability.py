"""Why the paper may have an RMSE of 1.36 for Centralized + ReconEval (Singhal et al., Table 1)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from experiments.papers.fedrecon.rating_rows import ACCURACY, RMSE, rating_cells
from experiments.papers.reproduction import Reproduction, Row
from experiments.papers.result_table import Cell, Cells, Column, ResultTable
from experiments.papers.runs import Run, share_trainings
from fedpersonal.tasks.ratings.task import TASK

RATES = (0.10, 0.12, 0.13, 0.14, 0.15)
DRAWS, CLIENTS = 500, 50
_OF_DRAWS, _HURT = f"{RMSE}, {DRAWS} draws", "hurt %"
_CAPTION = f"""\
**Why 1.36?** Centralized training without a penalty (6 passes), and the learning rate at which \
unseen users then rebuild their embeddings. The larger the item embeddings, the lower the rate at \
which gradient steps diverge for some users: near that edge a few of them decide the RMSE. Third \
column: mean ± standard deviation over {DRAWS} draws of {CLIENTS} test users, as in the paper's \
footnote 3, which has 1.36 ± 0.53. *Hurt*: users whose loss is higher than before rebuilding; the \
paper saw users "reconstructing embeddings no better than random initialization"."""


def runs(asked: Reproduction) -> dict[str, list[Run]]:
    """Returns the runs by rate, one a seed; those of a seed share their training."""
    by_rate = {}
    for rate in RATES:
        values = {"l2": 0.0, "total_rounds": 6, "reconstruction_learning_rate": rate}
        draws = {"test_draws": DRAWS, "clients_per_draw": CLIENTS}
        row = Row(f"rebuilding at {rate:.2f}", "movielens_centralized", {**values, **draws})
        by_rate[row.name] = asked.runs(TASK, row, f"edge_of_stability/rate_{rate:.2f}")
    return share_trainings(by_rate)


def table(runs: Mapping[str, Sequence[Run]]) -> ResultTable:
    """Returns the table."""
    cells: Cells = {}
    for name, own in runs.items():
        tests = [run.summary for run in own]
        draws = [summary["draws"]["rmse"] for summary in tests]
        hurt = tuple(100.0 * summary["test"]["share_hurt"] for summary in tests)
        of_draws = Cell(
            tuple(draw["mean"] for draw in draws),
            deviation=statistics.mean(draw["sd"] for draw in draws),
        )
        cells[name] = {**rating_cells(own), _OF_DRAWS: of_draws, _HURT: Cell(hurt)}
    digits: dict[Column, int] = {RMSE: 3, ACCURACY: 1, _OF_DRAWS: 2, _HURT: 1}
    return ResultTable("edge_of_stability", cells, _CAPTION, digits)
