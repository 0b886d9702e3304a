"""What differential privacy costs: errors of unseen users of MovieLens-1M against epsilon."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.papers.fedrecon_data import RMSE
from experiments.papers.jobs import Job
from experiments.papers.picture import draw
from experiments.papers.ratings import guess_lines, rating_columns
from experiments.papers.reproduction import Reproduction, Row, choose_rows, lines_of
from experiments.papers.table import Cells, Report, Table, constant
from fedpersonal.options import Value
from fedpersonal.tasks.ratings.task import TASK
from fedpersonal.training.budget import PrivacyBudget

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

PAPER, BEST, PRIVATE = "movielens_paper", "movielens_best", "movielens_private"
EPSILONS = (8, 4, 2, 1)
MANY = 1_000_000
NOISE, OF_MANY = "noise multiplier", f"epsilon of {MANY:,} users (extrapolated)"
# The server's rates by epsilon, chosen as the preset: the less noise, the higher.
_RATES = {math.inf: 96.0, 8: 48.0, 4: 36.0, 2: 18.0, 1: 12.0}
# Lines so many times as high as the least error are named below the picture.
_OFF_SCALE = 1.4
_ABOUT = f"""\
Test users take no part in training. Epsilon is of one user added or removed, where nobody knows
which users were drawn: both noise and draw follow from a secret. Metrics and the choice of
hyperparameters are outside it. {PAPER} and {BEST} are as they are without privacy, but for 300
rounds, uniform weights, Poisson sampling and, where private, a bound on updates: 0.1 for the one,
which adaptive clipping lets diverge, and adaptive for the other.
{PRIVATE} is tuned for small bounds."""
_EXTRAPOLATED = f"""\
The last column is extrapolated, not measured: what the same rounds would spend with {MANY:,}
training users, drawn at the same rate, with the same noise in the mean of their updates. It assumes
that users are alike. "Clipping alone" is what ever more users come near to at any epsilon."""


def _row(preset: str, what: str, **values: Value) -> Row:
    settled: dict[str, Value] = {"dp_target_epsilon": None, "client_sampling": "poisson", **values}
    if preset != PRIVATE:
        settled.update(total_rounds=300, weighting="uniform")
    return Row(f"{preset}: {what}", preset, settled)


def _private_row(preset: str, epsilon: int) -> Row:
    own: dict[str, Value] = {"dp_target_epsilon": float(epsilon), "dp_noise": "secret"}
    if preset == PAPER:  # With adaptive clipping it diverges.
        own["dp_clipping"] = "fixed"
    if preset == PRIVATE:
        own["server_learning_rate"] = _RATES[epsilon]
    return _row(preset, f"epsilon {epsilon}", **own)


CLIPPED = _row(
    PRIVATE,
    "clipping alone",
    dp_noise_multiplier=0.0,
    dp_noise="seeded",
    server_learning_rate=_RATES[math.inf],
)
# Shares the run, not its training.
UNTRAINED = dataclasses.replace(CLIPPED, name=f"{PRIVATE}: no training")
OPEN = {preset: _row(preset, "no privacy", dp_delta=None) for preset in (PAPER, BEST)}
AT = {p: {e: _private_row(p, e) for e in EPSILONS} for p in (PAPER, BEST, PRIVATE)}
ROWS = (
    UNTRAINED,
    *(row for preset in OPEN for row in (OPEN[preset], *AT[preset].values())),
    CLIPPED,
    *AT[PRIVATE].values(),
)


def run(asked: Reproduction) -> Report:
    """Runs what is missing, draws the picture, and returns the table."""
    rows = choose_rows(ROWS, asked.rows, table="dp_table")
    source = asked.read(TASK, PRIVATE)
    jobs = {row: _jobs(asked, row) for row in rows}
    asked.complete(source, *jobs.values())
    guesses = guess_lines(asked, source, PRIVATE)
    noise = [
        constant(NOISE, lambda job: _of_noise(job).get("noise_multiplier"), digits=2),
        constant(OF_MANY, _epsilon_of_many, digits=3),
    ]
    blocks = [(lines_of(jobs), [*rating_columns(), *noise]), (guesses, rating_columns())]
    table = Table.of("test", *blocks)
    if any(row in jobs for by_epsilon in AT.values() for row in by_epsilon.values()):
        _draw(asked, source.name, table)
    heading = f"# What differential privacy costs on {source.name}\n\n{_ABOUT}"
    words = f"{asked.seeds_in_words().capitalize()}."
    parts: list[str | Table] = [heading, words, table, _EXTRAPOLATED]
    return Report("dp_table", asked.seeds, parts, facts={"data": source.describe()})


def untrained(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Tests initial weights in place of those trained, beside the guesses."""
    from fedpersonal.evaluation.guess import overall
    from fedpersonal.runs.tested import summarize

    with experiment.trainer.untrained() as initial:
        test = summarize(job.task.test(experiment, initial))
    guesses = overall(job.task.guesses(experiment, experiment.data.test))
    return {
        "method": job.options.method,
        "rounds": 0,
        "test": {**test, "guesses": guesses},
    }


def _jobs(asked: Reproduction, row: Row) -> list[Job]:
    """Returns a job a seed."""
    folder = row.name.replace(": ", "_").replace(" ", "_")
    if row is not UNTRAINED:
        return asked.jobs(TASK, row, folder)
    path = asked.output_dir / folder
    return [job.then(path, row.name, untrained) for job in _jobs(asked, CLIPPED)]


def _of_noise(job: Job) -> Mapping[str, Any]:
    """Returns what a summary says of privacy, the same for all seeds; nothing without noise."""
    privacy = job.summary.get("privacy") or {}
    return privacy if privacy.get("noise_multiplier") else {}


def _epsilon_of_many(job: Job) -> float | None:
    privacy = _of_noise(job)
    return epsilon_of_many(privacy, delta=job.options.dp_delta) if privacy else None


def epsilon_of_many(privacy: Mapping[str, Any], *, delta: float | None) -> float:
    """Returns what `MANY` users would spend at the rate and the noise in the mean of a job.

    Args:
        privacy: The entry in the job's summary.
        delta: As of `PrivacyBudget`, for so many users.
    """
    times = MANY / privacy["num_clients"]
    return PrivacyBudget(
        num_clients=MANY,
        clients_per_round=round(times * privacy["clients_per_round"]),
        sampling="poisson",
        noise_multiplier=times * privacy["noise_multiplier"],
        delta=delta,
    ).epsilon(privacy["rounds"])


def _draw(asked: Reproduction, data: str, table: Table) -> None:
    errors = {name: row[RMSE] for name, row in table.cells.items()}
    lines: Cells = {
        preset: {e: errors[row.name] for e, row in by_epsilon.items() if row.name in errors}
        for preset, by_epsilon in AT.items()
    }
    levels = [row.name for row in (UNTRAINED, *OPEN.values(), CLIPPED) if row.name in errors]
    draw(
        [Table("rmse", lines)],
        asked.output_dir / "dp_table.png",
        title=f"User-level differential privacy on {data}",
        x_label="epsilon",
        y_label="RMSE of unseen users",
        baselines=[(name, errors[name].mean) for name in levels],
        off_scale=_OFF_SCALE,
    )
