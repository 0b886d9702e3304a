"""One experiment on utterances, from texts to summary, in a run folder (FedPerC, section 4)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpersonal.algorithm import Phase
from fedpersonal.atomic_files import atomic_write
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.errors import UserError, check_choice
from fedpersonal.evaluation.evaluate import ClientResults, Evaluation, pack_evaluation
from fedpersonal.language_models.base_model import BaseModel
from fedpersonal.local_state.noisy_mean import NoisyMean
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.server import SERVER_OPTIMIZERS, build_server_optimizer
from fedpersonal.process.boundary import as_table
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.tasks import training_run
from fedpersonal.tasks.federated_training import Training, build_training
from fedpersonal.tasks.run_report import report_run, test_summary
from fedpersonal.tasks.utterances.data import UtteranceData, finetuning_sets
from fedpersonal.tasks.utterances.history import add_history_of, add_own_history
from fedpersonal.tasks.utterances.methods import (
    METHODS,
    Method,
    build_algorithm,
    build_model,
    finetuning_phases,
    freeze,
)

WEIGHTS = "trained.npz"
SAMPLES = (1, 5, 15, None)
NEW_USERS = ("noisy_mean", "fresh")


@dataclasses.dataclass(frozen=True)
class UtteranceOptions:
    """What an experiment on utterances is asked to do.

    Attributes:
        algorithm: One of `METHODS`.
        total_rounds: Rounds of training.
        clients_per_round: Clients drawn for a round.
        dropout_rate: Share of the clients drawn that then drop out.
        local_steps: A client's steps in a round.
        client_batch_size: Utterances that it draws for a step.
        client_learning_rate: Adam's rate on clients.
        proximal: Weight of FedProx' term.
        server_optimizer: One of `SERVER_OPTIMIZERS`.
        server_learning_rate: Its rate.
        decay_rounds: Rounds over which it falls to 0; 0 for a constant one.
        finetuning_steps: A client's steps before it is tested.
        finetuning_learning_rate: Adam's rate in them.
        new_users: Where users who never took part start: the `noisy_mean` of what the others have
            kept, or `fresh` as everybody.
        noise_multiplier: Noise of that mean; see `NoisyMean`.
        clip_norm: Bound on what one client adds to it.
        history_length: Tokens from which embeddings are generated.
        weighting: Clients' weights: `uniform`, as in the paper, or `num_examples`.
        execution: `packed` or `per_client`.
        rounds_per_eval: Rounds between evaluations.
        rounds_per_checkpoint: Rounds between checkpoints.
        seed: Seed of splits, initial values and sampling.
    """

    algorithm: str = "fedperc"
    total_rounds: int = 55
    clients_per_round: int = 1000
    dropout_rate: float = 0.0
    local_steps: int = 10
    client_batch_size: int = 15
    client_learning_rate: float = 0.001
    proximal: float = 1.0
    server_optimizer: str = "sgd"
    server_learning_rate: float = 1.0
    decay_rounds: int = 0
    finetuning_steps: int = 15
    finetuning_learning_rate: float = 0.001
    new_users: str = "noisy_mean"
    noise_multiplier: float = 0.1
    clip_norm: float = 1.0
    history_length: int = 96
    weighting: str = "uniform"
    execution: str = "packed"
    rounds_per_eval: int = 5
    rounds_per_checkpoint: int = 5
    seed: int = 0

    def __post_init__(self):
        for option, choices in (
            ("algorithm", tuple(METHODS)),
            ("new_users", NEW_USERS),
            ("execution", ("packed", "per_client")),
            ("server_optimizer", SERVER_OPTIMIZERS),
        ):
            check_choice("UtteranceOptions", option, getattr(self, option), choices)

    @property
    def method(self) -> Method:
        """The method named."""
        return METHODS[self.algorithm]


def encode_with(base: BaseModel) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns what makes a base model's tokens of texts."""
    return lambda texts: base.tokenizer(list(texts), verbose=False)["input_ids"]


@dataclasses.dataclass(frozen=True, eq=False)
class UtteranceExperiment:
    """The pieces of one experiment.

    Attributes:
        options: What it was asked.
        data: The utterances, split.
        base: The frozen base model.
        model: The partitioned model around the frozen base.
        training: The training process and its cohorts; None of an experiment that only evaluates.
    """

    options: UtteranceOptions
    data: UtteranceData
    base: BaseModel
    model: PartitionedModel
    training: Training | None

    def evaluation(
        self,
        support: ClientDataset,
        query: ClientDataset,
        phases: tuple[Phase, ...],
        *,
        with_kept: bool,
    ) -> Callable[..., ClientResults]:
        """Returns what evaluates weights, and what clients have kept, on a query set.

        Args:
            support: What phases train on, or embeddings are generated from.
            query: What is predicted, of the same clients.
            phases: What happens before prediction.
            with_kept: Whether the function's second argument is what clients have kept.
        """
        if self.options.method.reads_history:
            length = self.options.history_length
            query = add_history_of(query, support, length=length)
            support = add_history_of(support, support, length=length)
        support, query = (_for_model(self.model, part) for part in (support, query))
        clients, batch_size = support.num_clients, self.options.client_batch_size
        evaluation = _trace_evaluation(
            self.model, phases, clients, batch_size, with_kept, self.options.seed
        )
        members = pack_evaluation(
            self.model,
            support,
            query,
            clients=clients,
            batch_size=batch_size,
            query_batch_size=batch_size,
            touched_data="all" if phases else "none",
        )
        return lambda weights, kept=None: evaluation(weights, members, query.client_ids, kept)


@functools.lru_cache(maxsize=4)
def _trace_evaluation(
    model: PartitionedModel,
    phases: tuple[Phase, ...],
    clients: int,
    batch_size: int,
    with_kept: bool,
    seed: int,
) -> Evaluation:
    """Builds an evaluation, once for all numbers of samples: tracing takes longer than running."""
    return Evaluation(
        model,
        phases,
        clients=clients,
        batch_size=batch_size,
        query_batch_size=batch_size,
        packing="pooled",
        with_before=False,
        with_kept=with_kept,
        seed=seed,
    )


def build_experiment(
    data: UtteranceData, base: BaseModel, options: UtteranceOptions, *, frozen_folder: Any
) -> UtteranceExperiment:
    """Builds the model and the training process.

    Args:
        data: The utterances, split, tokenised for the base model.
        base: The base model.
        options: The experiment's options.
        frozen_folder: Where the base's weights are put for the workers.

    Raises:
        UserError: If utterances have more places than the base model.
    """
    if data.length > base.config.n_positions:
        raise UserError(
            f"--text_length={data.length} is more than the {base.config.n_positions} positions of "
            f"the base model {base.name}"
        )
    model = build_model(
        options.algorithm,
        base,
        freeze(base, frozen_folder),
        num_contexts=data.num_contexts,
        history_length=options.history_length,
    )
    train = data.train
    if options.method.reads_history:
        train = add_own_history(
            train,
            length=options.history_length,
            num_samples=[n for n in SAMPLES if n],
            seed=options.seed,
        )
    clients_per_round = min(options.clients_per_round, train.num_clients)
    training = build_training(
        model,
        build_algorithm(options.algorithm, options),
        _for_model(model, train),
        server_optimizer=build_server_optimizer(
            options.server_optimizer,
            learning_rate=options.server_learning_rate,
            decay_rounds=options.decay_rounds,
        ),
        sample=ClientSampler(
            num_clients=train.num_clients,
            clients_per_round=clients_per_round,
            seed=options.seed,
            dropout_rate=options.dropout_rate,
        ).sample,
        clients_per_round=clients_per_round,
        batch_size=options.client_batch_size,
        execution=options.execution,
        packing="pooled",
        examples_per_round=options.local_steps * options.client_batch_size,
        seed=options.seed,
    )
    return UtteranceExperiment(options, data, base, model, training)


def run_experiment(
    experiment: UtteranceExperiment, run_folder: RunFolder, *, progress: bool = True
) -> dict[str, Any]:
    """Trains, evaluates the test clients after fine-tuning on more and more, writes the run folder.

    Args:
        experiment: The experiment.
        run_folder: Where the run goes, or goes on.
        progress: Whether to report progress on stderr.

    Returns:
        The summary, as written to `summary.json`.

    Raises:
        UserError: If training diverges, or the store cannot be used.
    """
    options, data, model = experiment.options, experiment.data, experiment.model
    mean = _noisy_mean(experiment)
    crossings = [*experiment.training.crossings, *(mean.crossings if mean else [])]
    run_folder.write_boundary([*as_table(crossings), _frozen_row(model)])
    validate = experiment.evaluation(
        *finetuning_sets(data.validation, num_samples=SAMPLES[-2], seed=options.seed),
        phases=finetuning_phases(options.algorithm, options) if data.withheld else (),
        with_kept=options.method.keeps and not data.withheld,
    )
    trained = training_run.train(
        experiment.training,
        run_folder,
        options,
        clients=data.train.client_ids,
        # Withheld users have kept nothing.
        evaluate=(lambda weights, *_: validate(weights)) if data.withheld else validate,
        progress=progress,
    )
    weights, *kept = trained.seen
    if not data.withheld:
        starts = kept
    elif mean:
        known, values = kept[0]
        average = mean({name: value[known] for name, value in values.items()})
        starts = [_the_same_for_all(average, data.test.num_clients)]
    else:
        starts = []
    _write_trained(run_folder, data, weights, kept[0] if kept else None)
    by_samples = _test(experiment, weights, starts)
    results = by_samples["all"]
    return report_run(
        run_folder,
        trained.loop,
        results,
        crossings,
        description={
            "dataset": data.name,
            "algorithm": options.algorithm,
            "split": "withheld" if data.withheld else "known",
            "rounds": options.total_rounds,
            "seed": options.seed,
            "base_model": experiment.base.source,
            "by_samples": {
                name: test_summary(own, own.overall()) for name, own in by_samples.items()
            },
            "kept_bytes_per_client": 4 * sum(v.size for v in model.local_variables),
            "frozen_bytes": model.frozen.num_bytes,
        },
    )


def _test(
    experiment: UtteranceExperiment, weights: Mapping[str, np.ndarray], starts: list
) -> dict[str, ClientResults]:
    """Tests after fine-tuning on 1, 5, 15 and all samples; as `0` without any, where that differs.

    Each client's query set is the same in all of them.
    """
    options, data = experiment.options, experiment.data
    phases = finetuning_phases(options.algorithm, options)
    results = {}
    for count in (0, *SAMPLES) if phases else SAMPLES:
        support, query = finetuning_sets(data.test, num_samples=count or None, seed=options.seed)
        evaluate = experiment.evaluation(
            support, query, phases if count != 0 else (), with_kept=bool(starts)
        )
        results["all" if count is None else str(count)] = evaluate(weights, *starts)
    return results


def _noisy_mean(experiment: UtteranceExperiment) -> NoisyMean | None:
    """Returns what averages the trained users' embeddings, where new users start from that."""
    options = experiment.options
    if (
        not experiment.data.withheld
        or options.algorithm != "fedperc"
        or options.new_users != "noisy_mean"
    ):
        return None
    return NoisyMean(
        experiment.model,
        clip_norm=options.clip_norm,
        noise_multiplier=options.noise_multiplier,
        seed=options.seed,
    )


def _the_same_for_all(values: Mapping[str, np.ndarray], count: int) -> tuple[np.ndarray, dict]:
    """Returns values as what each of some clients has kept."""
    repeated = {name: np.repeat(value[np.newaxis], count, axis=0) for name, value in values.items()}
    return np.ones(count, bool), repeated


def _frozen_row(model: PartitionedModel) -> dict[str, Any]:
    """Returns what the boundary's table says of the frozen weights."""
    return {
        "direction": "once",
        "name": "frozen weights, mapped by each worker once a run",
        "dtype": "float32",
        "shape": [model.frozen.num_bytes // 4],
        "num_bytes": model.frozen.num_bytes,
    }


def _write_trained(
    run_folder: RunFolder,
    data: UtteranceData,
    weights: Mapping[str, np.ndarray],
    kept: tuple[np.ndarray, Mapping[str, np.ndarray]] | None,
) -> None:
    """Keeps what was trained, private variables included, as simulations may, for generation."""
    columns = {f"global/{name}": np.asarray(value) for name, value in weights.items()}
    columns["contexts"] = data.context_names.astype(str)
    if kept is not None:
        known, values = kept
        columns["clients"] = data.train.client_ids.astype(str)
        columns["known"] = known
        columns.update({f"local/{name}": value for name, value in values.items()})
    with atomic_write(run_folder.path / WEIGHTS, "wb") as file:
        np.savez(file, **columns)


def _for_model(model: PartitionedModel, dataset: ClientDataset) -> ClientDataset:
    """Leaves the inputs that the model has; each client has a table of its own, with one row."""
    features = {name: dataset.features[name] for name in model.input_spec}
    if "user" in features:
        features["user"] = np.zeros_like(features["user"])
    return dataclasses.replace(dataset, features=features)
