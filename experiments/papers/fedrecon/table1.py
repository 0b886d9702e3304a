"""Table 1 of the FedRecon paper (Singhal et al., section 5.2): MovieLens matrix factorization."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from fedpersonal.tasks.ratings.experiment import RatingOptions, build_experiment, run_experiment

from experiments.papers.sweep import as_github_table, mean_and_deviation, with_deviation
from fedpersonal.atomic_files import write_json, write_text
from fedpersonal.data.ratings import Ratings
from fedpersonal.simulation.run_folder import RunFolder

# The paper gives no hyperparameters for its baselines; these were chosen on validation ratings of
# seen users (docs/movielens.md).
_CENTRALIZED = RatingOptions(
    algorithm="centralized",
    total_rounds=12,
    client_learning_rate=1.0,
    l2=0.05,
    max_ratings_per_user=None,
    rounds_per_eval=3,
    rounds_per_checkpoint=3,
)
_FED_AVG = RatingOptions(
    algorithm="fed_avg",
    total_rounds=1000,
    client_learning_rate=0.2,
    l2=0.02,
    max_update_norm=20.0,
    rounds_per_eval=100,
)
# experiments/presets/movielens_paper.flags.
FED_RECON = RatingOptions(
    algorithm="fed_recon",
    total_rounds=1000,
    embedding_stddev=0.03,
    max_update_norm=20.0,
    rounds_per_eval=100,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: As in the paper.
        paper_rmse: The paper's RMSE.
        paper_accuracy: The paper's accuracy in per cent.
        options: What to run.
    """

    name: str
    paper_rmse: float
    paper_accuracy: float
    options: RatingOptions


def _seen(options: RatingOptions) -> RatingOptions:
    return dataclasses.replace(options, protocol="seen_users")


ROWS = (
    Row("Centralized + StandardEval", 0.923, 43.2, _seen(_CENTRALIZED)),
    Row("Centralized + ReconEval", 1.36, 40.8, _CENTRALIZED),
    Row("FedAvg + StandardEval", 0.939, 41.5, _seen(_FED_AVG)),
    Row("FedAvg + ReconEval", 0.934, 40.0, _FED_AVG),
    Row("FedRecon", 0.907, 43.3, FED_RECON),
)


def run(
    ratings: Ratings, output_dir: str, *, seeds: Sequence[int], scale_rounds: float = 1.0
) -> list[dict[str, Any]]:
    """Runs every row with every seed, each in a folder of its own that is gone on with.

    Args:
        ratings: The ratings.
        output_dir: Receives the run folders, `table1.md` and `table1.json`.
        seeds: Seeds to run each row with.
        scale_rounds: Factor of the rounds of each row.

    Returns:
        A dictionary a row: name, the paper's and the measured RMSE and accuracy with standard
        deviations over seeds, and their differences.
    """
    folder = pathlib.Path(output_dir)
    table = []
    for row in ROWS:
        tests = [
            _test(ratings, row, folder / _slug(row.name) / f"seed_{seed}", seed, scale_rounds)
            for seed in seeds
        ]
        table.append(_summarize(row, tests))
    write_json(
        folder / "table1.json", {"dataset": ratings.name, "seeds": list(seeds), "rows": table}
    )
    write_text(folder / "table1.md", as_markdown(table, ratings.name, len(seeds)))
    return table


def as_markdown(table: Sequence[dict[str, Any]], dataset: str, num_seeds: int) -> str:
    """Formats the table, paper beside measured."""
    rows = [
        [
            row["name"],
            f"{row['paper_rmse']:.3f}",
            with_deviation(row["rmse"], row["rmse_sd"], digits=3),
            f"{row['rmse_difference']:+.3f}",
            f"{row['paper_accuracy']:.1f}",
            with_deviation(row["accuracy"], row["accuracy_sd"], digits=1),
            f"{row['accuracy_difference']:+.1f}",
        ]
        for row in table
    ]
    headers = [
        "",
        "RMSE, paper",
        "measured",
        "difference",
        "accuracy %, paper",
        "measured",
        "difference",
    ]
    title = f"Table 1 on {dataset}, mean ± standard deviation over {num_seeds} seeds"
    if dataset != "movielens-1m":
        title += " (a stand-in: the paper's figures are MovieLens-1M's)"
    return f"{title}\n\n{as_github_table(rows, headers)}"


def _test(
    ratings: Ratings, row: Row, path: pathlib.Path, seed: int, scale_rounds: float
) -> dict[str, float]:
    """Returns the test metrics of one run, from its summary where it has ended."""
    rounds = max(1, round(row.options.total_rounds * scale_rounds))
    options = dataclasses.replace(row.options, seed=seed, total_rounds=rounds)
    config = {**dataclasses.asdict(options), "dataset": ratings.name}
    folder = RunFolder.open(path, config, ignore=())
    summary = path / "summary.json"
    if summary.exists():
        return json.loads(summary.read_text())["test"]
    print(f"{row.name}, seed {seed}:", flush=True)
    return run_experiment(build_experiment(ratings, options), folder)["test"]


def _summarize(row: Row, tests: Sequence[dict[str, float]]) -> dict[str, Any]:
    rmse, rmse_sd = mean_and_deviation([test["rmse"] for test in tests])
    accuracy, accuracy_sd = mean_and_deviation([100 * test["accuracy"] for test in tests])
    return {
        "name": row.name,
        "paper_rmse": row.paper_rmse,
        "rmse": rmse,
        "rmse_sd": rmse_sd,
        "rmse_difference": rmse - row.paper_rmse,
        "paper_accuracy": row.paper_accuracy,
        "accuracy": accuracy,
        "accuracy_sd": accuracy_sd,
        "accuracy_difference": accuracy - row.paper_accuracy,
    }


def _slug(name: str) -> str:
    return name.lower().replace(" + ", "_").replace(" ", "_")
