"""Figure 3 of the FedRecon paper: accuracy by the number of reconstruction and update steps.

The number holds for training and for evaluation, with the rounds fixed. Accuracies are shares of
the accuracy with the usual options, the base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.fedrecon import table1
from experiments.papers.fedrecon.table2 import (
    METRIC,
    ROWS,
    TASK,
    VOCAB_SIZES,
    make_plan,
    short_size,
)
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Report, ResultTable
from experiments.papers.runs import Run, complete
from experiments.papers.sweep import Row, Sweep
from fedpersonal.errors import UserError

TASKS = (TASK,)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One half of the figure.

    Attributes:
        title: What is varied.
        steps: The numbers of steps.
        epochs_option: The option of passes over the data.
        steps_option: The option that bounds their steps.
    """

    title: str
    steps: tuple[int, ...]
    epochs_option: str
    steps_option: str

    @property
    def name(self) -> str:
        """What is varied, as files are named."""
        return self.title.replace(" ", "_")

    def options(self, steps: int) -> dict[str, int]:
        """Returns the options that make every client take so many steps.

        As many passes suffice, since each has a step at least; 0 of them leave local variables at
        their initial values.
        """
        return {self.epochs_option: steps, self.steps_option: max(1, steps)}


PANELS = (
    Panel(
        "reconstruction steps",
        (0, 1, 2, 5, 10),
        "reconstruction_epochs",
        "max_reconstruction_steps",
    ),
    Panel("client update steps", (1, 2, 5, 10), "local_epochs", "max_local_steps"),
)
_ROW = next(row for row in ROWS if row.name == "FedRecon (500 OOV)")
_RATINGS = Row("Ratings", table1.FED_RECON.preset, {})

# What is varied and by how much, to runs that differ by their seed; None for the base.
Varied = Mapping[Any, Sequence[Run]]


def run(sweep: Sweep) -> Report:
    """Runs what is missing, draws the figure, and returns its numbers."""
    plan = make_plan(sweep, [_ROW], sweep.vocab_sizes or VOCAB_SIZES)
    words = {
        f"{short_size(size)} words": {
            None: plan.runs[_ROW.name, size],
            **_vary(plan.sweep, TASK, _ROW, f"vocab_{size}", vocab_size=size),
        }
        for size in plan.vocab_sizes
    }
    # A folder of sentences has no ratings.
    movielens = {"data_dir": sweep.movielens_dir} if sweep.movielens_dir else {}
    on_ratings = sweep.replace(given=movielens)
    ratings = on_ratings.read(table1.TASK, _RATINGS.preset)
    base = {None: on_ratings.runs(table1.TASK, _RATINGS, "ratings/base", note=", base")}
    of_ratings = {**base, **_vary(on_ratings, table1.TASK, _RATINGS, "ratings")}
    for source, every in ((ratings, [of_ratings]), (plan.source, words.values())):
        runs = [run for varied in every for own in varied.values() for run in own]
        complete(runs, source.describe(), isolated=sweep.isolated)

    bases, shares = {}, {panel: {} for panel in PANELS}
    for name, varied, metric in (
        *((name, varied, METRIC) for name, varied in words.items()),
        (ratings.name, of_ratings, "accuracy"),
    ):
        found = {key: [run.summary["test"][metric] for run in runs] for key, runs in varied.items()}
        bases[name] = {"accuracy, %": Cell(tuple(100 * value for value in found[None]))}
        for panel in PANELS:
            shares[panel][name] = {
                steps: _relative(name, found[panel, steps], found[None]) for steps in panel.steps
            }
    tables = [ResultTable(panel.name, shares[panel], f"By {panel.title}:") for panel in PANELS]
    title = f"FedRecon on {plan.source.name} and {ratings.name}"
    draw(
        tables,
        sweep.output_dir / "figure3.png",
        title=title,
        x_label=[panel.title for panel in PANELS],
        y_label="accuracy, % of the base's",
        baselines=[("the base", 100.0)],
        share_y=True,
    )
    options = of_ratings[None][0].options
    parts = [
        plan.heading("Figure 3"),
        f"Ratings: {table1.about_ratings(ratings)}, {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users.",
        *plan.notes,
        ResultTable("base", bases, "Accuracy with the usual numbers of steps, the base:"),
        f"Accuracy in per cent of the base's (of {plan.source.name}, targets that are out of "
        "vocabulary or the end of a sentence are not counted):",
        *tables,
    ]
    facts = {"data": plan.source.describe(), "ratings": ratings.name, "preset": plan.sweep.preset}
    return Report("figure3", sweep.seeds, parts, facts=facts)


def _vary(sweep: Sweep, task: Any, row: Row, folder: str, **own: int) -> Varied:
    """Returns the runs with each panel's numbers of steps."""
    return {
        (panel, steps): sweep.runs(
            task,
            row,
            f"{folder}/{panel.name}_{steps}",
            note=f", {panel.title} {steps}",
            **own,
            **panel.options(steps),
        )
        for panel in PANELS
        for steps in panel.steps
    }


def _relative(name: str, accuracies: Sequence[float], bases: Sequence[float]) -> Cell:
    """Returns accuracies in per cent of the base's with the same seed."""
    if min(bases) <= 0:
        raise UserError(
            f"{name}: the base run predicts nothing right, so there is nothing to compare with; "
            "run more rounds."
        )
    return Cell(tuple(100 * own / base for own, base in zip(accuracies, bases)))
