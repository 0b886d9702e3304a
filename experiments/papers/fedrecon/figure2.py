"""Figure 2 of the FedRecon paper: accuracy by the parameters that all clients have communicated."""

from __future__ import annotations

from experiments.papers.communication import measure_communication
from experiments.papers.fedrecon.table2 import METRIC, ROWS, TASK, VOCAB_SIZES, make_plan
from experiments.papers.result_picture import draw
from experiments.papers.result_table import Cell, Report, ResultTable
from experiments.papers.runs import Run
from experiments.papers.sweep import Sweep

TASKS = (TASK,)
_ALGORITHMS = (("fed_yogi", 1), ("fed_recon", 500), ("embedding_finetuning", 500))
CURVES = tuple(row for row in ROWS if tuple(row.values.values()) in _ALGORITHMS)
_UNITS = (("billions", 1e9), ("millions", 1e6), ("thousands", 1e3))
# Of the table: where accuracies are compared, as shares of what the least talkative curve sends.
_COMPARED_AT = (0.1, 0.25, 0.5, 1.0)


def run(sweep: Sweep) -> Report:
    """Runs what is missing of table 2, draws the curves, and returns them as a table."""
    plan = make_plan(sweep, CURVES, sweep.vocab_sizes or VOCAB_SIZES)
    # Of those asked for the first one; else the largest that there are words for.
    size = plan.vocab_sizes[0 if sweep.vocab_sizes else -1]
    runs = {row.name: plan.runs[row.name, size] for row in CURVES}
    plan.of_size(size).complete()
    curves = {name: _curve(own) for name, own in runs.items()}
    least = min(max(curve) for curve in curves.values())
    unit, scale = next((u for u in _UNITS if least >= u[1]), _UNITS[-1])
    points = {
        name: {x / scale: cell for x, cell in curve.items()} for name, curve in curves.items()
    }
    picture = ResultTable("points", points)
    draw(
        [picture],
        sweep.output_dir / "figure2.png",
        title=f"{plan.source.name}, {size:,} words",
        x_label=f"parameters communicated by all clients together ({unit})",
        y_label="validation accuracy (%)",
    )
    compared = {
        name: {f"{share * least / scale:.3g} {unit}": cell for share in _COMPARED_AT
               for cell in _reached(curve, share * least)}
        for name, curve in curves.items()
    }  # fmt: skip
    caption = (
        "Accuracy in per cent on the validation users, out-of-vocabulary and end-of-sentence "
        "targets not counted, once all clients together have communicated so many parameters:"
    )
    parts = [plan.heading(f"Figure 2, {size:,} words,"), ResultTable("reached", compared, caption)]
    facts = {"data": plan.source.describe(), "preset": plan.sweep.preset, "unit": unit}
    return Report("figure2", sweep.seeds, parts, hidden=[picture], facts=facts)


def _curve(runs: list[Run]) -> dict[float, Cell]:
    """Returns parameters that have been communicated to validation accuracy, a value a seed."""
    (local_layer,) = TASK.layers.embedding
    records = [run.trainer.record for run in runs]
    sent = measure_communication(records[0], local_layer=local_layer).parameters
    metrics = [record.metrics.set_index("round") for record in records]
    accuracy = [100 * table[f"eval/{METRIC}"].dropna() for table in metrics]
    options, known = runs[0].trainer.options, records[0].summary["num_training_clients"]
    a_round = sent * min(options.clients_per_round, known)
    return {
        float(a_round * number): Cell(tuple(own[number] for own in accuracy))
        for number in accuracy[0].index
    }


def _reached(curve: dict[float, Cell], parameters: float) -> list[Cell]:
    """Returns the last point that is not beyond so many parameters, if there is one."""
    return [cell for x, cell in curve.items() if x <= parameters * (1 + 1e-9)][-1:]
