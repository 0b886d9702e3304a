"""Table 1 of the FedRecon paper (Singhal et al., section 5.2): MovieLens matrix factorization.

Beside the paper's rows stand further methods and guesses, on the same ratings of the same users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pandas as pd

from experiments.papers import differences
from experiments.papers.fedrecon import edge_of_stability, time_split
from experiments.papers.fedrecon.rating_rows import (
    ACCURACY,
    METRICS,
    RMSE,
    add_guesses,
    rating_cells,
)
from experiments.papers.reproduction import Reproduction, Row, choose_rows
from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable
from experiments.papers.runs import Run, complete, share_trainings
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.options import Value
from fedpersonal.tasks.ratings.task import TASK

BEFORE, BEHIND, LESS = "RMSE before", "RMSE − FedRecon's", "accuracy % − FedRecon's"
_METRICS = {BEHIND: METRICS[RMSE], LESS: METRICS[ACCURACY]}
_DIGITS: dict[Column, int] = {RMSE: 3, ACCURACY: 1, BEFORE: 3, BEHIND: 3, LESS: 1}
_CAPTIONS = {
    "unseen": "**Unseen users** (ReconEval): they took no part in training. Half of each one's "
    "batches of 5 ratings are its support set, the others are predicted.",
    "seen": "**Seen users** (StandardEval): all users train on 80 % of their ratings, and 10 % are "
    "predicted, {split}. FedRecon, movielens_best and movielens_svdpp rebuild from the 80 %.",
}
_NO_TIMES = "random ones, since these data have no times (the paper took the last ones by time)"
_ABOUT = """\
All rows of a table predict the same ratings. *Before*: before a user rebuilds or fine-tunes
anything, where the method has it do so. The command of the reference code runs 500 rounds; FedRecon
here has 1,000, with which it comes to the RMSE that the paper has."""


def _row(
    name: str,
    preset: str,
    rmse: float | None = None,
    accuracy: float | None = None,
    *,
    values: Mapping[str, Value] | None = None,
    on: str = "unseen",
) -> Row:
    published = {} if rmse is None else {RMSE: rmse, ACCURACY: accuracy}
    return Row(name, preset, {"evaluate_on": on, **(values or {})}, published)


_FINETUNED: dict[str, Value] = {"algorithm": "fed_avg_finetuning", "finetuning_learning_rate": 0.02}
# Chosen on MovieLens-100K's validation ratings (docs/results/movielens.md). With nothing kept, the
# shared model of Ditto and APFL is that of FedAvg's row, and unseen users train their copies alone.
_REBUILT: dict[str, Value] = {"local_state": "rebuilt", "reconstruction_learning_rate": 0.05}
_DITTO: dict[str, Value] = {"algorithm": "ditto", "pull": 1.0, "local_only_epochs": 0, **_REBUILT}
_APFL: dict[str, Value] = {"algorithm": "apfl", **_REBUILT}
_PER_FED_AVG: dict[str, Value] = {
    "algorithm": "per_fed_avg",
    "support_query_split": "shared",
    "adaptation_learning_rate": 0.01,
    "adaptation_steps": 50,
    "total_rounds": 500,
}
_PFEDME: dict[str, Value] = {
    "algorithm": "pfedme",
    "inner_learning_rate": 0.02,
    "outer_learning_rate": 0.2,
    "total_rounds": 500,
}
# Of what is kept each user has a whole model: a smaller one, and fewer rounds.
_KEPT: dict[str, Value] = {"embedding_dim": 16, "total_rounds": 500, "local_learning_rate": 0.1}
_DITTO_KEPT: dict[str, Value] = {"algorithm": "ditto", "pull": 5.0, **_KEPT}
_APFL_KEPT: dict[str, Value] = {"algorithm": "apfl", "mixing": 0.25, **_KEPT}
_MR_MTL: dict[str, Value] = {
    "algorithm": "mr_mtl",
    "pull": 2.0,
    "reconstruction_learning_rate": 0.05,
    **_KEPT,
}
FED_RECON = _row("FedRecon", "movielens_paper", 0.907, 43.3)
FED_RECON_SEEN = _row("FedRecon (seen users)", "movielens_paper", on="seen")
CENTRALIZED = _row("Centralized + ReconEval", "movielens_centralized", 1.36, 40.8)
ROWS = (
    CENTRALIZED,
    _row("FedAvg + ReconEval", "movielens_fed_avg", 0.934, 40.0),
    _row("FedAvg + fine-tuning", "movielens_fed_avg", values=_FINETUNED),
    FED_RECON,
    _row("FedRecon: 500 rounds", "movielens_paper", values={"total_rounds": 500}),
    _row("movielens_best", "movielens_best"),
    _row("movielens_svdpp", "movielens_svdpp"),
    _row("Local training", "movielens_local"),
    _row("Per-FedAvg: 500 rounds", "movielens_fed_avg", values=_PER_FED_AVG),
    _row("pFedMe: 500 rounds", "movielens_fed_avg", values=_PFEDME),
    _row("Ditto", "movielens_fed_avg", values=_DITTO),
    _row("APFL", "movielens_fed_avg", values=_APFL),
    _row("MR-MTL: K 16 and 500 rounds", "movielens_fed_avg", values=_MR_MTL),
    _row("Centralized + StandardEval", "movielens_centralized", 0.923, 43.2, on="seen"),
    _row("FedAvg + StandardEval", "movielens_fed_avg", 0.939, 41.5, on="seen"),
    _row("FedAvg + fine-tuning (seen users)", "movielens_fed_avg", values=_FINETUNED, on="seen"),
    FED_RECON_SEEN,
    _row("movielens_best (seen users)", "movielens_best", on="seen"),
    _row("movielens_svdpp (seen users)", "movielens_svdpp", on="seen"),
    _row("Local training (seen users)", "movielens_local", on="seen"),
    _row(
        "Ditto: K 16 and 500 rounds (seen users)",
        "movielens_fed_avg",
        values=_DITTO_KEPT,
        on="seen",
    ),
    _row(
        "APFL: K 16 and 500 rounds (seen users)", "movielens_fed_avg", values=_APFL_KEPT, on="seen"
    ),
    _row(
        "MR-MTL: K 16 and 500 rounds (seen users)", "movielens_fed_avg", values=_MR_MTL, on="seen"
    ),
)


def about_ratings(ratings: Ratings) -> str:
    """Returns the data's name, and plainly whether they are the paper's."""
    paper = "movielens-1m"
    stand_in = "" if ratings.name == paper else " (a stand-in: the paper's are MovieLens-1M's)"
    return f"{ratings.name}{stand_in}"


def run(asked: Reproduction) -> Report:
    """Runs what is missing, and returns the table."""
    rows = choose_rows(ROWS, asked.rows, table="table 1")
    source = asked.read(TASK, FED_RECON.preset)
    runs = {row: own for row, own in _runs(asked).items() if row in rows}
    further = edge_of_stability.runs(asked) if CENTRALIZED in rows else {}
    every = [run for own in (*runs.values(), *further.values()) for run in own]
    complete(every, source.describe(), isolated=asked.isolated)
    parts: list[str | ResultTable] = [
        f"# Table 1 on {about_ratings(source)}\n\n{asked.seeds_in_words().capitalize()}. {_ABOUT}",
        differences.ABOUT,
    ]
    for on, reference in (("unseen", FED_RECON), ("seen", FED_RECON_SEEN)):
        chosen = {row: own for row, own in runs.items() if _on(row) == on}
        if chosen:
            split = "the last ones by time" if source.times is not None else _NO_TIMES
            caption = _CAPTIONS[on].format(split=split)
            cells = _cells(asked, source, chosen, on, reference)
            parts.append(ResultTable(on, cells, caption, _DIGITS))
    if further:
        parts.append(edge_of_stability.table(further))
    seen = {row: own for row, own in runs.items() if _on(row) == "seen"}
    if seen:
        parts.append(time_split.table(asked, source, seen, FED_RECON.preset))
    return Report("table1", asked.seeds, parts, facts={"data": source.describe()})


def _on(row: Row) -> str:
    return str(row.values["evaluate_on"])


def _runs(asked: Reproduction) -> dict[Row, list[Run]]:
    """Returns a run a seed of every row, whichever are wanted: some share their training."""
    # Else a preset that trains on all ratings would be tested on others than FedRecon.
    most = asked.values(TASK, FED_RECON.preset)["max_ratings_per_user"]
    by_row = {}
    for row in ROWS:
        folder = row.name.lower().replace(" + ", "_").replace(" ", "_")
        folder = "".join(c for c in folder if c not in ":()")
        own = {**row.values, "max_ratings_per_user": most} if _on(row) == "unseen" else row.values
        by_row[row] = asked.runs(TASK, dataclasses.replace(row, values=own), folder)
    return share_trainings(by_row)


def _cells(
    asked: Reproduction, source: Ratings, runs: Mapping[Row, Sequence[Run]], on: str, reference: Row
) -> Cells:
    """Returns the rows of one kind of users, and the guesses."""
    cells: Cells = {row.name: rating_cells(own, row.published) for row, own in runs.items()}
    tables = {row.name: [run.record.per_client for run in own] for row, own in runs.items()}
    for row, own in runs.items():
        before = [run.summary["test"]["before"].get("rmse") for run in own]
        if before != [run.summary["test"]["rmse"] for run in own]:
            cells[row.name][BEFORE] = Cell(tuple(before))
    preset = FED_RECON.preset
    tables.update(add_guesses(cells, asked, source, preset, evaluate_on=on))
    for name, own in tables.items() if reference in runs else ():
        if name != reference.name:
            for column, metric in _METRICS.items():
                other: Sequence[pd.DataFrame] = tables[reference.name]
                cells[name][column] = differences.difference(own, other, metric)
    return cells
