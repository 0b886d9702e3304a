"""The results of a trained model's test, and their files in the run's folder."""

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
from fedpersonal.evaluation.baselines import Baseline, client_columns, overall_metrics
from fedpersonal.evaluation.client_metrics import ClientMetric, lower_is_better
from fedpersonal.runs.record import ROUND, TRAINING_DATA

if TYPE_CHECKING:  # Tasks read their flags before TensorFlow is imported.
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.report.samples import Recommendations
    from fedpersonal.runs.folder import RunFolder

# Direction in `boundary.json` to the entry of `summary.json`.
_BYTES = {"broadcast": "broadcast_bytes_per_client", "aggregate": "aggregated_bytes_per_client"}


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationReport:
    """The results of a trained model's test.

    Attributes:
        results: The results of the test clients.
        metrics: Further metrics over all clients.
        columns: Further columns with a value for each client; a metric is NaN for clients that do
            not count in it.
        description: Further entries of the summary.
        further: Further entries of the summary's `test` that are no metrics.
    """

    results: ClientResults
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    description: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    further: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def report_run(
    run_folder: RunFolder,
    report: EvaluationReport,
    *,
    description: Mapping[str, Any],
    baselines: Mapping[str, Baseline],
    recommendations: Recommendations | None = None,
) -> dict[str, Any]:
    """Writes the test clients' results, pictures, and the summary, which it returns.

    Args:
        run_folder: The run's folder, with `boundary.json` and, if there are rounds, `metrics.csv`.
        report: The results of the test clients.
        description: The first entries of the summary, with `method` and `rounds`.
        baselines: Baselines that the results must beat, on the same examples.
        recommendations: The model's recommendations to some test clients, or None.

    Raises:
        TrainingError: If the test loss is not finite.
    """
    # Imported here, because plotting is slow to import.
    from fedpersonal.report.page import write_report

    has_rounds = run_folder.metrics_csv.exists()
    seconds = run_folder.metrics["seconds"] if has_rounds else np.zeros(1)
    try:
        test = write_test(run_folder, report, baselines, rounds=description["rounds"])
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
    run_folder: RunFolder,
    report: EvaluationReport,
    baselines: Mapping[str, Baseline],
    *,
    rounds: int,
) -> dict[str, Any]:
    """Writes the test clients' results, and returns the summary's entry `test`.

    Args:
        run_folder: The run's folder.
        report: The results of the test clients.
        baselines: As in `report_run`.
        rounds: The round whose model was tested.

    Raises:
        TrainingError: If the loss is not finite; nothing is written then.
    """
    test = {**summarize(report), "guesses": overall_metrics(baselines)}
    per_client = {**report.results.per_client(), **report.columns, **client_columns(baselines)}
    run_folder.write_per_client({**per_client, ROUND: rounds})
    return test


def summarize(report: EvaluationReport) -> dict[str, Any]:
    """Returns the metrics and counts of a test, for a summary.

    Raises:
        TrainingError: If the loss is not finite, or no client has a query set.
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
        results: The results of the clients.
        overall: The metrics over all clients; those in which no client counts are left out.
        columns: Columns of metrics that are not in `results`, NaN for clients that do not count.
    """
    has_query = results.num_examples > 0
    counting = results.num_clients_of()
    for name, values in columns.items():
        if lower_is_better(name) is not None:
            counting[name] = int((~np.isnan(values)).sum())
    num_clients = int(has_query.sum())
    counting = {name: counting.get(name, num_clients) for name in {**overall, **counting}}

    def with_clients(metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if counting[name]}

    return {
        **with_clients(overall),
        "before": with_clients(results.overall_before()),
        "num_clients": num_clients,
        "num_clients_without_query": int((~has_query).sum()),
        "num_clients_of": {name: n for name, n in counting.items() if n != num_clients},
        "num_examples": int(results.num_examples.sum()),
        **results.distribution(),
    }


def hash_labels(query: ClientDataset, **selection: int) -> str:
    """Returns a hash that identifies test examples, and the options that select them."""
    columns = {name: getattr(query, name) for name in ("client_ids", "offsets", "labels")}
    return fingerprint({**columns, **{name: np.array(value) for name, value in selection.items()}})


def report_program(
    path: str | os.PathLike,
    report: EvaluationReport,
    baseline: Mapping[str, np.ndarray],
    *,
    weights: Mapping[str, np.ndarray],
    method: str,
    seed: int,
) -> None:
    """Writes the test results of a program's model to the folder of its run.

    Args:
        path: The folder.
        report: The results of the test clients.
        baseline: Metric's name to each client's value of a baseline; empty for no baseline.
        weights: The model's global variables, by name.
        method: The algorithm's name.
        seed: The seed of the run.

    Raises:
        UserError: If it is not the folder of this model's run, or if it is that of a command.
        TrainingError: If the test loss is not finite.
    """
    from fedpersonal.runs.folder import RunFolder
    from fedpersonal.runs.saved import read_saved_model

    config = RunFolder.read(path).config
    if "task" in config["options"]:
        raise UserError(f"{path} is the run of a command, which has tested its model itself.")
    saved = read_saved_model(RunFolder.read(path).path)
    if saved.weights.keys() != weights.keys() or not all(
        np.array_equal(value, weights[name]) for name, value in saved.weights.items()
    ):
        raise UserError(f"{path} holds another model: pass the folder that was passed to `fit`.")
    about = saved.about
    with RunFolder.open(path, config["options"]) as folder:
        report_run(
            folder,
            report,
            description={
                "method": method,
                "rounds": (about.get("metrics") or [about["round_number"]])[0],
                "seed": seed,
                "num_training_clients": config[TRAINING_DATA]["clients"],
                **({"privacy": about["privacy"]} if about.get("privacy") else {}),
                **report.description,
            },
            baselines={"the guess": _score(report.results, baseline)} if baseline else {},
        )


def _score(results: ClientResults, baseline: Mapping[str, np.ndarray]) -> Baseline:
    """Returns a baseline from its values for each client.

    Its overall metrics are those that are means over examples or over clients.
    """
    columns = {f"{name} baseline": values for name, values in baseline.items()}
    table = pd.DataFrame({**results.per_client(), **columns})
    table, metrics = table[table["num_examples"] > 0], {}
    for name, value in results.overall().items():
        for weights in ("num_examples", None) if name in baseline else ():
            metric = ClientMetric.for_metric(name, f"{name}_after", weights)
            if name not in metrics and np.isclose(metric.overall(table), value, rtol=1e-5):
                of_baseline = dataclasses.replace(metric, column=f"{name} baseline")
                metrics[name] = of_baseline.overall(table)
    return Baseline(metrics, baseline)


def _bytes_per_client(run_folder: RunFolder) -> dict[str, int | None]:
    """Returns the bytes that a client receives and sends in a round; None for unknown sizes."""
    num_bytes: dict[str, int | None] = {}
    for direction, name in _BYTES.items():
        sizes = [one["num_bytes"] for one in run_folder.boundary if one["direction"] == direction]
        num_bytes[name] = None if None in sizes else sum(sizes)
    return num_bytes
