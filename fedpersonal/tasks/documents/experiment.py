"""One experiment on document classification from texts to summary, in a run folder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedpersonal.algorithm import Phase
from fedpersonal.atomic_files import atomic_write
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.splits import split_support_query
from fedpersonal.errors import UserError, check_choice
from fedpersonal.evaluation.auc import auc
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.server import SERVER_OPTIMIZERS, build_server_optimizer
from fedpersonal.process.boundary import as_table
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.tasks import training_run
from fedpersonal.tasks.centralized_training import build_centralized_training
from fedpersonal.tasks.documents.data import DocumentData, guessing_accuracy
from fedpersonal.tasks.documents.methods import (
    LOCAL_STATES,
    METHODS,
    USER_LAYER,
    Method,
    build_algorithm,
    build_model,
    rebuilding_phases,
)
from fedpersonal.tasks.federated_training import Training, build_training
from fedpersonal.tasks.run_report import report_run, test_summary

_EVALUATED_TOGETHER = 100
EMBEDDINGS = "user_embeddings.npz"


@dataclasses.dataclass(frozen=True)
class DocumentOptions:
    """Everything that an experiment on labelled texts can be told.

    Attributes:
        algorithm: One of `METHODS`.
        local_state: Whether clients keep local variables from round to round (`kept`), or start
            afresh in each (`rebuilt`): the stateless twin of a stateful method.
        text_length: Characters of a text that are read.
        total_rounds: Rounds. Of the centralized methods a round is as many examples.
        clients_per_round: Users drawn for a round.
        dropout_rate: Share of the users drawn that then drop out.
        client_batch_size: Texts a batch.
        client_learning_rate: SGD rate of the global variables.
        local_learning_rate: SGD rate of the local ones, and of a server's user embeddings.
        server_optimizer: One of `SERVER_OPTIMIZERS`; the centralized methods have none.
        server_learning_rate: Its rate.
        decay_rounds: Rounds over which the rates of the server (also a centralized method's) and
            of local variables fall to 0; 0 for constant rates.
        server_epsilon: Epsilon of `adam`, `yogi` and `adagrad`.
        server_initial_accumulator: Initial preconditioner of `yogi` and `adagrad`.
        local_epochs: Passes over a user's texts.
        local_only_epochs: Passes before them that move the local variables alone, of `fed_rep`.
        max_steps: Bound on their steps, or None.
        reconstruction_learning_rate: SGD rate of rebuilding local variables where none are kept.
        reconstruction_epochs: Passes over the support set.
        weighting: Users' weights: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a user's update, or None.
        user_dim: Size of a user embedding.
        character_dim: Size of a character embedding.
        lstm_units: Units of each of the two LSTMs.
        hidden_units: Units of the MLP's hidden layers.
        execution: `packed` or `per_client`.
        packing: `stacked` or `pooled`.
        rounds_per_eval: Rounds between evaluations.
        rounds_per_checkpoint: Rounds between checkpoints.
        seed: Seed of splits, initial values and sampling.
    """

    algorithm: str = "furl"
    local_state: str = "kept"
    text_length: int = 80
    total_rounds: int = 7000
    clients_per_round: int = 10
    dropout_rate: float = 0.0
    client_batch_size: int = 16
    client_learning_rate: float = 0.3
    local_learning_rate: float = 0.3
    server_optimizer: str = "sgd"
    server_learning_rate: float = 1.0
    decay_rounds: int = 0
    server_epsilon: float = 1e-3
    server_initial_accumulator: float = 0.0
    local_epochs: int = 1
    local_only_epochs: int = 1
    max_steps: int | None = None
    reconstruction_learning_rate: float = 0.3
    reconstruction_epochs: int = 5
    weighting: str = "num_examples"
    max_update_norm: float | None = None
    user_dim: int = 32
    character_dim: int = 32
    lstm_units: int = 32
    hidden_units: tuple[int, ...] = (64,)
    execution: str = "packed"
    packing: str = "pooled"
    rounds_per_eval: int = 200
    rounds_per_checkpoint: int = 100
    seed: int = 0

    def __post_init__(self):
        for option, choices in (
            ("algorithm", tuple(METHODS)),
            ("local_state", LOCAL_STATES),
            ("execution", ("packed", "per_client")),
            ("server_optimizer", SERVER_OPTIMIZERS),
        ):
            check_choice("DocumentOptions", option, getattr(self, option), choices)
        if 0 < self.decay_rounds < self.total_rounds:
            raise UserError(
                f"decay_rounds={self.decay_rounds} must be 0 or at least total_rounds="
                f"{self.total_rounds}: the rounds after it would change nothing"
            )

    @property
    def method(self) -> Method:
        """The method named."""
        return METHODS[self.algorithm]

    @property
    def keeps(self) -> bool:
        """Whether users keep local variables."""
        return bool(self.method.local_layers) and self.local_state == "kept"


@dataclasses.dataclass(frozen=True, eq=False)
class DocumentExperiment:
    """The pieces of one experiment.

    Attributes:
        options: What it was asked.
        data: The texts, split.
        model: The partitioned model.
        training: The training process and its cohorts.
    """

    options: DocumentOptions
    data: DocumentData
    model: PartitionedModel
    training: Training

    def evaluation(
        self, support: ClientDataset, query: ClientDataset, phases: tuple[Phase, ...] = (), **kwargs
    ) -> Callable[..., ClientResults]:
        """Packs users and returns what evaluates weights, and what they have kept, on them.

        Args:
            support: What phases work on.
            query: What is predicted, of the same users.
            phases: What personalises before prediction, starting from what is kept.
            **kwargs: Of `build_evaluation`.
        """
        return build_evaluation(
            self.model,
            phases,
            _for_model(self.model, support),
            _for_model(self.model, query),
            batch_size=self.options.client_batch_size,
            clients=_EVALUATED_TOGETHER,
            packing="pooled",
            seed=self.options.seed,
            **kwargs,
        )

    def known_users(self, part: str, **kwargs: Any) -> Callable[..., ClientResults]:
        """Returns what evaluates the users who train, on their `validation` or `test` texts."""
        query = getattr(self.data, part)
        if self.method_rebuilds:
            return self.evaluation(
                self.data.train, query, rebuilding_phases(self.options), **kwargs
            )
        nothing = query.filter_examples(np.zeros(query.num_examples, bool))
        return self.evaluation(nothing, query, with_kept=self.options.keeps, **kwargs)

    @property
    def method_rebuilds(self) -> bool:
        """Whether users have local variables that they do not keep."""
        return bool(self.model.local_variables) and not self.options.keeps


def build_experiment(data: DocumentData, options: DocumentOptions) -> DocumentExperiment:
    """Builds the model and the training process.

    Args:
        data: The texts, split, of `text_length` characters.
        options: The experiment's options.
    """
    method = options.method
    model = build_model(
        data,
        method,
        user_dim=options.user_dim,
        character_dim=options.character_dim,
        lstm_units=options.lstm_units,
        hidden_units=options.hidden_units,
    )
    algorithm = build_algorithm(options.algorithm, options)
    train = _for_model(model, data.train)
    clients_per_round = min(options.clients_per_round, train.num_clients)
    shared = {"batch_size": options.client_batch_size, "seed": options.seed}
    if not method.is_federated:
        training = build_centralized_training(
            model,
            algorithm,
            train,
            server_optimizer=build_server_optimizer(
                "sgd", learning_rate=1.0, decay_rounds=options.decay_rounds
            ),
            # As many examples a round as federated rounds have on average.
            rounds_per_epoch=max(1, round(train.num_clients / clients_per_round)),
            packing=options.packing,
            **shared,
        )
        return DocumentExperiment(options, data, model, training)
    training = build_training(
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
        sample=ClientSampler(
            num_clients=train.num_clients,
            clients_per_round=clients_per_round,
            seed=options.seed,
            dropout_rate=options.dropout_rate,
        ).sample,
        clients_per_round=clients_per_round,
        execution=options.execution,
        packing=options.packing,
        **shared,
    )
    return DocumentExperiment(options, data, model, training)


def run_experiment(
    experiment: DocumentExperiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates known and withheld users, and writes the run folder.

    Args:
        experiment: The experiment.
        run_folder: Where the run goes, or goes on.
        progress: Whether to report progress on stderr.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or the store cannot be used.
    """
    options, data = experiment.options, experiment.data
    run_folder.write_boundary(as_table(experiment.training.crossings))
    trained = training_run.train(
        experiment.training,
        run_folder,
        options,
        clients=data.train.client_ids,
        evaluate=experiment.known_users("validation", with_before=False),
        progress=progress,
    )
    _write_embeddings(experiment, run_folder, trained.seen)
    results = experiment.known_users("test", with_predictions=data.is_binary)(*trained.seen)
    return report_run(
        run_folder,
        trained.loop,
        results,
        experiment.training.crossings,
        description={
            "dataset": data.name,
            "algorithm": options.algorithm,
            "local_state": options.local_state,
            "num_users": data.num_users,
            "rounds": options.total_rounds,
            "seed": options.seed,
            "guessing": guessing_accuracy(data),
            "withheld": _test_withheld(experiment, trained.seen[0]),
        },
        metrics=_auc(results, data.test) if data.is_binary else None,
    )


def _test_withheld(
    experiment: DocumentExperiment, weights: Mapping[str, np.ndarray]
) -> dict[str, Any] | None:
    """Returns results on the second half of withheld users' texts; the first half rebuilds."""
    data, model = experiment.data, experiment.model
    has_table = USER_LAYER in {v.layer for v in model.global_variables}
    if has_table or not data.withheld.num_clients:
        return None  # A server's table has no row for a user whom it has never seen.
    halves = split_support_query(data.withheld, batch_size=1, split="aggregated")
    phases = rebuilding_phases(experiment.options) if model.local_variables else ()
    evaluate = experiment.evaluation(*halves, phases, with_predictions=data.is_binary)
    results = evaluate(weights)
    metrics = _auc(results, halves[1]) if data.is_binary else {}
    return test_summary(results, {**results.overall(), **metrics})


def _auc(results: ClientResults, query: ClientDataset) -> dict[str, float]:
    """Returns the area under the ROC curve of all clients' examples together, as `auc`.

    Nothing where their labels are all the same.
    """
    is_real = np.arange(results.predictions.shape[1]) < query.counts[:, np.newaxis]
    area = auc(query.labels, results.predictions[is_real])
    return {} if math.isnan(area) else {"auc": area}


def _write_embeddings(experiment: DocumentExperiment, run_folder: RunFolder, seen: tuple) -> None:
    """Keeps the known users' embeddings, as simulations may, for figures 4 and 5."""
    if not experiment.options.method.knows_users:
        return
    name = next(v.name for v in experiment.model.variables if v.layer == USER_LAYER)
    if experiment.options.keeps:
        known, values = seen[1]
        embeddings = values[name][:, 0]
    elif experiment.method_rebuilds:
        return
    else:
        embeddings = np.asarray(seen[0][name])
        known = np.ones(len(embeddings), bool)
    with atomic_write(run_folder.path / EMBEDDINGS, "wb") as file:
        np.savez(
            file,
            users=experiment.data.train.client_ids.astype(str),
            known=known,
            embeddings=embeddings,
        )


def _for_model(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    """Leaves the inputs that the model has; the user is number 0 of a table of one's own."""
    features = {name: dataset.features[name] for name in model.input_spec}
    local = {v.layer for v in model.local_variables}
    if USER_LAYER in local:
        features["user"] = np.zeros_like(features["user"])
    return dataclasses.replace(dataset, features=features)
