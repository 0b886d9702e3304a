"""Figure 2 of the FedRecon paper: accuracy by the parameters that all clients have communicated."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.papers.fedrecon.table2 import METRIC, ROWS, communication, make_plan, short_size
from experiments.papers.reproduction import Reproduction
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Cells, Report, ResultTable
from experiments.papers.runs import Run

_ALGORITHMS = (("fed_yogi", 1), ("fed_recon", 500), ("embedding_finetuning", 500))
CURVES = tuple(row for row in ROWS if tuple(row.values.values()) in _ALGORITHMS)
_UNITS = (("billions", 1e9), ("millions", 1e6), ("thousands", 1e3))
# Of the table: where accuracies are compared, as shares of what the least talkative curve sends.
_COMPARED_AT = (0.1, 0.25, 0.5, 1.0)
_CAPTION = (
    "Accuracy in per cent on the validation users, out-of-vocabulary and end-of-sentence targets "
    "not counted, once all clients together have communicated so many parameters:"
)


def run(asked: Reproduction) -> Report:
    """Runs what is missing of table 2, draws the curves, and returns them as a table."""
    plan = make_plan(asked, CURVES)
    # Of those asked for the first one; else the largest that there are words for.
    size = list(plan.runs)[0 if asked.vocab_sizes else -1]
    plan.complete(size)
    curves = {name: _curve(runs) for name, runs in plan.runs[size].items()}
    least = min(max(curve) for curve in curves.values())
    unit, scale = next((unit for unit in _UNITS if least >= unit[1]), _UNITS[-1])
    points: Cells = {
        name: {x / scale: c for x, c in curve.items()} for name, curve in curves.items()
    }
    picture = ResultTable("points", points)
    draw(
        [picture],
        asked.output_dir / "figure2.png",
        title=f"{plan.source.name}, {size:,} words",
        x_label=f"parameters communicated by all clients together ({unit})",
        y_label="validation accuracy (%)",
    )
    reached: Cells = {name: {} for name in curves}
    for name, curve in curves.items():
        for share in _COMPARED_AT:
            x = share * least / scale
            # The last point that is not beyond.
            for cell in [cell for at, cell in curve.items() if at / scale <= x * (1 + 1e-9)][-1:]:
                reached[name][f"{x:.3g} {unit}"] = cell
    facts = {"data": plan.source.describe(), "preset": plan.asked.preset, "unit": unit}
    heading = plan.heading(f"Figure 2 for {short_size(size)} words")
    table = ResultTable("reached", reached, _CAPTION)
    return Report("figure2", asked.seeds, [heading, table], hidden=[picture], facts=facts)


def _curve(runs: Sequence[Run]) -> dict[float, Cell]:
    """Returns parameters that have been communicated to validation accuracy, a value a seed."""
    trainers = [run.trainer for run in runs]
    tables = [run.record.metrics.set_index("round")[f"eval/{METRIC}"].dropna() for run in trainers]
    users = trainers[0].summary["num_training_clients"]
    _, numbers, _ = communication(trainers[0])
    a_round = numbers * min(trainers[0].options.clients_per_round, users)
    return {float(a_round * n): Cell(tuple(100 * t[n] for t in tables)) for n in tables[0].index}
