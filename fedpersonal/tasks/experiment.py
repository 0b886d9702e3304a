"""One experiment of any task, from data to summary, in a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpersonal.algorithm import Algorithm, Phase
from fedpersonal.algorithms import fed_recon
from fedpersonal.algorithms.method import Layers, Method
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.options import Options
from fedpersonal.process.boundary import as_table
from fedpersonal.simulation.loop import LoopResult
from fedpersonal.simulation.model_file import SavedModel, read_model, write_model
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.tasks import training_run
from fedpersonal.tasks.federated_training import (
    Training,
    build_centralized_training,
    build_training,
)
from fedpersonal.tasks.report import report_run
from fedpersonal.tasks.task import Data, EvaluationSet, Source, Task

Kept = tuple[np.ndarray, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """What rounds have led to.

    Attributes:
        weights: Global variable's name to value.
        kept_by: Maps clients' names to who of them has kept local variables, bool (n,), and local
            variable's name to (n, ...); None where clients keep nothing.
        loop: The rounds' times; None between rounds.
    """

    weights: Mapping[str, np.ndarray]
    kept_by: Callable[[np.ndarray], Kept] | None
    loop: LoopResult | None = None


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
        training: The training process and its cohorts.
        evaluated_model: The model that evaluation applies.
    """

    task: Task
    options: Options
    data: Data
    method: Method
    layers: Layers
    model: PartitionedModel
    algorithm: Algorithm
    training: Training
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
    ) -> Callable[[Trained], ClientResults]:
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

        def of(trained: Trained) -> ClientResults:
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
    method = task.method(options)
    model = task.build_model(data, options, method.local_layers(options, task.layers))
    names = tuple(dict.fromkeys(v.layer for v in model.variables))
    parts = {
        part: tuple(name for name in getattr(task.layers, part) if name in names)
        for part in ("embedding", "head", "body")
    }
    layers = Layers(**parts, everything=names)
    algorithm = method.build(options, layers)
    server_optimizer = build_server_optimizer(
        options.server_optimizer,
        learning_rate=options.server_learning_rate,
        epsilon=options.server_epsilon,
        initial_accumulator=options.server_initial_accumulator,
        decay_rounds=options.decay_rounds,
    )
    train = task.training_clients(model, data.train, options)
    shared = {"server_optimizer": server_optimizer, "packing": options.packing}
    if not method.is_federated:
        batch_size, rounds = task.pool(options, train.num_clients)
        training = build_centralized_training(
            model,
            algorithm,
            train,
            batch_size=batch_size,
            rounds_per_epoch=rounds,
            seed=options.seed,
            **shared,
        )
    else:
        clients_per_round = min(options.clients_per_round, train.num_clients)
        sampler = ClientSampler(
            num_clients=train.num_clients,
            clients_per_round=clients_per_round,
            seed=options.seed,
            dropout_rate=options.dropout_rate,
        )
        training = build_training(
            model,
            algorithm,
            train,
            sample=sampler.sample,
            clients_per_round=clients_per_round,
            batch_size=options.client_batch_size,
            execution=options.execution,
            examples_per_round=options.local_steps * options.client_batch_size or None,
            seed=options.seed,
            **shared,
        )
    evaluated = task.evaluated_model(data, options, model)
    return Experiment(task, options, data, method, layers, model, algorithm, training, evaluated)


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
    validate = task.validate(experiment)
    with training_run.open_run(experiment.training, run_folder) as run:
        loop = run.rounds(
            options, lambda state: validate(_trained(run, state)).overall(), progress=progress
        )
        trained = dataclasses.replace(_trained(run, loop.state), loop=loop)
        report = task.test(experiment, trained)
    write_model(run_folder.path, SavedModel(trained.weights, task.names(experiment)))
    return report_run(
        run_folder,
        loop,
        report,
        crossings,
        description={
            "dataset": experiment.data.name,
            "algorithm": options.algorithm,
            "rounds": options.total_rounds,
            "seed": options.seed,
            "num_training_clients": experiment.data.train.num_clients,
            **task.describe(experiment),
            **report.description,
        },
    )


def read_trained(experiment: Experiment, folder: str | os.PathLike) -> Trained:
    """Returns what a run that has ended has trained, for more evaluations of it.

    Args:
        experiment: The run's experiment.
        folder: Its folder.

    Raises:
        UserError: If the folder's files are missing or damaged.
    """
    weights, variables = read_model(folder).weights, experiment.training.kept_variables
    store = pathlib.Path(folder) / training_run.STORE

    def kept_by(client_ids: np.ndarray) -> Kept:
        with contextlib.closing(LocalStateStore.open(store, variables)) as opened:
            return opened.unpack(opened.read(client_ids.tolist()))

    return Trained(weights, kept_by if variables else None)


def _trained(run: training_run.Run, state: Any) -> Trained:
    return Trained(run.weights(state), run.kept_by(state))
