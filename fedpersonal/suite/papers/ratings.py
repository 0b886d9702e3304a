"""Table 1 of the FedRecon paper (Singhal et al., section 5.2): MovieLens matrix factorization.

The tables also have further methods and baselines, on the same ratings of the same users.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fedpersonal.evaluation.client_metrics import ClientMetric
from fedpersonal.options import Value
from fedpersonal.suite.papers import fedrecon_data as paper
from fedpersonal.suite.papers.fedrecon_data import ACCURACY, RMSE
from fedpersonal.suite.papers.jobs import Job, share_trainings
from fedpersonal.suite.papers.reproduction import Reproduction, Row, choose_rows, lines_of
from fedpersonal.suite.papers.table import (
    DIFFERENCES,
    Cell,
    Column,
    Line,
    Report,
    Table,
    behind,
    figure,
)
from fedpersonal.suite.readers.ratings import Ratings
from fedpersonal.suite.tasks.options import TableOptions
from fedpersonal.suite.tasks.ratings.baselines import predict_baselines, score_baseline
from fedpersonal.suite.tasks.ratings.task import TASK

METRICS = {
    RMSE: ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt),
    ACCURACY: ClientMetric("accuracy_after", scale=100.0),
}


def table1(request: Reproduction) -> Report:
    """Runs the missing runs, and returns the table."""
    rows = choose_rows(paper.RATING_ROWS, request.rows, table="table 1")
    source = request.read(TASK, paper.FED_RECON.preset)
    jobs = {row: row_jobs for row, row_jobs in _jobs(request).items() if row in rows}
    edge = _edge_jobs(request) if paper.CENTRALIZED in rows else {}
    request.complete(source, *jobs.values(), *edge.values())
    parts: list[str | Table] = [
        f"# Table 1 on {about_ratings(source)}\n\n{request.seeds_in_words().capitalize()}. "
        f"{paper.ABOUT_RATINGS}",
        DIFFERENCES,
    ]
    split = "the last ones by time" if source.times is not None else paper.NO_TIMES
    for on, reference in (("unseen", paper.FED_RECON), ("seen", paper.FED_RECON_SEEN)):
        lines = lines_of({row: row_jobs for row, row_jobs in jobs.items() if _on(row) == on})
        if lines:
            lines += baseline_lines(request, source, paper.FED_RECON.preset, evaluate_on=on)
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
    seen = {row: row_jobs for row, row_jobs in jobs.items() if _on(row) == "seen"}
    if seen:
        parts.append(_split_table(request, source, seen))
    return Report("table1", request.seeds, parts, facts={"data": source.describe()})


def about_ratings(ratings: Ratings) -> str:
    """Returns the name of the data set, with a note if it is not the paper's."""
    is_papers = ratings.name == "movielens-1m"
    return ratings.name + ("" if is_papers else " (a substitute: the paper has MovieLens-1M)")


def rating_columns(note: str = "") -> list[Column]:
    """Returns the columns of RMSE and accuracy, with a note at the end of their titles."""
    return [
        figure(f"{RMSE}{note}", "test", "rmse", digits=3, metric=METRICS[RMSE]),
        figure(f"{ACCURACY}{note}", "test", "accuracy", scale=100, metric=METRICS[ACCURACY]),
    ]


def baseline_lines(
    request: Reproduction, source: Ratings, preset: str, **options: Value
) -> list[Line]:
    """Returns the lines of baselines.

    Args:
        request: The request.
        source: The ratings.
        preset: The preset that splits the ratings.
        **options: Options of the split.
    """
    tables: dict[str, list[pd.DataFrame]] = {}
    for data in request.splits(TASK, source, preset, **options):
        query = data.test.query
        for name, predictions in predict_baselines(data, data.test).items():
            metrics = score_baseline(query, predictions).clients
            table = {"client": query.client_ids, "num_examples": query.counts}
            clients = pd.DataFrame({**table, **{f"{n}_after": v for n, v in metrics.items()}})
            tables.setdefault(f"Baseline: {name}", []).append(clients)
    return [Line(name, baseline=by_seed) for name, by_seed in tables.items()]


def _on(row: Row) -> str:
    return str(row.values["evaluate_on"])


def _jobs(request: Reproduction) -> dict[Row, list[Job]]:
    """Returns the jobs of all rows, since rows that are not requested may share their training."""
    # Without it, presets that train on all ratings would be tested on other ratings than FedRecon.
    most = request.values(TASK, paper.FED_RECON.preset)["max_ratings_per_user"]
    by_row = {}
    for row in paper.RATING_ROWS:
        folder = row.name.lower().replace(" + ", "_").replace(" ", "_")
        folder = "".join(c for c in folder if c not in ":()")
        values = row.values
        if _on(row) == "unseen":
            values = {**values, "max_ratings_per_user": most}
        by_row[row] = request.jobs(TASK, dataclasses.replace(row, values=values), folder)
    return share_trainings(by_row)


def _before(line: Line) -> Cell | None:
    """Returns the error before personalisation; None for a line without personalisation."""
    tests = [job.summary["test"] for job in line.jobs]
    before = tuple(test["before"].get("rmse") for test in tests)
    is_personalised = before != tuple(test["rmse"] for test in tests)
    return Cell(before) if tests and is_personalised else None


def _edge_jobs(request: Reproduction) -> dict[Row, list[Job]]:
    """Returns the jobs by the learning rate of rebuilding; jobs of a seed share their training."""
    by_rate = {}
    for rate in paper.RATES:
        values = {"l2": 0.0, "total_rounds": 6, "reconstruction_learning_rate": rate}
        samples = {"test_draws": paper.SAMPLES, "clients_per_draw": paper.CLIENTS_PER_SAMPLE}
        row = Row(f"rebuilding at {rate:.2f}", paper.CENTRAL, {**values, **samples})
        by_rate[row] = request.jobs(TASK, row, f"edge_of_stability/rate_{rate:.2f}")
    return share_trainings(by_rate)


def _edge_table(jobs: Mapping[Row, Sequence[Job]]) -> Table:
    def over_samples(line: Line) -> Cell:
        entries = [job.summary["draws"]["rmse"] for job in line.jobs]
        deviation = statistics.mean(entry["sd"] for entry in entries)
        return Cell(tuple(entry["mean"] for entry in entries), deviation=deviation)

    columns = [
        *rating_columns(),
        Column(f"{RMSE}, {paper.SAMPLES} samples", over_samples, 2),
        figure("worse %", "test", "share_hurt", scale=100),
    ]
    return Table.of("edge_of_stability", (lines_of(jobs), columns), caption=paper.EDGE_CAPTION)


def _split_table(
    request: Reproduction, source: Ratings, seen: Mapping[Row, Sequence[Job]]
) -> Table:
    """Returns the table that compares tests on random ratings with tests on the last ones by time.

    Args:
        request: The request.
        source: The ratings; MovieLens-100K replaces them if they have no times.
        seen: Rows of seen users, with their jobs on these ratings.
    """
    preset = paper.FED_RECON.preset
    # With times, the existing jobs are those of the split by time.
    by_split = {("time", row): row_jobs for row, row_jobs in seen.items()}
    if source.times is None:
        table = {*TableOptions.declarations(), "ratings_file", "item_column", "rating_column"}
        options = {name: value for name, value in request.options.items() if name not in table}
        request = request.replace(options={**options, "dataset": "movielens_100k"})
        source, by_split = request.read(TASK, preset), {}
    splits = ("time", "random")
    for split in splits:
        for row in [row for row in seen if (split, row) not in by_split]:
            folder = f"time_split/{split}/{row.preset}_{row.values.get('method', 'own')}"
            note = f" on {source.name}, split by {split}"
            by_split[split, row] = request.jobs(TASK, row, folder, note=note, split_by=split)
    jobs = share_trainings(by_split)
    request.complete(source, *jobs.values())
    rows, baselines = [], []
    for split in splits:
        columns = rating_columns(f", {split}")
        rows.append(([Line(row.name, jobs[split, row]) for row in seen], columns))
        lines = baseline_lines(request, source, preset, evaluate_on="seen", split_by=split)
        baselines.append((lines, columns))
    caption = paper.SPLIT_CAPTION.format(name=source.name)
    return Table.of("time_split", *rows, *baselines, caption=caption)
