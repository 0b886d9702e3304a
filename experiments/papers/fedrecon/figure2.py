"""Figure 2 of the FedRecon paper: accuracy by the parameters that all clients have communicated."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import pandas as pd
from fedpersonal.tasks.next_word.choice import TextChoice
from matplotlib.figure import Figure

from experiments.papers.fedrecon.next_word_runs import complete
from experiments.papers.fedrecon.table2 import ROWS, VOCAB_SIZES, Plan, heading, make_plan
from experiments.papers.presets import Preset
from experiments.papers.sweep import as_github_table
from fedpersonal.atomic_files import write_csv, write_json, write_text
from fedpersonal.simulation.pictures import tidy_axes, write_picture

_ALGORITHMS = (("fed_yogi", 1), ("fed_recon", 500), ("oov_finetuning", 500))
CURVES = tuple(row for row in ROWS if (row.algorithm, row.num_oov_buckets) in _ALGORITHMS)
_COLORS = ("#5a6673", "#2f6db3", "#d1602b")
_UNITS = (("billions", 1e9), ("millions", 1e6), ("thousands", 1e3))
# Of the table: where accuracies are compared, as shares of what the least talkative curve sends.
_COMPARED_AT = (0.1, 0.25, 0.5, 1.0)


def run(
    choice: TextChoice,
    preset: Preset,
    output_dir: str,
    *,
    seeds: Sequence[int],
    vocab_size: int | None = None,
    scale_rounds: float = 1.0,
    runs_dir: str | None = None,
    isolated: bool = True,
) -> str:
    """Trains what is missing and writes `figure2.png`, `.csv`, `.md` and `.json`.

    Args:
        choice: The sentences.
        preset: The hyperparameters.
        output_dir: Receives the figure.
        seeds: Seeds to run each method with.
        vocab_size: The vocabulary; None for the largest of the paper's that there are words for.
        scale_rounds: Factor of the rounds.
        runs_dir: Holds the run folders, which are table 2's; None for `output_dir`.
        isolated: Whether each run has a process of its own.

    Returns:
        A table of the curves as Markdown.

    Raises:
        UserError: If a run diverges, its folder holds another one, or words are too few.
    """
    if vocab_size is None:
        known = choice.num_distinct_words(seeds)
        fitting = [size for size in VOCAB_SIZES if known is None or size <= known]
        vocab_size = max(fitting, default=min(VOCAB_SIZES))
    plan = make_plan(
        CURVES,
        choice,
        preset,
        runs_dir or output_dir,
        vocab_sizes=[vocab_size],
        seeds=seeds,
        scale_rounds=scale_rounds,
        with_tests=False,
    )
    complete(list(plan.runs.values()), choice, isolated=isolated)
    points = _points(plan, vocab_size)
    title = heading(f"Figure 2, {vocab_size:,} words,", choice, preset, plan)
    markdown = "\n\n".join(
        [
            title,
            "Accuracy in per cent on the validation users, out-of-vocabulary and end-of-sentence "
            "targets not counted, once all clients together have communicated so many parameters:",
            _as_table(points),
        ]
    )
    folder = pathlib.Path(output_dir)
    write_csv(folder / "figure2.csv", points.to_dict("records"))
    write_json(
        folder / "figure2.json",
        {
            "data": choice.describe(),
            "preset": preset.name,
            "seeds": list(seeds),
            "vocab_size": vocab_size,
            "points": points.to_dict("records"),
        },
    )
    write_text(folder / "figure2.md", markdown)
    plot(
        points,
        folder / "figure2.png",
        title=f"{choice.describe()['dataset']}, {vocab_size:,} words",
    )
    return markdown


def plot(points: pd.DataFrame, picture: str | os.PathLike, *, title: str) -> None:
    """Draws a curve for each method, the mean over seeds, in a band from the least to the most.

    Args:
        points: Columns `method`, `seed`, `parameters` and `accuracy`, in per cent.
        picture: The PNG file to write.
        title: Stands above.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    unit, size = _unit_of(points["parameters"].max())
    points = points.assign(parameters=points["parameters"] / size)
    for color, (method, own) in zip(_COLORS, points.groupby("method", sort=False)):
        at = own.groupby("parameters")["accuracy"]
        mean = at.mean()
        ax.plot(
            mean.index, mean, color=color, linewidth=1.8, marker="o", markersize=3, label=method
        )
        if own["seed"].nunique() > 1:
            ax.fill_between(mean.index, at.min(), at.max(), color=color, alpha=0.15, linewidth=0)
    ax.set_xlim(left=0)
    ax.set_xlabel(f"parameters communicated by all clients together ({unit})")
    ax.set_ylabel("validation accuracy (%)")
    ax.set_title(title, fontsize=12, fontweight="bold", loc="left")
    tidy_axes(ax)
    ax.legend(frameon=False, loc="lower right")
    write_picture(figure, picture)


def _points(plan: Plan, vocab_size: int) -> pd.DataFrame:
    parts = []
    for row in CURVES:
        for seed in plan.seeds:
            run = plan.runs[vocab_size, row.run_name, seed]
            curve = run.curve()
            a_round = run.training()["clients_per_round"] * run.communication().parameters
            parts.append(
                pd.DataFrame(
                    {
                        "method": row.name,
                        "seed": seed,
                        "round": curve["round"],
                        "parameters": a_round * curve["round"],
                        "accuracy": 100 * curve["accuracy"],
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def _as_table(points: pd.DataFrame) -> str:
    least = points.groupby("method")["parameters"].max().min()
    at = [share * least for share in _COMPARED_AT]
    rows = [
        [method, *(_accuracy_at(own, parameters) for parameters in at)]
        for method, own in points.groupby("method", sort=False)
    ]
    unit, size = _unit_of(least)
    return as_github_table(rows, ["", *(f"{parameters / size:.3g} {unit}" for parameters in at)])


def _unit_of(parameters: float) -> tuple[str, float]:
    return next((unit for unit in _UNITS if parameters >= unit[1]), _UNITS[-1])


def _accuracy_at(points: pd.DataFrame, parameters: float) -> str:
    """The mean over seeds at the last evaluation that is not beyond so many parameters."""
    reached = points[points["parameters"] <= parameters * (1 + 1e-9)]
    if reached.empty:
        return "–"
    last = reached[reached["parameters"] == reached["parameters"].max()]
    return f"{last['accuracy'].mean():.1f}"
