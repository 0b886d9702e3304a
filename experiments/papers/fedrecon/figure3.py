"""Figure 3 of the FedRecon paper: accuracy by the number of reconstruction and update steps.

The number holds for training and for evaluation, with the rounds fixed. Accuracies are shares of
the accuracy with the usual options, the base.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from fedpersonal.tasks.next_word.choice import TextChoice
from fedpersonal.tasks.ratings.experiment import RatingOptions
from matplotlib.figure import Figure

from experiments.papers.fedrecon import next_word_runs, rating_runs
from experiments.papers.fedrecon.table2 import (
    ROWS,
    VOCAB_SIZES,
    heading,
    left_out_note,
    make_plan,
    short_size,
)
from experiments.papers.presets import Preset
from experiments.papers.summarized_runs import SummarizedRun
from experiments.papers.sweep import as_github_table, mean_and_deviation, with_deviation
from fedpersonal.atomic_files import write_csv, write_json, write_text
from fedpersonal.data.ratings import Ratings
from fedpersonal.errors import UserError
from fedpersonal.simulation.pictures import tidy_axes, write_picture, write_title


@dataclasses.dataclass(frozen=True)
class Panel:
    """One half of the figure.

    Attributes:
        name: What is varied, as files are named.
        title: The same for people.
        steps: The numbers of steps.
        epochs_option: The option of passes over the data.
        steps_option: The option that bounds their steps.
    """

    name: str
    title: str
    steps: tuple[int, ...]
    epochs_option: str
    steps_option: str

    def options(self, steps: int) -> dict[str, int]:
        """Returns the options that make every client take so many steps.

        As many passes suffice, since each has a step at least; 0 of them leave local variables at
        their initial values.
        """
        return {self.epochs_option: steps, self.steps_option: max(1, steps)}


PANELS = (
    Panel(
        "reconstruction_steps",
        "reconstruction steps",
        (0, 1, 2, 5, 10),
        "reconstruction_epochs",
        "max_reconstruction_steps",
    ),
    Panel("update_steps", "client update steps", (1, 2, 5, 10), "local_epochs", "max_local_steps"),
)
_ROW = next(row for row in ROWS if (row.algorithm, row.num_oov_buckets) == ("fed_recon", 500))
_COLORS = ("#2f6db3", "#3a8f5c", "#8a5bb5", "#d1602b", "#b3862f", "#5a6673")
_COLUMNS = ("panel", "task", "steps", "seed", "accuracy", "base_accuracy", "relative_accuracy")


def run(
    choice: TextChoice,
    preset: Preset,
    load_ratings: Callable[[], Ratings],
    rating_options: RatingOptions,
    output_dir: str,
    *,
    seeds: Sequence[int],
    vocab_sizes: Sequence[int] = VOCAB_SIZES,
    scale_rounds: float = 1.0,
    runs_dir: str | None = None,
    isolated: bool = True,
) -> str:
    """Runs what is missing and writes `figure3.png`, `.csv`, `.md` and `.json`.

    Args:
        choice: The sentences.
        preset: The hyperparameters of next word prediction.
        load_ratings: Loads the ratings.
        rating_options: The hyperparameters of rating prediction, FedRecon's.
        output_dir: Receives the figure and the runs of each number of steps.
        seeds: Seeds to run everything with.
        vocab_sizes: Vocabularies; those for which there are too few words are left out.
        scale_rounds: Factor of the rounds.
        runs_dir: Holds table 2's run folders, FedRecon's of which are the bases; None for
            `output_dir`.
        isolated: Whether each run has a process of its own.

    Returns:
        The numbers as Markdown.

    Raises:
        UserError: If a run diverges, its folder holds another one, or words are too few.
    """
    plan = make_plan(
        [_ROW],
        choice,
        preset,
        runs_dir or output_dir,
        vocab_sizes=vocab_sizes,
        seeds=seeds,
        scale_rounds=scale_rounds,
    )
    folder = pathlib.Path(output_dir)
    words = _next_word_runs(plan.runs.values(), folder)
    ratings = _rating_runs(rating_options, seeds, scale_rounds, folder)
    rating_runs.complete([run for _, _, run in ratings], load_ratings, isolated=isolated)
    next_word_runs.complete([run for _, _, run in words], choice, isolated=isolated)

    name = load_ratings().name
    measured = [
        (f"{short_size(run.options.vocab_size)} words", panel, steps, run.options.seed, accuracy)
        for panel, steps, run in words
        for accuracy in [run.test(_ROW.algorithm)[next_word_runs.METRIC]]
    ]
    measured += [
        (name, panel, steps, run.options.seed, run.summary()["test"]["accuracy"])
        for panel, steps, run in ratings
    ]
    points = _relative(measured)
    data = choice.describe()["dataset"]
    markdown = "\n\n".join(
        [
            heading("Figure 3", choice, preset, plan),
            _about_ratings(name, ratings[0][2].options),
            *left_out_note(plan),
            *_tables(points, data),
        ]
    )
    write_csv(folder / "figure3.csv", points.to_dict("records"))
    write_json(
        folder / "figure3.json",
        {
            "data": choice.describe(),
            "ratings": name,
            "preset": preset.name,
            "seeds": list(seeds),
            "points": points.to_dict("records"),
        },
    )
    write_text(folder / "figure3.md", markdown)
    plot(points, folder / "figure3.png", title=f"FedRecon on {data} and {name}")
    return markdown


def plot(points: pd.DataFrame, picture: str | os.PathLike, *, title: str) -> None:
    """Draws the panels, a line for each task, with the standard deviation over seeds.

    Args:
        points: Columns `panel`, `task`, `steps`, `seed` and `relative_accuracy`.
        picture: The PNG file to write.
        title: Stands above.
    """
    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for ax, panel in zip(axes, PANELS):
        own = points[points["panel"] == panel.name]
        for color, (task, line) in zip(_COLORS, own.groupby("task", sort=False)):
            at = 100 * line.groupby("steps")["relative_accuracy"].mean()
            spread = 100 * line.groupby("steps")["relative_accuracy"].std().fillna(0.0)
            ax.errorbar(
                at.index,
                at,
                yerr=spread if spread.any() else None,
                color=color,
                linewidth=1.8,
                marker="o",
                markersize=4.5,
                capsize=2.5,
                label=task,
            )
        ax.axhline(100, color="#999999", linewidth=0.8, linestyle="--", zorder=0)
        ax.set_xticks(panel.steps)
        ax.set_xlabel(panel.title)
        tidy_axes(ax)
    axes[0].set_ylabel("accuracy, % of the base's")
    axes[-1].legend(frameon=False)
    write_title(figure, title)
    write_picture(figure, picture)


def _next_word_runs(
    bases: Sequence[next_word_runs.NextWordRun], folder: pathlib.Path
) -> list[tuple[Panel | None, int | None, next_word_runs.NextWordRun]]:
    """The base runs and those with a number of steps; a base has no panel."""
    runs = []
    for base in bases:
        runs.append((None, None, base))
        for panel in PANELS:
            for steps in panel.steps:
                options = dataclasses.replace(base.options, **panel.options(steps))
                path = folder / f"vocab_{options.vocab_size}" / f"{panel.name}_{steps}"
                run = next_word_runs.NextWordRun(
                    f"{base.title}, {panel.title} {steps}",
                    path / f"seed_{options.seed}",
                    options,
                    (options,),
                )
                runs.append((panel, steps, run))
    return runs


def _rating_runs(
    base: RatingOptions, seeds: Sequence[int], scale_rounds: float, folder: pathlib.Path
) -> list[tuple[Panel | None, int | None, SummarizedRun]]:
    rounds = {
        "total_rounds": max(1, round(scale_rounds * base.total_rounds)),
        "rounds_per_eval": max(1, round(scale_rounds * base.rounds_per_eval)),
    }
    varied = [(None, None), *((panel, steps) for panel in PANELS for steps in panel.steps)]
    runs = []
    for seed in seeds:
        for panel, steps in varied:
            changes: Mapping[str, Any] = panel.options(steps) if panel else {}
            name = f"{panel.name}_{steps}" if panel else "base"
            run = SummarizedRun(
                f"ratings, seed {seed}, {f'{panel.title} {steps}' if panel else 'base'}",
                folder / "ratings" / name / f"seed_{seed}",
                dataclasses.replace(base, seed=seed, **rounds, **changes),
            )
            runs.append((panel, steps, run))
    return runs


def _relative(measured: Sequence[tuple[str, Panel | None, int | None, int, float]]) -> pd.DataFrame:
    bases = {(task, seed): acc for task, panel, _, seed, acc in measured if panel is None}
    for (task, seed), accuracy in bases.items():
        if accuracy <= 0:
            raise UserError(
                f"{task}, seed {seed}: the base run predicts nothing right, so there is nothing to "
                "compare with; run more rounds."
            )
    rows = [
        (panel.name, task, steps, seed, acc, bases[task, seed], acc / bases[task, seed])
        for task, panel, steps, seed, acc in measured
        if panel is not None
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _about_ratings(name: str, options: RatingOptions) -> str:
    stand_in = "" if name == "movielens-1m" else " (a stand-in: the paper's are MovieLens-1M's)"
    return (
        f"Ratings: {name}{stand_in}, {options.total_rounds:,} rounds of "
        f"{options.clients_per_round} users."
    )


def _tables(points: pd.DataFrame, data: str) -> list[str]:
    parts = []
    for panel in PANELS:
        own = points[points["panel"] == panel.name]
        rows = []
        for task, line in own.groupby("task", sort=False):
            base, base_sd = mean_and_deviation(
                (100 * line.groupby("seed")["base_accuracy"].first()).tolist()
            )
            rows.append([task, with_deviation(base, base_sd, digits=1)])
            for steps in panel.steps:
                relative = (100 * line[line["steps"] == steps]["relative_accuracy"]).tolist()
                mean, deviation = mean_and_deviation(relative)
                rows[-1].append(with_deviation(mean, deviation, digits=1))
        parts += [
            f"Accuracy in per cent of the base's, by {panel.title} (of {data}, targets that are "
            "out of vocabulary or the end of a sentence are not counted):",
            as_github_table(rows, ["", "base accuracy, %", *map(str, panel.steps)]),
        ]
    return parts
