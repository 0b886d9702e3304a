"""The test of a trained model: what it came to, and how its run's folder says so."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedpersonal import runtime
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import fingerprint
from fedpersonal.errors import TrainingError, UserError
from fedpersonal.evaluation.client_metrics import ClientMetric, lower_is_better
from fedpersonal.evaluation.guess import Guess, columns, overall
from fedpersonal.runs.record import ROUND, TRAINING_DATA

if TYPE_CHECKING:  # Tasks read their flags before TensorFlow is imported.
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.training.trained import TrainedModel

# Both directions of what crosses, by the names that summaries give them.
_BYTES = {"broadcast": "broadcast_bytes_per_client", "aggregate": "aggregated_bytes_per_client"}


@dataclasses.dataclass(frozen=True, eq=False)
class TestReport:
    """What the test of a trained model came to.

    Attributes:
        results: Of the test clients.
        metrics: Further metrics over all clients.
        columns: Further columns of a value for each client, those of metrics NaN where a client
            does not count.
        description: Further entries of the summary.
        further: Further entries of the summary's `test`, beside metrics.
    """

    results: ClientResults
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    description: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    further: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def report_run(
    run_folder: RunFolder,
    report: TestReport,
    *,
    description: Mapping[str, Any],
    guesses: Mapping[str, Guess],
    recommendations: Recommendations | None = None,
) -> dict[str, Any]:
    """Writes the test clients' results, pictures, and the summary, which it returns.

    Args:
        run_folder: The run's folder, with its metrics, if it had rounds, and what crossed.
        report: Of the test clients.
        description: First entries of the summary; `method` and `rounds` are among them.
        guesses: What the results must beat, on the same examples.
        recommendations: What the model recommends to some test clients, if it does.

    Raises:
        TrainingError: If the test loss is not finite.
    """
    # What draws is imported when all else is done.
    from fedpersonal.report.page import write_report

    has_rounds = run_folder.metrics_csv.exists()
    seconds = run_folder.metrics["seconds"] if has_rounds else np.zeros(1)
    try:
        test = write_test(run_folder, report, guesses, rounds=description["rounds"])
    except TrainingError as error:
        write_report(run_folder.path, failure=str(error))
        raise
    summary = {
        **description,
        "test": test,
        "train_wall_seconds": float(np.sum(seconds)),
        "median_round_seconds": float(np.median(seconds)),
        **_bytes_per_client(run_folder),
        "peak_rss_mb": runtime.peak_rss_mb(),
    }
    run_folder.write_summary(summary)
    if has_rounds:
        from fedpersonal.report.pictures import plot_learning_curve

        title = " on ".join(summary[n] for n in ("method", "dataset") if n in summary)
        picture = run_folder.path / "learning_curve.png"
        plot_learning_curve(run_folder.metrics_csv, picture, title=title)
    if recommendations:
        from fedpersonal.report.samples import write_recommendations

        write_recommendations(run_folder.path, recommendations, rounds=description["rounds"])
    write_report(run_folder.path)
    return summary


def write_test(
    run_folder: RunFolder, report: TestReport, guesses: Mapping[str, Guess], *, rounds: int
) -> dict[str, Any]:
    """Writes the test clients' results, and returns the summary's entry `test`.

    Args:
        run_folder: The run's folder.
        report: Of the test clients.
        guesses: As of `report_run`.
        rounds: The round whose model was tested.

    Raises:
        TrainingError: If the loss is not finite; nothing is written then.
    """
    test = {**summarize(report), "guesses": overall(guesses)}
    found = {**report.results.per_client(), **report.columns, **columns(guesses)}
    run_folder.write_per_client({**found, ROUND: rounds})
    return test


def summarize(report: TestReport) -> dict[str, Any]:
    """Returns what a test came to.

    Raises:
        TrainingError: If the loss is not finite, or nobody has one.
    """
    results = report.results
    metrics = {**results.overall(), **report.metrics}
    if "loss" not in metrics:
        raise TrainingError("no test client has a query set, so there is no test loss.")
    if not math.isfinite(metrics["loss"]):
        raise TrainingError(
            "the test loss is not finite; lower the learning rates of training and reconstruction."
        )
    return {**test_summary(results, metrics, report.columns), **report.further}


def test_summary(
    results: ClientResults,
    overall: Mapping[str, float],
    columns: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns metrics after and before personalisation, counts, and the spread over clients.

    Args:
        results: Of the clients.
        overall: The metrics over all of them; those in which no client counts are left out.
        columns: Of metrics that are not in `results`, each client's, NaN where it does not count.
    """
    has_query = results.num_examples > 0
    counting = results.num_clients_of()
    for name, values in columns.items():
        if lower_is_better(name) is not None:
            counting[name] = int((~np.isnan(values)).sum())
    num_clients = int(has_query.sum())
    counting = {name: counting.get(name, num_clients) for name in {**overall, **counting}}

    def counted(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if counting[name]}

    return {
        **counted(overall),
        "before": counted(results.overall_before()),
        "num_clients": num_clients,
        "num_clients_without_query": int((~has_query).sum()),
        "num_clients_of": {name: n for name, n in counting.items() if n != num_clients},
        "num_examples": int(results.num_examples.sum()),
        **results.distribution(),
    }


def hash_labels(query: ClientDataset, **how: int) -> str:
    """Returns what tells test examples from others; `how` says how they were chosen of these."""
    columns = {name: getattr(query, name) for name in ("client_ids", "offsets", "labels")}
    return fingerprint({**columns, **{name: np.array(value) for name, value in how.items()}})


def report_program(
    path: str | os.PathLike,
    trained: TrainedModel,
    report: TestReport,
    guess: Mapping[str, np.ndarray],
) -> None:
    """Writes what the test of a program's model came to into the folder of its run.

    Args:
        path: The folder.
        trained: The model.
        report: Of the test clients.
        guess: Metric's name to each client's value by a guess that trains no model.

    Raises:
        UserError: If it is not the folder of this model's run, or that of a command's.
        TrainingError: If the test loss is not finite.
    """
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.runs.saved import read_saved_model

    config = RunFolder.read(path).config
    if "task" in config["options"]:
        raise UserError(f"{path} is the run of a command, which has tested its model itself.")
    saved, weights = read_saved_model(RunFolder.read(path).path), trained.weights
    if saved.weights.keys() != weights.keys() or not all(
        np.array_equal(value, weights[name]) for name, value in saved.weights.items()
    ):
        raise UserError(f"{path} holds another model: give the folder that `fit` was given.")
    about = saved.about
    with RunFolder.open(path, config["options"]) as folder:
        report_run(
            folder,
            report,
            description={
                "method": trained.algorithm.name,
                "rounds": (about.get("metrics") or [about["round_number"]])[0],
                "seed": trained.seed,
                "num_training_clients": config[TRAINING_DATA]["clients"],
                **({"privacy": about["privacy"]} if about.get("privacy") else {}),
                **report.description,
            },
            guesses={"the guess": _score(report.results, guess)} if guess else {},
        )


def _score(results: ClientResults, guess: Mapping[str, np.ndarray]) -> Guess:
    """Returns a guess of which clients' values are known.

    What it comes to over all is known of metrics that clients' examples, or clients, add up to.
    """
    table = pd.DataFrame({**results.per_client(), **{f"{n} guess": v for n, v in guess.items()}})
    table, metrics = table[table["num_examples"] > 0], {}
    for name, value in results.overall().items():
        for weights in ("num_examples", None) if name in guess else ():
            metric = ClientMetric.of(name, f"{name}_after", weights)
            if name not in metrics and np.isclose(metric.overall(table), value, rtol=1e-5):
                own = dataclasses.replace(metric, column=f"{name} guess")
                metrics[name] = own.overall(table)
    return Guess(metrics, guess)


def _bytes_per_client(run_folder: RunFolder) -> dict[str, int | None]:
    """Returns what a client receives and sends in a round, None where a size is not known."""
    found: dict[str, int | None] = {}
    for direction, name in _BYTES.items():
        sizes = [one["num_bytes"] for one in run_folder.boundary if one["direction"] == direction]
        found[name] = None if None in sizes else sum(sizes)
    return found
