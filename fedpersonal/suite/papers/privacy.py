"""The cost of differential privacy: errors of unseen users of MovieLens-1M by epsilon."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedpersonal.options import Value
from fedpersonal.suite.papers.fedrecon_data import RMSE
from fedpersonal.suite.papers.jobs import Job
from fedpersonal.suite.papers.picture import draw
from fedpersonal.suite.papers.ratings import baseline_lines, rating_columns
from fedpersonal.suite.papers.reproduction import Reproduction, Row, choose_rows, lines_of
from fedpersonal.suite.papers.table import Cells, Report, Table, constant
from fedpersonal.suite.tasks.ratings.task import TASK
from fedpersonal.training.budget import PrivacyBudget

if TYPE_CHECKING:
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

PAPER, BEST, PRIVATE = "movielens_paper", "movielens_best", "movielens_private"
EPSILONS = (8, 4, 2, 1)
NUM_EXTRAPOLATED = 1_000_000
NOISE, EXTRAPOLATED_EPSILON = (
    "noise multiplier",
    f"epsilon of {NUM_EXTRAPOLATED:,} users (extrapolated)",
)
# The server's learning rates by epsilon, tuned like the preset: less noise allows a higher rate.
_RATES = {math.inf: 96.0, 8: 48.0, 4: 36.0, 2: 18.0, 1: 12.0}
# Lines whose figures all exceed the least error by this factor are named below the picture.
_OFF_SCALE = 1.4
_ABOUT = f"""\
Test users are unseen. Epsilon is for one user added or removed, if the sampled users stay secret:
both noise and sampling follow from a secret. Metrics and the choice of hyperparameters are not
covered. {PAPER} and {BEST} have their options without privacy, except for 300 rounds, uniform
weights, Poisson sampling and, with privacy, a bound on updates. The bound is 0.1 for {PAPER}, which
diverges with adaptive clipping, and adaptive for {BEST}.
{PRIVATE} is tuned for small bounds."""
_EXTRAPOLATED = f"""\
The last column is extrapolated, not measured: the epsilon of the same rounds with
{NUM_EXTRAPOLATED:,} training users, sampled at the same rate, with the same noise in the mean of
their updates. It assumes that users are alike.
"Clipping alone" is the limit for more and more users, at any epsilon."""


def _row(preset: str, name: str, **values: Value) -> Row:
    options: dict[str, Value] = {"dp_target_epsilon": None, "client_sampling": "poisson", **values}
    if preset != PRIVATE:
        options.update(total_rounds=300, weighting="uniform")
    return Row(f"{preset}: {name}", preset, options)


def _private_row(preset: str, epsilon: int) -> Row:
    options: dict[str, Value] = {"dp_target_epsilon": float(epsilon), "dp_noise": "secret"}
    if preset == PAPER:  # It diverges with adaptive clipping.
        options["dp_clipping"] = "fixed"
    if preset == PRIVATE:
        options["server_learning_rate"] = _RATES[epsilon]
    return _row(preset, f"epsilon {epsilon}", **options)


CLIPPED = _row(
    PRIVATE,
    "clipping alone",
    dp_noise_multiplier=0.0,
    dp_noise="seeded",
    server_learning_rate=_RATES[math.inf],
)
# It shares the run of CLIPPED, but evaluates initial weights.
UNTRAINED = dataclasses.replace(CLIPPED, name=f"{PRIVATE}: no training")
OPEN = {preset: _row(preset, "no privacy", dp_delta=None) for preset in (PAPER, BEST)}
AT = {p: {e: _private_row(p, e) for e in EPSILONS} for p in (PAPER, BEST, PRIVATE)}
ROWS = (
    UNTRAINED,
    *(row for preset in OPEN for row in (OPEN[preset], *AT[preset].values())),
    CLIPPED,
    *AT[PRIVATE].values(),
)


def run(request: Reproduction) -> Report:
    """Runs the missing runs, draws the picture, and returns the table."""
    rows = choose_rows(ROWS, request.rows, table="dp_table")
    source = request.read(TASK, PRIVATE)
    jobs = {row: _jobs(request, row) for row in rows}
    request.complete(source, *jobs.values())
    baselines = baseline_lines(request, source, PRIVATE)
    noise = [
        constant(NOISE, lambda job: _noise_entry(job).get("noise_multiplier"), digits=2),
        constant(EXTRAPOLATED_EPSILON, _extrapolated_epsilon, digits=3),
    ]
    blocks = [(lines_of(jobs), [*rating_columns(), *noise]), (baselines, rating_columns())]
    table = Table.of("test", *blocks)
    if any(row in jobs for by_epsilon in AT.values() for row in by_epsilon.values()):
        _draw(request, source.name, table)
    heading = f"# The cost of differential privacy on {source.name}\n\n{_ABOUT}"
    words = f"{request.seeds_in_words().capitalize()}."
    parts: list[str | Table] = [heading, words, table, _EXTRAPOLATED]
    return Report("dp_table", request.seeds, parts, facts={"data": source.describe()})


def untrained(job: Job, experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns a summary of initial weights, instead of trained ones, and of baselines."""
    from fedpersonal.evaluation.baselines import overall_metrics
    from fedpersonal.training.tested import summarize

    with experiment.trainer.untrained() as initial:
        test = summarize(job.task.test(experiment, initial))
    baselines = overall_metrics(job.task.baselines(experiment, experiment.data.test))
    return {
        "method": job.options.method,
        "rounds": 0,
        "test": {**test, "guesses": baselines},
    }


def _jobs(request: Reproduction, row: Row) -> list[Job]:
    """Returns the jobs of a row, one per seed."""
    folder = row.name.replace(": ", "_").replace(" ", "_")
    if row is not UNTRAINED:
        return request.jobs(TASK, row, folder)
    path = request.output_dir / folder
    return [job.followed_by(path, row.name, untrained) for job in _jobs(request, CLIPPED)]


def _noise_entry(job: Job) -> Mapping[str, Any]:
    """Returns a summary's entry on privacy, equal for all seeds; empty without noise."""
    privacy = job.summary.get("privacy") or {}
    return privacy if privacy.get("noise_multiplier") else {}


def _extrapolated_epsilon(job: Job) -> float | None:
    privacy = _noise_entry(job)
    return extrapolated_epsilon(privacy, delta=job.options.dp_delta) if privacy else None


def extrapolated_epsilon(privacy: Mapping[str, Any], *, delta: float | None) -> float:
    """Returns the epsilon of `NUM_EXTRAPOLATED` users by a job's sampling rate and noise.

    Args:
        privacy: The entry in the job's summary.
        delta: The delta for `NUM_EXTRAPOLATED` users, as for `PrivacyBudget`.
    """
    times = NUM_EXTRAPOLATED / privacy["num_clients"]
    return PrivacyBudget(
        num_clients=NUM_EXTRAPOLATED,
        clients_per_round=round(times * privacy["clients_per_round"]),
        sampling="poisson",
        noise_multiplier=times * privacy["noise_multiplier"],
        delta=delta,
    ).epsilon(privacy["rounds"])


def _draw(request: Reproduction, data: str, table: Table) -> None:
    errors = {name: row[RMSE] for name, row in table.cells.items()}
    lines: Cells = {
        preset: {e: errors[row.name] for e, row in by_epsilon.items() if row.name in errors}
        for preset, by_epsilon in AT.items()
    }
    levels = [row.name for row in (UNTRAINED, *OPEN.values(), CLIPPED) if row.name in errors]
    draw(
        [Table("rmse", lines)],
        request.output_dir / "dp_table.png",
        title=f"User-level differential privacy on {data}",
        x_label="epsilon",
        y_label="RMSE of unseen users",
        baselines=[(name, errors[name].mean) for name in levels],
        off_scale=_OFF_SCALE,
    )
