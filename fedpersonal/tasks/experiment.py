"""One experiment of any task, from data to summary, in a run folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic

from fedpersonal import runtime
from fedpersonal.algorithm import Phase
from fedpersonal.algorithms.method import Method
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.process.boundary import as_table
from fedpersonal.process.privacy import DifferentialPrivacy
from fedpersonal.saved_model import save_model
from fedpersonal.simulation.clients import pooled_clients
from fedpersonal.simulation.privacy_budget import PrivacyBudget
from fedpersonal.simulation.run_config import read_num_shards
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.findings import check_clients, tell_never_drawn, tell_outliers
from fedpersonal.tasks.options import RunOptions
from fedpersonal.tasks.report import report_run
from fedpersonal.tasks.task import (
    Built,
    DataT,
    EvaluationSet,
    OptionsT,
    SourceT,
    Task,
    TestReport,
)
from fedpersonal.trained import TrainedModel
from fedpersonal.trainer import Trainer


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment(Built, Generic[OptionsT, DataT]):
    """The pieces of one experiment, beside those that its task has built.

    Attributes:
        task: The task.
        options: What it was asked, settled.
        data: The data, split.
        method: The method that the options name.
        trainer: What runs the rounds.
        findings: What is known of the clients before a round is run.
    """

    task: Task[OptionsT, Any, DataT]
    options: OptionsT
    data: DataT
    method: Method
    trainer: Trainer
    findings: Mapping[str, Any]

    def has_kept(self, part: EvaluationSet) -> bool:
        """Tells whether clients bring local variables that they have kept."""
        return part.seen and self.algorithm.keeps

    def evaluation(
        self,
        part: EvaluationSet,
        phases: tuple[Phase, ...] | None = None,
        *,
        brings_kept: bool | None = None,
        **options: bool,
    ) -> Callable[[TrainedModel], ClientResults]:
        """Packs clients and returns what evaluates a trained model on them.

        Args:
            part: The clients.
            phases: As of `Evaluator.pack`.
            brings_kept: Whether clients start from what they have kept; None for `has_kept`.
            **options: The others of `Evaluator.pack`.
        """
        brings = self.has_kept(part) if brings_kept is None else brings_kept
        phases = self.evaluator.personalization(brings) if phases is None else phases
        support, query = self.task.for_evaluation(self.evaluator.model, part)
        if not phases and part.support is self.data.train:
            # Packing all that clients have trained on takes long, and nothing would read it.
            support = query.head(0)
        evaluate = self.evaluator.pack(support, query, phases, has_kept=brings, **options)

        def of(trained: TrainedModel) -> ClientResults:
            kept_by = trained.kept_by if brings else None
            return evaluate(trained.weights, kept_by and kept_by(query.client_ids.tolist()))

        return of


def build_experiment(
    task: Task[OptionsT, SourceT, DataT],
    source: SourceT,
    options: OptionsT,
    *,
    shards: int | None = None,
) -> Experiment[OptionsT, DataT]:
    """Splits data as read, and builds the models and the training process.

    Args:
        task: The task.
        source: The data.
        options: The options.
        shards: Into how many shards a run that goes on divides its cohorts.

    Raises:
        UserError: If the data do not suffice, or options do not fit them.
    """
    options = task.settle(options)
    data, method = task.split(source, options), task.method(options)
    built = task.build(task.sizes(data), options)
    findings = check_clients(data, built.algorithm, options)
    train = task.training_clients(built.model, data.train, options)
    if options.is_private and not (method.is_federated and method.trains):
        raise UserError(
            f"--algorithm={options.algorithm} sends no clients' updates that differential privacy "
            "could hide; leave --dp_... out."
        )
    participation = options.participation
    if participation and not (method.is_federated and method.trains):
        raise UserError(
            f"--algorithm={options.algorithm} has no rounds that clients could drop out of; leave "
            "options of participation out."
        )
    drawn_from = len(participation.eligible(train)) if participation else train.num_clients
    privacy = _privacy(options, drawn_from)
    if method.is_federated:
        work: dict[str, Any] = {
            "clients_per_round": options.clients_per_round,
            "batch_size": options.client_batch_size,
            "local_steps": options.local_steps or None,
            "participation": participation,
            "client_sampling": options.client_sampling,
            "privacy": privacy if options.is_private else None,
            "execution": options.execution,
        }
    elif isinstance(train, ClientDataset):
        batch_size, rounds = task.pool(options, train.num_clients)
        everybody = pooled_clients(train, rounds_per_epoch=rounds, seed=options.seed)
        work = {"clients_per_round": 1, "batch_size": batch_size, "clients_of_round": everybody}
    else:
        raise UserError(
            f"--algorithm={options.algorithm} needs all examples at once, and {data.name} has too "
            "many for that: its clients are read when they are drawn."
        )
    optimizer, rate = options.server_optimizer, options.server_learning_rate
    assert optimizer and rate  # The task has settled them.
    trainer = Trainer(
        built.model,
        built.algorithm,
        train,
        server_optimizer=build_server_optimizer(
            optimizer,
            learning_rate=rate,
            epsilon=options.server_epsilon,
            initial_accumulator=options.server_initial_accumulator,
            decay_rounds=options.decay_rounds,
        ),
        packing=options.packing,
        shards=shards or options.shards,
        seed=options.seed,
        **work,
    )
    if not method.trains:
        trainer.crossings = []  # Its process gives initial weights alone, and runs no round.
    return Experiment(
        **vars(built),
        task=task,
        options=options,
        data=data,
        method=method,
        trainer=trainer,
        findings=findings,
    )


def _privacy(options: RunOptions, num_clients: int) -> DifferentialPrivacy:
    """Returns what options ask for, with the noise found; none where they ask for none."""
    noise = options.dp_noise_multiplier
    if options.dp_target_epsilon is not None:
        noise = PrivacyBudget.for_epsilon(
            options.dp_target_epsilon,
            rounds=options.total_rounds,
            num_clients=num_clients,
            clients_per_round=min(options.clients_per_round, num_clients),
            sampling=options.client_sampling,
            delta=options.dp_delta,
        ).noise_multiplier
    return DifferentialPrivacy(
        noise_multiplier=noise or 0.0,
        clip_norm=options.dp_clip_norm,
        clipping=options.dp_clipping,
        target_quantile=options.dp_target_quantile,
        noise=options.dp_noise,
        delta=options.dp_delta,
    )


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
