"""An experiment run from its first round to its summary, in a run folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from typing import Any

from fedpersonal import runtime
from fedpersonal.process.boundary import as_table
from fedpersonal.saved_model import save_model
from fedpersonal.simulation.run_config import read_num_shards
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.experiment import Experiment, build_experiment
from fedpersonal.tasks.findings import tell_never_drawn, tell_outliers
from fedpersonal.tasks.report import report_run
from fedpersonal.tasks.task import DataT, OptionsT, SourceT, Task, TestReport
from fedpersonal.trained import TrainedModel


def open_experiment(
    task: Task[OptionsT, SourceT, DataT],
    source: SourceT,
    options: OptionsT,
    path: str | os.PathLike,
    *,
    config: Mapping[str, Any],
    may_differ: Collection[str],
    data: Any,
) -> tuple[Experiment[OptionsT, DataT], RunFolder]:
    """Chooses the runtime, builds an experiment and opens its run folder.

    Args:
        task: The task.
        source: The data.
        options: The options.
        path: The folder; a run that is there keeps its number of shards.
        config: What `config.json` says of the run.
        may_differ: Those of its entries with which a run may go on.
        data: What tells the data from others, as of `RunFolder.open`.

    Raises:
        UserError: As `build_experiment` and `RunFolder.open`.
    """
    runtime.use_runtime(
        options.runtime,
        compile=options.compile,
        ray_address=options.ray_address,
        ray_node_seconds=options.ray_node_seconds,
    )
    shards = options.shards or read_num_shards(path)
    experiment = build_experiment(task, source, options, shards=shards)
    about = {
        "data": data,
        "runtime": options.runtime,
        "num_shards": experiment.trainer.num_shards,
    }
    if options.dp_target_epsilon is not None:  # Its noise is that of so many rounds.
        may_differ = {*may_differ} - {"total_rounds"}
    return experiment, RunFolder.open(path, config, ignore=may_differ, about=about)


def train_experiment(
    experiment: Experiment, run_folder: RunFolder, *, progress: bool = True
) -> TrainedModel:
    """Runs the rounds that are missing, and evaluates no other than validation clients.

    Returns:
        The trained model, to be closed.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    if not experiment.method.trains:
        return experiment.trainer.untrained()
    options, validate = experiment.options, experiment.task.validate(experiment)
    return experiment.trainer.fit(
        rounds=options.total_rounds,
        folder=run_folder,
        validate=lambda trained: validate(trained).overall(),
        rounds_per_eval=options.rounds_per_eval,
        rounds_per_checkpoint=options.rounds_per_checkpoint,
        progress=progress,
    )


def run_experiment(
    experiment: Experiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates the test clients, and writes the run folder, in which a run may go on.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    task, options = experiment.task, experiment.options
    crossings, further = task.boundary(experiment)
    run_folder.write_boundary([*as_table(crossings), *further])
    with train_experiment(experiment, run_folder, progress=progress) as trained:
        report = task.test(experiment, trained)
        names = {name: column.tolist() for name, column in task.names(experiment).items()}
        about = {"sizes": task.sizes(experiment.data), "names": names}
        save_model(run_folder, trained, about)
        recommendations = task.recommend(experiment, trained, report.results)
        report = _with_findings(experiment, trained, report)
    return report_run(
        run_folder,
        trained.loop,
        report,
        crossings,
        recommendations=recommendations,
        description={
            "dataset": experiment.data.name,
            "algorithm": options.algorithm,
            "rounds": options.total_rounds if experiment.method.trains else 0,
            "seed": options.seed,
            "num_training_clients": experiment.data.train.num_clients,
            **task.describe(experiment),
            **_tell_privacy(experiment, trained),
            **_tell_participation(experiment, trained),
            **report.description,
        },
    )


def _tell_privacy(experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns the summary's entry on differential privacy, if there is any."""
    told = experiment.trainer.describe_privacy(trained.round_number)
    if not told:
        return {}
    sizes = ", ".join(experiment.task.sizes(experiment.data))
    kept = "what clients keep (local_state.sqlite), which stays on their devices elsewhere"
    outside = [
        "training metrics and counts (metrics.csv), evaluations and per_client.csv",
        f"the number of training clients, and what the model is built of: {sizes}",
        *([kept] if experiment.algorithm.keeps else []),
        *experiment.task.outside_privacy(experiment),
    ]
    return {"privacy": {**told, "outside": outside}}


def _tell_participation(experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns the summary's entry on clients that did not take part, if any were to."""
    told = experiment.trainer.describe_participation(trained.round_number)
    return {"participation": told} if told else {}


def _with_findings(experiment: Experiment, trained: TrainedModel, report: TestReport) -> TestReport:
    """Adds what is known of the clients to what the test came to."""
    data, columns = experiment.data, dict(report.columns)
    told = {**report.description, **experiment.findings, **tell_outliers(trained, data.train)}
    if trained.loop is not None and experiment.method.is_federated and data.test.seen:
        rounds_of = experiment.trainer.count_rounds(experiment.options.total_rounds)
        columns["rounds"], told["never_drawn"] = tell_never_drawn(report.results, rounds_of)
    return dataclasses.replace(report, columns=columns, description=told)
