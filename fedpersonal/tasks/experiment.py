"""One experiment of any task, from data to summary, in a run folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, Generic

import numpy as np

from fedpersonal import runtime
from fedpersonal.algorithm import Algorithm, Phase
from fedpersonal.algorithms import fed_recon
from fedpersonal.algorithms.method import Layers, Method
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.process.boundary import as_table
from fedpersonal.saved_model import save_model
from fedpersonal.simulation.clients import pooled_clients
from fedpersonal.simulation.run_config import read_num_shards
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.findings import check_clients, tell_never_drawn, tell_outliers
from fedpersonal.tasks.report import report_run
from fedpersonal.tasks.task import DataT, EvaluationSet, OptionsT, SourceT, Task, TestReport
from fedpersonal.trained import TrainedModel
from fedpersonal.trainer import Trainer


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment(Generic[OptionsT, DataT]):
    """The pieces of one experiment.

    Attributes:
        task: The task.
        options: What it was asked, settled.
        data: The data, split.
        method: The method that the options name.
        layers: The model's layers by the part that they play.
        model: The model that trains.
        algorithm: What a client does in a round.
        trainer: What runs the rounds.
        findings: What is known of the clients before a round is run.
        evaluated_model: The model that evaluation applies.
    """

    task: Task[OptionsT, Any, DataT]
    options: OptionsT
    data: DataT
    method: Method
    layers: Layers
    model: PartitionedModel
    algorithm: Algorithm
    trainer: Trainer
    findings: Mapping[str, Any]
    evaluated_model: PartitionedModel

    @property
    def settings(self) -> tuple[OptionsT, Layers]:
        """What a method makes phases of."""
        return self.options, self.layers

    def has_kept(self, part: EvaluationSet) -> bool:
        """Tells whether clients bring local variables that they have kept."""
        return part.seen and self.algorithm.keeps

    def personalization(self, part: EvaluationSet) -> tuple[Phase, ...]:
        """Returns what personalises clients' models before they predict.

        Clients that have kept nothing rebuild their local variables, as FedRecon does; then a
        method may fine-tune.
        """
        lacks = self.evaluated_model.local_variables and not self.has_kept(part)
        phases = fed_recon.rebuilding(self.options) if lacks else ()
        return (*phases, *self.method.finetuning(*self.settings))

    def evaluation(
        self,
        part: EvaluationSet,
        phases: tuple[Phase, ...] | None = None,
        *,
        brings_kept: bool | None = None,
        with_before: bool = True,
        with_predictions: bool = False,
    ) -> Callable[[TrainedModel], ClientResults]:
        """Packs clients and returns what evaluates a trained model on them.

        Args:
            part: The clients.
            phases: What personalises before prediction; None for `personalization`.
            brings_kept: Whether clients start from what they have kept; None for `has_kept`.
            with_before: Whether to predict before personalisation, too.
            with_predictions: Whether predictions are returned.
        """
        task, model = self.task, self.evaluated_model
        brings = self.has_kept(part) if brings_kept is None else brings_kept
        phases = self.personalization(part) if phases is None else phases
        support, query = task.for_evaluation(model, part)
        if not phases and part.support is self.data.train:
            # Packing all that clients have trained on takes long, and nothing would read it.
            support = query.filter_examples(np.zeros(query.num_examples, bool))
        evaluate = build_evaluation(
            model,
            phases,
            support,
            query,
            batch_size=self.options.client_batch_size,
            clients=task.evaluated_together or support.num_clients,
            packing=task.evaluation_packing,
            with_before=with_before,
            with_kept=brings,
            with_predictions=with_predictions,
            seed=self.options.seed,
        )

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
    sizes = SimpleNamespace(**task.sizes(data))
    model, algorithm, layers = task.build(sizes, options)
    findings = check_clients(data, algorithm, options)
    train = task.training_clients(model, data.train, options)
    if method.is_federated:
        work: dict[str, Any] = {
            "clients_per_round": options.clients_per_round,
            "batch_size": options.client_batch_size,
            "local_steps": options.local_steps or None,
            "dropout_rate": options.dropout_rate,
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
        model,
        algorithm,
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
    evaluated = task.evaluated_model(sizes, options, model)
    return Experiment(
        task, options, data, method, layers, model, algorithm, trainer, findings, evaluated
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
        data: A fingerprint of the data.

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
    return experiment, RunFolder.open(path, config, ignore=may_differ, about=about)


def run_experiment(
    experiment: Experiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates the test clients, and writes the run folder, in which a run may go on.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    task, options, trainer = experiment.task, experiment.options, experiment.trainer
    crossings, further = task.boundary(experiment)
    run_folder.write_boundary([*as_table(crossings), *further])
    if experiment.method.trains:
        validate = task.validate(experiment)
        trained = trainer.fit(
            rounds=options.total_rounds,
            folder=run_folder,
            validate=lambda trained: validate(trained).overall(),
            rounds_per_eval=options.rounds_per_eval,
            rounds_per_checkpoint=options.rounds_per_checkpoint,
            progress=progress,
        )
    else:
        trained = trainer.untrained()
    with trained:
        report = task.test(experiment, trained)
        names = {name: column.tolist() for name, column in task.names(experiment).items()}
        about = {"sizes": task.sizes(experiment.data), "names": names}
        save_model(run_folder, trained, about)
        report = _with_findings(experiment, trained, report)
    return report_run(
        run_folder,
        trained.loop,
        report,
        crossings,
        description={
            "dataset": experiment.data.name,
            "algorithm": options.algorithm,
            "rounds": options.total_rounds if experiment.method.trains else 0,
            "seed": options.seed,
            "num_training_clients": experiment.data.train.num_clients,
            **task.describe(experiment),
            **report.description,
        },
    )


def _with_findings(experiment: Experiment, trained: TrainedModel, report: TestReport) -> TestReport:
    """Adds what is known of the clients to what the test came to."""
    data, columns = experiment.data, dict(report.columns)
    told = {**report.description, **experiment.findings, **tell_outliers(trained, data.train)}
    if trained.loop is not None and experiment.method.is_federated and data.test.seen:
        rounds_of = experiment.trainer.count_rounds(experiment.options.total_rounds)
        columns["rounds"], told["never_drawn"] = tell_never_drawn(report.results, rounds_of)
    return dataclasses.replace(report, columns=columns, description=told)
