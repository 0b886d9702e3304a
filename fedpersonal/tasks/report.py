"""What a run leaves in its folder when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fedpersonal import runtime
from fedpersonal.errors import TrainingError
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.evaluation.direction import lower_is_better
from fedpersonal.evaluation.guess import Guess, columns, overall
from fedpersonal.process.boundary import Crossing, bytes_per_client
from fedpersonal.report.samples import Recommendations, write_recommendations
from fedpersonal.simulation.loop import LoopResult
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.run_record import ROUND
from fedpersonal.tasks.task import TestReport


def report_run(
    run_folder: RunFolder,
    loop_result: LoopResult | None,
    report: TestReport,
    crossings: Sequence[Crossing],
    *,
    description: Mapping[str, Any],
    guesses: Mapping[str, Guess],
    recommendations: Recommendations | None = None,
) -> dict[str, Any]:
    """Writes the test clients' results, pictures, and the summary, which it returns.

    Args:
        run_folder: The run's folder.
        loop_result: Of training; None where there was none.
        report: Of the test clients.
        crossings: What the training process broadcasts and aggregates.
        description: First entries of the summary; `dataset` and `algorithm` are among them.
        guesses: What the results must beat, on the same examples.
        recommendations: What the model recommends to some test clients, if it does.

    Raises:
        TrainingError: If the test loss is not finite.
    """
    # What draws is imported when all else is done.
    from fedpersonal.report.write import write_report

    try:
        test = write_test(run_folder, report, guesses, rounds=description["rounds"])
    except TrainingError as error:
        write_report(run_folder.path, failure=str(error))
        raise
    summary = {
        **description,
        "test": test,
        "train_wall_seconds": loop_result.train_wall_seconds if loop_result else 0.0,
        "median_round_seconds": loop_result.median_round_seconds if loop_result else 0.0,
        **bytes_per_client(crossings),
        "peak_rss_mb": runtime.peak_rss_mb(),
    }
    run_folder.write_summary(summary)
    if loop_result:
        from fedpersonal.report.pictures import plot_learning_curve

        title = f"{description['algorithm']} on {description['dataset']}"
        picture = run_folder.path / "learning_curve.png"
        plot_learning_curve(run_folder.metrics_csv, picture, title=title)
    if recommendations:
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
            "the test loss is not finite; lower --client_learning_rate or "
            "--reconstruction_learning_rate."
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
