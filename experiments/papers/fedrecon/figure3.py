"""Figure 3 of the FedRecon paper: accuracy by the number of reconstruction and update steps.

The number holds for training and for evaluation, with the rounds fixed. Accuracies are shares of
the accuracy with the usual options, the base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from experiments.papers.fedrecon import table1
from experiments.papers.fedrecon.table2 import METRIC, ROWS, TASK, make_plan, short_size
from experiments.papers.reproduction import Reproduction, Row
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Cells, Report, ResultTable, over_seeds
from experiments.papers.runs import Run, complete
from fedpersonal.errors import UserError
from fedpersonal.options import Value
from fedpersonal.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class Panel:
    """One half of the figure.

    Attributes:
        title: What is varied.
        steps: The numbers of steps.
        options: The option of passes over the data, and the one that bounds their steps.
    """

    title: str
    steps: tuple[int, ...]
    options: tuple[str, str]


PANELS = (
    Panel(
        "reconstruction steps",
        (0, 1, 2, 5, 10),
        ("reconstruction_epochs", "max_reconstruction_steps"),
    ),
    Panel("client update steps", (1, 2, 5, 10), ("local_epochs", "max_local_steps")),
)
_ROW = next(row for row in ROWS if row.name == "FedRecon (500 OOV)")
_RATINGS = Row("Ratings", table1.FED_RECON.preset, {})


@dataclasses.dataclass(frozen=True)
class Line:
    """A line in both panels.

    Attributes:
        name: What it is of.
        metric: The accuracy's name.
        base: The runs with the usual options, one a seed.
        varied: By panel's title and number of steps: the same.
    """

    name: str
    metric: str
    base: Sequence[Run]
    varied: Mapping[tuple[str, int], Sequence[Run]]

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for runs in (self.base, *self.varied.values()) for run in runs]

    def relative(self, panel: Panel, steps: int) -> Cell[float]:
        """Returns accuracies in per cent of the base's with the same seed."""
        bases = over_seeds(self.base, "test", self.metric).values
        if min(bases) <= 0:
            raise UserError(
                f"{self.name}: the base run predicts nothing right, so there is nothing to compare "
                "with; run more rounds."
            )
        found = over_seeds(self.varied[panel.title, steps], "test", self.metric).values
        return Cell(tuple(100 * own / base for own, base in zip(found, bases)))


def run(asked: Reproduction) -> Report:
    """Runs what is missing, draws the figure, and returns its numbers."""
    plan = make_plan(asked, [_ROW])
    words = []
    for size, runs in plan.runs.items():
        varied = _vary(plan.asked, TASK, _ROW, f"vocab_{size}", vocab_size=size)
        words.append(Line(f"{short_size(size)} words", METRIC, runs[_ROW.name], varied))
    # A folder of sentences has no ratings.
    given = {"data_dir": asked.movielens_dir} if asked.movielens_dir else {}
    asked_ratings = asked.replace(given=given)
    ratings = asked_ratings.read(table1.TASK, _RATINGS.preset)
    base = asked_ratings.runs(table1.TASK, _RATINGS, "ratings/base")
    varied = _vary(asked_ratings, table1.TASK, _RATINGS, "ratings")
    lines = [*words, Line(ratings.name, "accuracy", base, varied)]
    complete(lines[-1].runs, ratings.describe(), isolated=asked.isolated)
    every = [run for line in words for run in line.runs]
    complete(every, plan.source.describe(), isolated=asked.isolated)

    bases: Cells = {
        line.name: {"accuracy, %": over_seeds(line.base, "test", line.metric, scale=100)}
        for line in lines
    }
    tables = []
    for panel in PANELS:
        cells: Cells = {
            line.name: {n: line.relative(panel, n) for n in panel.steps} for line in lines
        }
        name = panel.title.replace(" ", "_")
        tables.append(ResultTable(name, cells, f"By {panel.title}:"))
    draw(
        tables,
        asked.output_dir / "figure3.png",
        title=f"FedRecon on {plan.source.name} and {ratings.name}",
        x_label=[panel.title for panel in PANELS],
        y_label="accuracy, % of the base's",
        baselines=[("the base", 100.0)],
        share_y=True,
    )
    options = base[0].options
    parts: list[str | ResultTable] = [
        plan.heading("Figure 3"),
        f"Ratings: {table1.about_ratings(ratings)}, {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users.",
        *plan.notes,
        ResultTable("base", bases, "Accuracy with the usual numbers of steps, the base:"),
        f"Accuracy in per cent of the base's (of {plan.source.name}, targets that are out of "
        "vocabulary or the end of a sentence are not counted):",
        *tables,
    ]
    facts = {"data": plan.source.describe(), "ratings": ratings.name, "preset": plan.asked.preset}
    return Report("figure3", asked.seeds, parts, facts=facts)


def _vary(
    asked: Reproduction, task: Task, row: Row, folder: str, **own: Value
) -> Mapping[tuple[str, int], Sequence[Run]]:
    """Returns the runs with each panel's numbers of steps."""
    found = {}
    for panel in PANELS:
        for steps in panel.steps:
            path = f"{folder}/{panel.title.replace(' ', '_')}_{steps}"
            # As many passes suffice, since each has a step at least; 0 leave initial values.
            values = {**own, **dict(zip(panel.options, (steps, max(1, steps))))}
            note = f", {panel.title} {steps}"
            found[panel.title, steps] = asked.runs(task, row, path, note=note, **values)
    return found
