"""An experiment run from its first round to its summary, in a run folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal import runtime
from fedpersonal.evaluation.guess import Guess, overall
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.federated.boundary import as_table
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.record import read_num_shards
from fedpersonal.runs.saved import save_model
from fedpersonal.runs.tested import TestReport, report_run, test_summary
from fedpersonal.runs.validation import find_best_round
from fedpersonal.tasks.experiment import Experiment, build_experiment
from fedpersonal.tasks.findings import tell_attendance, tell_outliers
from fedpersonal.tasks.standalone import EPOCHS
from fedpersonal.tasks.task import DataT, EvaluationSet, OptionsT, SourceT, Task
from fedpersonal.training.callbacks import EarlyStopping
from fedpersonal.training.trained import TrainedModel

if TYPE_CHECKING:
    from fedpersonal.audit.audit import Audit


def unseen_summary(
    experiment: Experiment,
    part: EvaluationSet,
    results: ClientResults,
    guesses: Mapping[str, Guess],
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the summary's entry of clients who never took part, beside that of those who did.

    Args:
        experiment: The experiment.
        part: The clients.
        results: Of these clients.
        guesses: What their results must beat.
        metrics: Further metrics over all of them.
    """
    return {
        **test_summary(results, {**results.overall(), **metrics}),
        "is_personalised": experiment.is_personalised(part),
        "guesses": overall(guesses),
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
        config: What `config.json` says of the run.
        may_differ: Those of its entries with which a run may go on.
        data: What tells the data from others, as of `RunFolder.open`.
        typed: The options that the user has typed, none of which may be without an effect.

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
    options, validate = experiment.options, experiment.task.validate(experiment)
    watching: dict[str, Any] = {}
    if options.watches:
        metric, mode = experiment.watched
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
    """Trains, evaluates the test clients, and writes the run folder, in which a run may go on.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    task, options = experiment.task, experiment.options
    crossings, further = task.boundary(experiment)
    run_folder.write_boundary([*as_table(crossings), *further])
    # What has diverged is told in one line, without NumPy's warnings.
    quiet: Any = np.errstate(over="ignore", invalid="ignore")
    with train_experiment(experiment, run_folder, progress=progress) as trained, quiet:
        report = task.test(experiment, trained)
        about = {"sizes": task.sizes(experiment.data), "names": task.names(experiment)}
        if "standalone" in experiment.findings:
            about["chosen"] = {EPOCHS: experiment.options.values()[EPOCHS]}
        save_model(run_folder, trained, about, snapshot=trained.snapshot)
        guesses = task.guesses(experiment, experiment.data.test)
        recommendations = task.recommend(experiment, trained, report.results)
        report = with_findings(experiment, trained, report)
    return report_run(
        run_folder,
        report,
        guesses=guesses,
        recommendations=recommendations,
        description={
            "dataset": experiment.data.name,
            "method": options.method,
            "rounds": _count_rounds(trained),
            "seed": options.seed,
            "num_training_clients": experiment.data.train.num_clients,
            "is_personalised": experiment.is_personalised(experiment.data.test),
            **task.describe(experiment),
            **_tell_validation(experiment, trained, run_folder),
            **_tell_dropped(trained, run_folder),
            **_tell_privacy(experiment, trained),
            **_tell_participation(experiment, run_folder),
            **report.description,
        },
    )


def _count_rounds(trained: TrainedModel) -> int:
    """Returns how many rounds a run has had in all sessions."""
    loop = trained.loop
    return loop.resumed_from + loop.rounds_run if loop else 0


def _tell_validation(
    experiment: Experiment, trained: TrainedModel, run_folder: RunFolder
) -> dict[str, Any]:
    """Returns the summary's entry on the round that validated best, if rounds were validated."""
    if trained.loop is None:
        return {}
    options, task = experiment.options, experiment.task
    metrics = [experiment.watched[0]] if options.watches else task.metrics
    found = find_best_round(run_folder.metrics, metrics)
    if found is None:
        return {}
    stopped = {"stopped": trained.loop.stop_reason} if trained.loop.stop_reason else {}
    entry = {**dataclasses.asdict(found), "tested_round": trained.round_number, **stopped}
    return {"validation": entry}


def _tell_privacy(experiment: Experiment, trained: TrainedModel) -> dict[str, Any]:
    """Returns the summary's entry on differential privacy, if there is any."""
    told = experiment.trainer.describe_privacy(_count_rounds(trained))
    if not told:
        return {}
    sizes = ", ".join(experiment.task.sizes(experiment.data))
    by_seed = "noise and draw of clients, for anyone who knows the seed (config.json)"
    kept = "what clients keep (local_state.sqlite), which stays on their devices elsewhere"
    outside = [
        "training metrics and counts (metrics.csv), evaluations and per_client.csv",
        *([by_seed] if told["draw"] == "public" else []),
        f"the number of training clients, and what the model is built of: {sizes}",
        *([kept] if experiment.algorithm.keeps else []),
        *experiment.task.outside_privacy(experiment),
    ]
    return {"privacy": {**told, "outside": outside}}


def _tell_dropped(trained: TrainedModel, run_folder: RunFolder) -> dict[str, int]:
    """Returns the summary's counts of updates not finite, and of rounds without examples."""
    if trained.loop is None:
        return {}
    rows, counts = run_folder.metrics, {}
    if "train/num_dropped_updates" in rows:
        counts["num_dropped_updates"] = int(rows["train/num_dropped_updates"].sum())
    if "train/num_examples" in rows and (rows["train/num_examples"] == 0).any():
        counts["rounds_without_examples"] = int((rows["train/num_examples"] == 0).sum())
    return counts


def _tell_participation(experiment: Experiment, run_folder: RunFolder) -> dict[str, Any]:
    """Returns the summary's entry on clients that did not take part, if any were to."""
    names = experiment.trainer.participation_columns
    if not names:
        return {}
    # A draw that was secret in former sessions cannot be drawn again.
    rows = run_folder.metrics
    return {"participation": {name: sum(rows[name].tolist()) for name in names}}


def with_findings(experiment: Experiment, trained: TrainedModel, report: TestReport) -> TestReport:
    """Adds what is known of the clients to what the test came to."""
    data, columns, further = experiment.data, dict(report.columns), dict(report.further)
    told = {**report.description, **experiment.findings, **tell_outliers(trained, data.train)}
    privacy = experiment.trainer.privacy
    # Who was drawn, and how often, stays secret where that is what privacy counts on.
    is_told = data.test.seen and not (privacy and privacy.is_secret)
    if trained.round_number and experiment.method.is_federated and is_told:
        rounds = trained.round_number
        attended = experiment.trainer.attended_rounds(rounds)
        more_columns, more = tell_attendance(report.results, attended, rounds)
        columns.update(more_columns)
        further.update(more)
    return dataclasses.replace(report, columns=columns, description=told, further=further)


def audit_experiment(experiment: Experiment, *, rounds: int = 4) -> Audit:
    """Checks by experiment what crosses in the rounds of an experiment, and what else crosses."""
    from fedpersonal.audit.audit import guarantee

    promise = guarantee(experiment.trainer.describe_privacy(experiment.options.total_rounds))
    crossings, _ = experiment.task.boundary(experiment)
    found = experiment.trainer.audit(rounds=rounds)
    further = [c.name for c in crossings if c not in found.crossings]
    notes = list(found.notes)
    if further:
        notes.append(
            f"declared: {', '.join(further)} cross once, after the last round, where unseen users "
            "start from them; --unseen_start=fresh does without"
        )
    return dataclasses.replace(found, crossings=crossings, notes=notes, guarantee=promise)
