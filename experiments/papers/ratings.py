"""Table 1 of the FedRecon paper (Singhal et al., section 5.2): MovieLens matrix factorization.

Beside the paper's rows stand further methods and guesses, on the same ratings of the same users.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from experiments.papers import fedrecon_data as paper
from experiments.papers.fedrecon_data import ACCURACY, RMSE
from experiments.papers.jobs import Job, share_trainings
from experiments.papers.reproduction import Reproduction, Row, choose_rows, lines_of
from experiments.papers.table import (
    DIFFERENCES,
    Cell,
    Column,
    Line,
    Report,
    Table,
    behind,
    figure,
)
from fedpersonal.data.ratings import Ratings
from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.options import Value
from fedpersonal.tasks.options import TableOptions
from fedpersonal.tasks.ratings.guesses import guess_ratings, score_guess
from fedpersonal.tasks.ratings.task import TASK

METRICS = {
    RMSE: ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt),
    ACCURACY: ClientMetric("accuracy_after", scale=100.0),
}


def table1(asked: Reproduction) -> Report:
    """Runs what is missing, and returns the table."""
    rows = choose_rows(paper.RATING_ROWS, asked.rows, table="table 1")
    source = asked.read(TASK, paper.FED_RECON.preset)
    jobs = {row: own for row, own in _jobs(asked).items() if row in rows}
    edge = _edge_jobs(asked) if paper.CENTRALIZED in rows else {}
    asked.complete(source, *jobs.values(), *edge.values())
    parts: list[str | Table] = [
        f"# Table 1 on {about_ratings(source)}\n\n{asked.seeds_in_words().capitalize()}. "
        f"{paper.ABOUT_RATINGS}",
        DIFFERENCES,
    ]
    split = "the last ones by time" if source.times is not None else paper.NO_TIMES
    for on, reference in (("unseen", paper.FED_RECON), ("seen", paper.FED_RECON_SEEN)):
        lines = lines_of({row: own for row, own in jobs.items() if _on(row) == on})
        if lines:
            lines += guess_lines(asked, source, paper.FED_RECON.preset, evaluate_on=on)
            columns = [
                *rating_columns(),
                Column(paper.BEFORE, _before, 3),
                behind(paper.BEHIND, lines, reference.name, METRICS[RMSE], digits=3),
                behind(paper.LESS, lines, reference.name, METRICS[ACCURACY]),
            ]
            caption = paper.RATING_CAPTIONS[on].format(split=split)
            parts.append(Table.of(on, (lines, columns), caption=caption))
    if edge:
        parts.append(_edge_table(edge))
    seen = {row: own for row, own in jobs.items() if _on(row) == "seen"}
    if seen:
        parts.append(_split_table(asked, source, seen))
    return Report("table1", asked.seeds, parts, facts={"data": source.describe()})


def about_ratings(ratings: Ratings) -> str:
    """Returns the data's name, and plainly whether they are the paper's."""
    is_papers = ratings.name == "movielens-1m"
    return ratings.name + ("" if is_papers else " (a stand-in: the paper's are MovieLens-1M's)")


def rating_columns(note: str = "") -> list[Column]:
    """Returns the columns of RMSE and accuracy, whose titles end in the note."""
    return [
        figure(f"{RMSE}{note}", "test", "rmse", digits=3, metric=METRICS[RMSE]),
        figure(f"{ACCURACY}{note}", "test", "accuracy", scale=100, metric=METRICS[ACCURACY]),
    ]


def guess_lines(asked: Reproduction, source: Ratings, preset: str, **own: Value) -> list[Line]:
    """Returns the lines of guesses without any training.

    Args:
        asked: What is asked.
        source: The ratings.
        preset: The preset that splits them.
        **own: Options of the split.
    """
    tables: dict[str, list[pd.DataFrame]] = {}
    for data in asked.splits(TASK, source, preset, **own):
        query = data.test.query
        for name, predictions in guess_ratings(data, data.test).items():
            found = score_guess(query, predictions).clients
            table = {"client": query.client_ids, "num_examples": query.counts}
            clients = pd.DataFrame({**table, **{f"{n}_after": v for n, v in found.items()}})
            tables.setdefault(f"Guess: {name}", []).append(clients)
    return [Line(name, guess=of_seeds) for name, of_seeds in tables.items()]


def _on(row: Row) -> str:
    return str(row.values["evaluate_on"])


def _jobs(asked: Reproduction) -> dict[Row, list[Job]]:
    """Returns the jobs of every row, whichever are wanted: some share their training."""
    # Else a preset that trains on all ratings would be tested on others than FedRecon.
    most = asked.values(TASK, paper.FED_RECON.preset)["max_ratings_per_user"]
    by_row = {}
    for row in paper.RATING_ROWS:
        folder = row.name.lower().replace(" + ", "_").replace(" ", "_")
        folder = "".join(c for c in folder if c not in ":()")
        own = {**row.values, "max_ratings_per_user": most} if _on(row) == "unseen" else row.values
        by_row[row] = asked.jobs(TASK, dataclasses.replace(row, values=own), folder)
    return share_trainings(by_row)


def _before(line: Line) -> Cell | None:
    """Returns the error before personalisation, of a line that does personalise."""
    tests = [job.summary["test"] for job in line.jobs]
    before = tuple(test["before"].get("rmse") for test in tests)
    is_personalised = before != tuple(test["rmse"] for test in tests)
    return Cell(before) if tests and is_personalised else None


def _edge_jobs(asked: Reproduction) -> dict[Row, list[Job]]:
    """Returns the jobs by the rate of rebuilding; those of a seed share their training."""
    by_rate = {}
    for rate in paper.RATES:
        values = {"l2": 0.0, "total_rounds": 6, "reconstruction_learning_rate": rate}
        draws = {"test_draws": paper.DRAWS, "clients_per_draw": paper.CLIENTS_PER_DRAW}
        row = Row(f"rebuilding at {rate:.2f}", paper.CENTRAL, {**values, **draws})
        by_rate[row] = asked.jobs(TASK, row, f"edge_of_stability/rate_{rate:.2f}")
    return share_trainings(by_rate)


def _edge_table(jobs: Mapping[Row, Sequence[Job]]) -> Table:
    def of_draws(line: Line) -> Cell:
        draws = [job.summary["draws"]["rmse"] for job in line.jobs]
        deviation = statistics.mean(draw["sd"] for draw in draws)
        return Cell(tuple(draw["mean"] for draw in draws), deviation=deviation)

    columns = [
        *rating_columns(),
        Column(f"{RMSE}, {paper.DRAWS} draws", of_draws, 2),
        figure("hurt %", "test", "share_hurt", scale=100),
    ]
    return Table.of("edge_of_stability", (lines_of(jobs), columns), caption=paper.EDGE_CAPTION)


def _split_table(asked: Reproduction, source: Ratings, seen: Mapping[Row, Sequence[Job]]) -> Table:
    """Returns what it is worth to be tested on random ratings, not the last ones by time.

    Args:
        asked: What is asked.
        source: The ratings; MovieLens-100K stands in for them if they have no times.
        seen: Rows of seen users, with their jobs on these ratings.
    """
    preset = paper.FED_RECON.preset
    # Where there are times, the jobs that there are split by them.
    by_split = {("time", row): own for row, own in seen.items()}
    if source.times is None:
        where = {*TableOptions.declarations(), "ratings_file", "item_column", "rating_column"}
        given = {name: value for name, value in asked.given.items() if name not in where}
        asked = asked.replace(given={**given, "dataset": "movielens_100k"})
        source, by_split = asked.read(TASK, preset), {}
    splits = ("time", "random")
    for split in splits:
        for row in [row for row in seen if (split, row) not in by_split]:
            folder = f"time_split/{split}/{row.preset}_{row.values.get('method', 'own')}"
            note = f" on {source.name}, split by {split}"
            by_split[split, row] = asked.jobs(TASK, row, folder, note=note, split_by=split)
    jobs = share_trainings(by_split)
    asked.complete(source, *jobs.values())
    rows, guesses = [], []
    for split in splits:
        columns = rating_columns(f", {split}")
        rows.append(([Line(row.name, jobs[split, row]) for row in seen], columns))
        found = guess_lines(asked, source, preset, evaluate_on="seen", split_by=split)
        guesses.append((found, columns))
    caption = paper.SPLIT_CAPTION.format(name=source.name)
    return Table.of("time_split", *rows, *guesses, caption=caption)
