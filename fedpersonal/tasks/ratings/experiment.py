"""One experiment on ratings from data to summary, in a run folder."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.errors import check_choice
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.server import build_server_optimizer
from fedpersonal.process.boundary import as_table
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.tasks import training_run
from fedpersonal.tasks.centralized_training import build_centralized_training
from fedpersonal.tasks.federated_training import Training, build_training
from fedpersonal.tasks.ratings.data import RatingData, split_ratings
from fedpersonal.tasks.ratings.prediction import RatingEvaluation, all_users_model, one_user_model
from fedpersonal.tasks.run_report import report_run

ALGORITHMS = ("fed_recon", "fed_avg", "centralized")


@dataclasses.dataclass(frozen=True)
class RatingOptions:
    """Everything that an experiment on ratings can be told; the defaults are the reference's.

    The paper leaves hyperparameters to its appendix C.1; these are those of its reference code.

    Attributes:
        algorithm: `fed_recon`, `fed_avg` or `centralized`.
        protocol: `unseen_users` or `seen_users`, see `split_ratings`.
        total_rounds: Rounds; for `centralized`, passes over the data.
        clients_per_round: Clients drawn for a round.
        dropout_rate: Share of the clients drawn that then drop out.
        client_batch_size: Examples a batch on clients.
        pool_batch_size: Examples a batch of `centralized`.
        client_learning_rate: SGD rate of the update phase.
        server_optimizer: `sgd`, `momentum`, `adam`, `yogi` or `adagrad`.
        server_learning_rate: Its rate.
        server_epsilon: Epsilon of `adam`, `yogi` and `adagrad`.
        reconstruction: `gradient` or `ridge`.
        reconstruction_learning_rate: SGD rate of gradient reconstruction.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps.
        local_epochs: Passes over the query set, or all data.
        max_local_steps: Bound on their steps; not applied to `centralized`.
        split: `skip`, `aggregated` or `shared` support and query sets.
        joint_training: Whether the update phase moves the local variables too.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for the user bias; None for `ridge_l2`.
        weighting: `num_examples` or `uniform`.
        max_update_norm: Bound on the norm of a client's update, or None.
        embedding_dim: K.
        embedding_stddev: Standard deviation of the embeddings' normal initial values.
        use_biases: Whether the model has user and item biases.
        rating_offset: Constant added to predictions.
        l2: Penalty of the embeddings in use, in the loss.
        max_ratings_per_user: Ratings kept of a user, or None for all.
        execution: `packed` or `per_client`.
        rounds_per_eval: Rounds between evaluations.
        rounds_per_checkpoint: Rounds between checkpoints.
        seed: Seed of splits, initial values and sampling.
    """

    algorithm: str = "fed_recon"
    protocol: str = "unseen_users"
    total_rounds: int = 500
    clients_per_round: int = 100
    dropout_rate: float = 0.0
    client_batch_size: int = 5
    pool_batch_size: int = 100
    client_learning_rate: float = 0.5
    server_optimizer: str = "sgd"
    server_learning_rate: float = 1.0
    server_epsilon: float = 1e-3
    reconstruction: str = "gradient"
    reconstruction_learning_rate: float = 0.1
    reconstruction_epochs: int = 5
    max_reconstruction_steps: int | None = 50
    local_epochs: int = 1
    max_local_steps: int | None = 50
    split: str = "skip"
    joint_training: bool = False
    ridge_l2: float = 10.0
    ridge_bias_l2: float | None = None
    weighting: str = "num_examples"
    max_update_norm: float | None = None
    embedding_dim: int = 50
    embedding_stddev: float = 0.1
    use_biases: bool = False
    rating_offset: float = 0.0
    l2: float = 0.0
    max_ratings_per_user: int | None = 300
    execution: str = "packed"
    rounds_per_eval: int = 50
    rounds_per_checkpoint: int = 50
    seed: int = 0

    def __post_init__(self):
        check_choice("RatingOptions", "algorithm", self.algorithm, ALGORITHMS)
        check_choice("RatingOptions", "execution", self.execution, ("packed", "per_client"))


def build_fed_recon(options: RatingOptions) -> Algorithm:
    """Returns FedRecon's phases: those that train, or those that only evaluation runs."""
    optimizers = tff.learning.optimizers
    return fed_recon(
        client_optimizer=optimizers.build_sgdm(options.client_learning_rate),
        reconstruction_optimizer=optimizers.build_sgdm(options.reconstruction_learning_rate),
        reconstruction=options.reconstruction,
        split=options.split,
        reconstruction_epochs=options.reconstruction_epochs,
        max_reconstruction_steps=options.max_reconstruction_steps,
        local_epochs=options.local_epochs,
        max_local_steps=options.max_local_steps,
        joint_training=options.joint_training,
        ridge_l2=options.ridge_l2,
        ridge_bias_l2=options.ridge_bias_l2,
        weighting=options.weighting,
        max_update_norm=options.max_update_norm,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RatingExperiment:
    """The pieces of one experiment.

    Attributes:
        options: What it was asked.
        data: The ratings, split.
        model: The model that trains.
        training: The training process and its cohorts.
        evaluated_model: The model that evaluation applies: one user's, wherever users are unseen.
        evaluated_algorithm: Its phases that personalise before prediction.
    """

    options: RatingOptions
    data: RatingData
    model: PartitionedModel
    training: Training
    evaluated_model: PartitionedModel
    evaluated_algorithm: Algorithm

    def evaluation(self, part: str) -> RatingEvaluation:
        """Packs the `validation` or the `test` clients for evaluation."""
        return RatingEvaluation(
            self.evaluated_model,
            self.evaluated_algorithm,
            getattr(self.data, part),
            batch_size=self.options.client_batch_size,
            seed=self.options.seed,
        )


def build_experiment(ratings: Ratings, options: RatingOptions) -> RatingExperiment:
    """Splits the ratings and builds the models and the training process.

    Args:
        ratings: The ratings.
        options: The experiment's options.

    Raises:
        UserError: If there are too few users.
    """
    recon = build_fed_recon(options)
    data = split_ratings(
        ratings,
        protocol=options.protocol,
        batch_size=options.client_batch_size,
        seed=options.seed,
        max_ratings_per_user=options.max_ratings_per_user,
    )
    model_options = {
        "embedding_dim": options.embedding_dim,
        "use_biases": options.use_biases,
        "mean_rating": options.rating_offset,
        "embedding_initializer": tf.keras.initializers.RandomNormal(
            stddev=options.embedding_stddev
        ),
        "l2": options.l2,
    }
    one_user = one_user_model(data, **model_options)
    if options.algorithm == "fed_recon":
        model, algorithm = one_user, recon
    else:
        model = all_users_model(data, **model_options)
        algorithm = fed_avg(
            client_optimizer=tff.learning.optimizers.build_sgdm(options.client_learning_rate),
            epochs=options.local_epochs,
            max_steps=None if options.algorithm == "centralized" else options.max_local_steps,
            weighting=options.weighting,
            max_update_norm=options.max_update_norm,
        )
    server_optimizer = build_server_optimizer(
        options.server_optimizer,
        learning_rate=options.server_learning_rate,
        epsilon=options.server_epsilon,
    )
    if options.algorithm == "centralized":
        training = build_centralized_training(
            model,
            algorithm,
            data.train,
            server_optimizer=server_optimizer,
            batch_size=options.pool_batch_size,
            seed=options.seed,
        )
    else:
        clients_per_round = min(options.clients_per_round, data.train.num_clients)
        sampler = ClientSampler(
            num_clients=data.train.num_clients,
            clients_per_round=clients_per_round,
            seed=options.seed,
            dropout_rate=options.dropout_rate,
        )
        training = build_training(
            model,
            algorithm,
            data.train,
            server_optimizer=server_optimizer,
            sample=sampler.sample,
            clients_per_round=clients_per_round,
            batch_size=options.client_batch_size,
            execution=options.execution,
            seed=options.seed,
        )
    # Seen users of a global table have their embeddings; everybody else's are rebuilt.
    rebuilt = options.algorithm == "fed_recon" or options.protocol == "unseen_users"
    return RatingExperiment(
        options,
        data,
        model,
        training,
        evaluated_model=one_user if rebuilt else model,
        evaluated_algorithm=recon if rebuilt else algorithm,
    )


def run_experiment(
    experiment: RatingExperiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates all test clients, and writes the run folder.

    Args:
        experiment: The experiment.
        run_folder: Where the run goes, or goes on.
        progress: Whether to report progress on stderr.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges.
    """
    options, name = experiment.options, experiment.data.name
    run_folder.write_boundary(as_table(experiment.training.crossings))
    trained = training_run.train(
        experiment.training,
        run_folder,
        options,
        evaluate=experiment.evaluation("validation").ratings,
        progress=progress,
    )
    (weights,) = trained.seen
    test = experiment.evaluation("test")
    results, ranking = test.ratings(weights), test.ranking(weights)
    return report_run(
        run_folder,
        trained.loop,
        results,
        experiment.training.crossings,
        description={
            "dataset": name,
            "algorithm": options.algorithm,
            "protocol": options.protocol,
            "rounds": options.total_rounds,
            "seed": options.seed,
        },
        metrics={k: float(values.mean()) for k, values in ranking.items()},
        columns=ranking,
    )
