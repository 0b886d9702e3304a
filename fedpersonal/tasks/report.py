"""What a run leaves in its folder when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedpersonal import runtime
from fedpersonal.errors import TrainingError
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.process.boundary import Crossing, bytes_per_client
from fedpersonal.report.recommendations import Recommendations, write_recommendations
from fedpersonal.simulation.loop import LoopResult
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.task import TestReport


def report_run(
    run_folder: RunFolder,
    loop_result: LoopResult | None,
    report: TestReport,
    crossings: Sequence[Crossing],
    *,
    description: Mapping[str, Any],
    recommendations: Recommendations | None = None,
) -> dict[str, Any]:
    """Writes the test clients' results, pictures, and the summary, which it returns.

    Args:
        run_folder: The run's folder.
        loop_result: Of training; None where there was none.
        report: Of the test clients.
        crossings: What the training process broadcasts and aggregates.
        description: First entries of the summary; `dataset` and `algorithm` are among them.
        recommendations: What the model recommends to some test clients, if it does.

    Raises:
        TrainingError: If the test loss is not finite.
    """
    # What draws is imported when all else is done.
    from fedpersonal.report.write import write_report

    try:
        test = summarize(report)
    except TrainingError as error:
        write_report(run_folder.path, failure=str(error))
        raise
    run_folder.write_per_client({**report.results.per_client(), **report.columns})
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
        from fedpersonal.simulation.learning_curve import plot_learning_curve

        title = f"{description['algorithm']} on {description['dataset']}"
        picture = run_folder.path / "learning_curve.png"
        plot_learning_curve(run_folder.metrics_csv, picture, title=title)
    if recommendations:
        write_recommendations(run_folder.path, recommendations)
    write_report(run_folder.path)
    return summary


def summarize(report: TestReport) -> dict[str, Any]:
    """Returns what a test came to.

    Raises:
        TrainingError: If the loss is not finite.
    """
    results = report.results
    overall = {**results.overall(), **report.metrics}
    if not math.isfinite(overall["loss"]):
        raise TrainingError(
            "the test loss is not finite; lower --client_learning_rate or "
            "--reconstruction_learning_rate."
        )
    return test_summary(results, overall)


def test_summary(results: ClientResults, overall: Mapping[str, float]) -> dict[str, Any]:
    """Returns metrics after and before personalisation, counts, and the spread over clients."""
    return {
        **overall,
        "before": results.overall_before(),
        "num_clients": int((results.num_examples > 0).sum()),
        "num_examples": int(results.num_examples.sum()),
        **results.distribution(),
    }
