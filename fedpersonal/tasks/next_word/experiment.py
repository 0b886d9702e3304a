"""One experiment on next word prediction from sentences to summary, in a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpersonal.algorithm import Phase
from fedpersonal.errors import check_choice
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.server import SERVER_OPTIMIZERS, build_server_optimizer
from fedpersonal.process.boundary import as_table
from fedpersonal.simulation.loop import LoopResult
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.tasks import training_run
from fedpersonal.tasks.federated_training import Training, build_training
from fedpersonal.tasks.next_word.data import NextWordData
from fedpersonal.tasks.next_word.methods import (
    METHODS,
    Method,
    build_algorithm,
    build_model,
    build_personalization,
)
from fedpersonal.tasks.run_report import report_run

_EVALUATED_TOGETHER = 100


@dataclasses.dataclass(frozen=True)
class NextWordOptions:
    """Everything that an experiment on text can be told; the defaults are the reference's.

    Attributes:
        algorithm: One of `METHODS`.
        vocab_size: Known words.
        num_oov_buckets: Hash buckets of other words, or None for the method's usual number.
        sequence_length: Tokens a sentence.
        total_rounds: Rounds.
        clients_per_round: Clients drawn for a round.
        dropout_rate: Share of the clients drawn that then drop out.
        client_batch_size: Sentences a batch.
        client_learning_rate: SGD rate of the update phase.
        server_optimizer: One of `SERVER_OPTIMIZERS`, or None for the method's usual one.
        server_learning_rate: Its rate, or None for 1 with `sgd` and 0.1 with others.
        server_epsilon: Epsilon of `adam`, `yogi` and `adagrad`.
        server_initial_accumulator: Initial preconditioner of `yogi` and `adagrad`.
        reconstruction_learning_rate: SGD rate of reconstruction, and of `oov_finetuning`.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps, or None.
        local_epochs: Passes over the query set, or, where nothing is rebuilt, over all data.
        max_local_steps: Bound on their steps, or None.
        finetuning_learning_rate: SGD rate of fine-tuning the whole model.
        finetuning_epochs: Passes over the support set.
        max_finetuning_steps: Bound on their steps, or None.
        split: `aggregated`, `skip` or `shared` support and query sets.
        joint_training: Whether the update phase moves the local variables too.
        weighting: Clients' weights: `num_examples`, which are tokens here, or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
        embedding_dim: Size of an embedding.
        lstm_units: Units of the LSTM.
        projection_dim: Size of the projection before the softmax.
        execution: `packed` or `per_client`.
        rounds_per_eval: Rounds between evaluations.
        rounds_per_checkpoint: Rounds between checkpoints.
        seed: Seed of splits, initial values and sampling.
    """

    algorithm: str = "fed_recon"
    vocab_size: int = 10_000
    num_oov_buckets: int | None = None
    sequence_length: int = 20
    total_rounds: int = 2500
    clients_per_round: int = 200
    dropout_rate: float = 0.0
    client_batch_size: int = 16
    client_learning_rate: float = 0.3
    server_optimizer: str | None = None
    server_learning_rate: float | None = None
    server_epsilon: float = 1e-3
    server_initial_accumulator: float = 0.0
    reconstruction_learning_rate: float = 0.1
    reconstruction_epochs: int = 5
    max_reconstruction_steps: int | None = 100
    local_epochs: int = 5
    max_local_steps: int | None = 100
    finetuning_learning_rate: float = 0.1
    finetuning_epochs: int = 5
    max_finetuning_steps: int | None = 100
    split: str = "aggregated"
    joint_training: bool = False
    weighting: str = "num_examples"
    max_update_norm: float | None = None
    embedding_dim: int = 96
    lstm_units: int = 670
    projection_dim: int = 96
    execution: str = "packed"
    rounds_per_eval: int = 50
    rounds_per_checkpoint: int = 50
    seed: int = 0

    def __post_init__(self):
        check_choice("NextWordOptions", "algorithm", self.algorithm, tuple(METHODS))
        check_choice("NextWordOptions", "execution", self.execution, ("packed", "per_client"))
        if self.server_optimizer is not None:
            check_choice(
                "NextWordOptions", "server_optimizer", self.server_optimizer, SERVER_OPTIMIZERS
            )

    @property
    def method(self) -> Method:
        """The method named."""
        return METHODS[self.algorithm]

    def settled(self) -> NextWordOptions:
        """Returns the options with the method's usual values in place of None."""
        method = self.method
        optimizer = self.server_optimizer or method.server_optimizer
        rate, buckets = self.server_learning_rate, self.num_oov_buckets
        return dataclasses.replace(
            self,
            num_oov_buckets=method.num_oov_buckets if buckets is None else buckets,
            server_optimizer=optimizer,
            server_learning_rate=(1.0 if optimizer == "sgd" else 0.1) if rate is None else rate,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class NextWordExperiment:
    """The pieces of one experiment.

    Attributes:
        options: What it was asked, settled.
        data: The sentences, split.
        model: The partitioned model.
        training: The training process and its cohorts.
    """

    options: NextWordOptions
    data: NextWordData
    model: PartitionedModel
    training: Training

    def evaluation(
        self, part: str, phases: tuple[Phase, ...] | None = None, *, with_before: bool = True
    ) -> Callable[[Mapping[str, np.ndarray]], ClientResults]:
        """Packs the `validation` or the `test` clients and returns what evaluates weights on them.

        Args:
            part: `validation` or `test`.
            phases: What personalises before prediction; None for the method's own.
            with_before: Whether to predict before personalisation, too.
        """
        clients = getattr(self.data, part)
        if phases is None:
            phases = build_personalization(self.options.method, self.options)
        return build_evaluation(
            self.model,
            phases,
            clients.support,
            clients.query,
            batch_size=self.options.client_batch_size,
            clients=_EVALUATED_TOGETHER,
            packing="pooled",
            with_before=with_before,
            seed=self.options.seed,
        )


def build_experiment(data: NextWordData, options: NextWordOptions) -> NextWordExperiment:
    """Builds the model and the training process.

    Args:
        data: The sentences, split with the vocabulary and buckets that the options ask for.
        options: The experiment's options.
    """
    options = options.settled()
    model = build_model(
        data.vocabulary,
        rebuilds=options.method.rebuilds,
        embedding_dim=options.embedding_dim,
        lstm_units=options.lstm_units,
        projection_dim=options.projection_dim,
    )
    clients_per_round = min(options.clients_per_round, data.train.num_clients)
    training = build_training(
        model,
        build_algorithm(options.method, options),
        data.train,
        server_optimizer=build_server_optimizer(
            options.server_optimizer,
            learning_rate=options.server_learning_rate,
            epsilon=options.server_epsilon,
            initial_accumulator=options.server_initial_accumulator,
        ),
        sample=ClientSampler(
            num_clients=data.train.num_clients,
            clients_per_round=clients_per_round,
            seed=options.seed,
            dropout_rate=options.dropout_rate,
        ).sample,
        clients_per_round=clients_per_round,
        batch_size=options.client_batch_size,
        execution=options.execution,
        packing="pooled",
        seed=options.seed,
    )
    return NextWordExperiment(options, data, model, training)


def train(
    experiment: NextWordExperiment, run_folder: RunFolder, *, progress: bool = True
) -> LoopResult:
    """Runs the rounds that are missing, validating on the way."""
    run_folder.write_boundary(as_table(experiment.training.crossings))
    return training_run.train(
        experiment.training,
        run_folder,
        experiment.options,
        evaluate=experiment.evaluation("validation", with_before=False),
        progress=progress,
    ).loop


def run_experiment(
    experiment: NextWordExperiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates all test clients, and writes the run folder.

    Args:
        experiment: The experiment.
        run_folder: Where the run goes, or goes on.
        progress: Whether to report progress on stderr.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or no test client has a query set.
    """
    result = train(experiment, run_folder, progress=progress)
    results = experiment.evaluation("test")(result.state.global_model_weights.trainable)
    options = experiment.options
    return report_run(
        run_folder,
        result,
        results,
        experiment.training.crossings,
        description={
            "dataset": experiment.data.name,
            "algorithm": options.algorithm,
            "vocab_size": options.vocab_size,
            "num_oov_buckets": options.num_oov_buckets,
            "vocabulary_coverage": experiment.data.coverage,
            "rounds": options.total_rounds,
            "seed": options.seed,
        },
    )
