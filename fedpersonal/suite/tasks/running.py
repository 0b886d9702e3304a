"""Runs an experiment from its first round to its summary, in a run folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal import runtime
from fedpersonal.evaluation.baselines import Baseline, overall_metrics
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.federated.boundary import as_table
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.record import read_num_shards
from fedpersonal.runs.saved import save_model
from fedpersonal.runs.validation import find_best_round
from fedpersonal.suite.tasks.checks import attendance_summary, count_outliers
from fedpersonal.suite.tasks.experiment import Experiment, build_experiment
from fedpersonal.suite.tasks.standalone import EPOCHS
from fedpersonal.suite.tasks.task import DataT, EvaluationSet, OptionsT, SourceT, Task
from fedpersonal.training.callbacks import EarlyStopping
from fedpersonal.training.tested import EvaluationReport, report_run, test_summary
from fedpersonal.training.trained import TrainedModel

if TYPE_CHECKING:
    from fedpersonal.audit.audit import Audit


def unseen_summary(
    experiment: Experiment,
    part: EvaluationSet,
    results: ClientResults,
    baselines: Mapping[str, Baseline],
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the summary's entry of unseen clients.

    Args:
        experiment: The experiment.
        part: The unseen clients.
        results: Results of these clients.
        baselines: Baselines on the same clients, by name.
        metrics: Further metrics over all of these clients.
    """
    return {
        **test_summary(results, {**results.overall(), **metrics}),
        "is_personalised": experiment.is_personalised(part),
        "guesses": overall_metrics(baselines),
    }


def open_experiment(
    task: Task[OptionsT, SourceT, DataT],
    source: SourceT,
    options: OptionsT,
    path: str | os.PathLike,
    *,
    config: Mapping[str, Any],
    may_differ: Collection[str],
    data: Any,
    typed: Collection[str] = (),
) -> tuple[Experiment[OptionsT, DataT], RunFolder]:
    """Chooses the runtime, builds an experiment and opens its run folder.

    Args:
        task: The task.
        source: The data.
        options: The options.
        path: The folder; a run that is there keeps its number of shards.
        config: The entries of the run's `config.json`.
        may_differ: The entries that may differ when a run is resumed.
        data: A description that distinguishes the data from others, as in `RunFolder.open`.
        typed: The options that the user has typed; each must have an effect.

    Raises:
        UserError: As `build_experiment` and `RunFolder.open`.
    """
    runtime.use_runtime(
        options.runtime,
        compile=options.compile,
        ray_address=options.ray_address,
    )
    shards = options.shards or read_num_shards(path)
    experiment = build_experiment(task, source, options, shards=shards, typed=typed)
    about = {
        "data": data,
        "runtime": options.runtime,
        "num_shards": experiment.trainer.num_shards,
    }
    if options.dp_target_epsilon is not None:  # The noise depends on the number of rounds.
        may_differ = {*may_differ} - {"total_rounds"}
    return experiment, RunFolder.open(path, config, ignore=may_differ, about=about)


def train_experiment(
    experiment: Experiment, run_folder: RunFolder, *, progress: bool = True
) -> TrainedModel:
    """Runs the missing rounds, and evaluates validation clients only.

    Returns:
        The trained model, to be closed.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    options, validate = experiment.options, experiment.task.validate(experiment)
    watching: dict[str, Any] = {}
    if options.watches:
        metric, mode = experiment.watched_metric
        if options.best is not None:
            watching.update(best=f"eval/{metric}", best_mode=mode)
        if options.early_stopping is not None:
            stopping = EarlyStopping(f"eval/{metric}", patience=options.early_stopping, mode=mode)
            watching["callbacks"] = [stopping]
    return experiment.trainer.fit(
        rounds=options.total_rounds,
        folder=run_folder,
        validate=lambda trained: validate(trained).overall(),
        rounds_per_eval=options.rounds_per_eval,
        rounds_per_checkpoint=options.rounds_per_checkpoint,
        progress=progress,
        **watching,
    )


def run_experiment(
    experiment: Experiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains or resumes training, evaluates the test clients, and writes the run folder.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    task, options = experiment.task, experiment.options
    crossings, more_entries = task.boundary(experiment)
    run_folder.write_boundary([*as_table(crossings), *more_entries])
    # Divergence is reported in one line, without NumPy's warnings.
    quiet: Any = np.errstate(over="ignore", invalid="ignore")
    with train_experiment(experiment, run_folder, progress=progress) as trained, quiet:
        report = task.test(experiment, trained)
        about = {"sizes": task.sizes(experiment.data), "names": task.row_labels(experiment)}
        if "standalone" in experiment.client_facts:
            about["chosen"] = {EPOCHS: experiment.options.values()[EPOCHS]}
        save_model(run_folder, trained, about, snapshot=trained.snapshot)
        baselines = task.baselines(experiment, experiment.data.test)
        recommendations = task.recommend(experiment, trained, report.results)
        report = with_client_facts(experiment, trained, report)
    return report_run(
        run_folder,
        report,
        baselines=baselines,
        recommendations=recommendations,
        description={
            "dataset": experiment.data.name,
            "method": options.method,
            "rounds": _count_rounds(trained),
            "seed": options.seed,
            "num_training_clients": experiment.data.train.num_clients,
            "is_personalised": experiment.is_personalised(experiment.data.test),
            **task.describe(experiment),
            **_validation_entry(experiment, trained, run_folder),
            **_dropped_entries(trained, run_folder),
            **_privacy_entry(experiment, trained),
            **_participation_entry(experiment, run_folder),
            **report.description,
        },
    )


def _count_rounds(trained: TrainedModel) -> int:
    """Returns the number of rounds that a run has had in all sessions."""
    loop = trained.loop
    return loop.resumed_from + loop.rounds_run if loop else 0


def _validation_entry(
    experiment: Experiment, trained: TrainedModel, run_folder: RunFolder
) -> dict[str, Any]:
    """Returns the summary's entry on the round with the best validation, if there is any."""
    if trained.loop is None:
        return {}
    options, task = experiment.options, experiment.task
    metrics = [experiment.watched_metric[0]] if options.watches else task.metrics
    best = find_best_round(run_folder.metrics, metrics)
    if best is None:
        return {}
    stopped = {"stopped": trained.loop.stop_reason} if trained.loop.stop_reason else {}
    entry = {**dataclasses.asdict(best), "tested_round": trained.round_number, **stopped}
    return {"validation": entry}


def _privacy_entry(experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns the summary's entry on differential privacy, if there is any."""
    privacy = experiment.trainer.describe_privacy(_count_rounds(trained))
    if not privacy:
        return {}
    sizes = ", ".join(experiment.task.sizes(experiment.data))
    by_seed = "noise and sampled clients, for anyone who knows the seed (config.json)"
    kept = "local variables that clients keep (local_state.sqlite), which stay on real devices"
    outside = [
        "training metrics and counts (metrics.csv), evaluations and per_client.csv",
        *([by_seed] if privacy["draw"] == "public" else []),
        f"the number of training clients, and the sizes that the model is built from: {sizes}",
        *([kept] if experiment.algorithm.keeps else []),
        *experiment.task.unprotected_outputs(experiment),
    ]
    return {"privacy": {**privacy, "outside": outside}}


def _dropped_entries(trained: TrainedModel, run_folder: RunFolder) -> dict[str, int]:
    """Returns the summary's counts of dropped updates and of rounds without examples, if any."""
    if trained.loop is None:
        return {}
    rows, counts = run_folder.metrics, {}
    if "train/num_dropped_updates" in rows:
        counts["num_dropped_updates"] = int(rows["train/num_dropped_updates"].sum())
    if "train/num_examples" in rows and (rows["train/num_examples"] == 0).any():
        counts["rounds_without_examples"] = int((rows["train/num_examples"] == 0).sum())
    return counts


def _participation_entry(experiment: Experiment, run_folder: RunFolder) -> dict[str, Any]:
    """Returns the summary's entry on clients that did not take part, if that is simulated."""
    names = experiment.trainer.participation_columns
    if not names:
        return {}
    # The secret samples of former sessions cannot be repeated, but their counts were written.
    rows = run_folder.metrics
    return {"participation": {name: sum(rows[name].tolist()) for name in names}}


def with_client_facts(
    experiment: Experiment, trained: TrainedModel, report: EvaluationReport
) -> EvaluationReport:
    """Adds checks and statistics of clients to a report of the test."""
    data, columns, further = experiment.data, dict(report.columns), dict(report.further)
    outliers = count_outliers(trained, data.train)
    description = {**report.description, **experiment.client_facts, **outliers}
    privacy = experiment.trainer.privacy
    # Attendance stays secret where the privacy guarantee relies on secret sampling.
    reports_attendance = data.test.seen and not (privacy and privacy.is_secret)
    if trained.round_number and experiment.method.is_federated and reports_attendance:
        rounds = trained.round_number
        attended = experiment.trainer.attended_rounds(rounds)
        more_columns, more = attendance_summary(report.results, attended, rounds)
        columns.update(more_columns)
        further.update(more)
    return dataclasses.replace(report, columns=columns, description=description, further=further)


def audit_experiment(experiment: Experiment, *, rounds: int = 4) -> Audit:
    """Measures which values cross between server and clients, and compares with the declared ones.

    Args:
        experiment: The experiment.
        rounds: The number of rounds to run.
    """
    from fedpersonal.audit.audit import guarantee

    promise = guarantee(experiment.trainer.describe_privacy(experiment.options.total_rounds))
    crossings, _ = experiment.task.boundary(experiment)
    audit = experiment.trainer.audit(rounds=rounds)
    after_rounds = [c.name for c in crossings if c not in audit.crossings]
    notes = list(audit.notes)
    if after_rounds:
        notes.append(
            f"declared: {', '.join(after_rounds)} cross once, after the last round, where unseen "
            "users start from them; with --unseen_start=fresh they do not cross"
        )
    return dataclasses.replace(audit, crossings=crossings, notes=notes, guarantee=promise)
