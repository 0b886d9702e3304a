"""One experiment of any task, from data to summary, in a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedpersonal.algorithm import Algorithm, Phase
from fedpersonal.algorithms import fed_recon
from fedpersonal.algorithms.method import Layers, Method
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.options import Options
from fedpersonal.process.boundary import as_table
from fedpersonal.saved_model import save_model
from fedpersonal.simulation.clients import pooled_clients
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.report import report_run
from fedpersonal.tasks.task import Data, EvaluationSet, Source, Task
from fedpersonal.trained import TrainedModel
from fedpersonal.trainer import Trainer


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
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
        evaluated_model: The model that evaluation applies.
    """

    task: Task
    options: Options
    data: Data
    method: Method
    layers: Layers
    model: PartitionedModel
    algorithm: Algorithm
    trainer: Trainer
    evaluated_model: PartitionedModel

    @property
    def settings(self) -> tuple[Options, Layers]:
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
            kept = (trained.kept_by(query.client_ids),) if brings else ()
            return evaluate(trained.weights, *kept)

        return of


def build_experiment(task: Task, source: Source, options: Options) -> Experiment:
    """Splits the data and builds the models and the training process.

    Args:
        task: The task.
        source: Its data, as read.
        options: Its options.

    Raises:
        UserError: If the data do not suffice, or options do not fit them.
    """
    options = task.settle(options)
    return assemble(task, task.split(source, options), options)


def assemble(task: Task, data: Data, options: Options) -> Experiment:
    """Builds the models and the training process of data that are split, for settled options."""
    method, sizes = task.method(options), SimpleNamespace(**task.sizes(data))
    model, algorithm, layers = task.build(sizes, options)
    train = task.training_clients(model, data.train, options)
    work: dict[str, Any] = {
        "clients_per_round": options.clients_per_round,
        "batch_size": options.client_batch_size,
        "local_steps": options.local_steps or None,
        "dropout_rate": options.dropout_rate,
        "execution": options.execution,
    }
    if not method.is_federated:
        batch_size, rounds = task.pool(options, train.num_clients)
        everybody = pooled_clients(train, rounds_per_epoch=rounds, seed=options.seed)
        work = {"clients_per_round": 1, "batch_size": batch_size, "clients_of_round": everybody}
    trainer = Trainer(
        model,
        algorithm,
        train,
        server_optimizer=build_server_optimizer(
            options.server_optimizer,
            learning_rate=options.server_learning_rate,
            epsilon=options.server_epsilon,
            initial_accumulator=options.server_initial_accumulator,
            decay_rounds=options.decay_rounds,
        ),
        packing=options.packing,
        seed=options.seed,
        **work,
    )
    if not method.trains:
        trainer.crossings = []  # Its process gives initial weights alone, and runs no round.
    evaluated = task.evaluated_model(sizes, options, model)
    return Experiment(task, options, data, method, layers, model, algorithm, trainer, evaluated)


def run_experiment(
    experiment: Experiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates the test clients, and writes the run folder.

    Args:
        experiment: The experiment.
        run_folder: Where the run goes, or goes on.
        progress: Whether to report progress on stderr.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or local state cannot be stored.
    """
    task, options = experiment.task, experiment.options
    crossings, further = task.boundary(experiment)
    run_folder.write_boundary([*as_table(crossings), *further])
    if not experiment.method.trains:
        trained = experiment.trainer.untrained()
    else:
        validate = task.validate(experiment)
        trained = experiment.trainer.fit(
            rounds=options.total_rounds,
            folder=run_folder,
            validate=lambda trained: validate(trained).overall(),
            rounds_per_eval=options.rounds_per_eval,
            rounds_per_checkpoint=options.rounds_per_checkpoint,
            progress=progress,
        )
    with trained:
        report = task.test(experiment, trained)
        save_model(run_folder, trained, {"sizes": task.sizes(experiment.data)})
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
            **task.describe(experiment),
            **report.description,
        },
    )
