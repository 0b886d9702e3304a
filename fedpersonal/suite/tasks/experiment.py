"""Builds an experiment of any task, its data, model and training, from options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError, did_you_mean, join_words
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better
from fedpersonal.evaluation.evaluate import Kept
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.method import Method
from fedpersonal.methods.phases import Phase
from fedpersonal.optimizers import build_server_optimizer
from fedpersonal.suite.tasks.checks import check_clients, warn
from fedpersonal.suite.tasks.idle import check_effects, check_rounds
from fedpersonal.suite.tasks.options import RunOptions
from fedpersonal.suite.tasks.standalone import choose_epochs
from fedpersonal.suite.tasks.task import (
    DataT,
    EvaluationSet,
    OptionsT,
    SourceT,
    Task,
    TaskBuild,
)
from fedpersonal.training.budget import PrivacyBudget
from fedpersonal.training.clients import ClientSampler, pooled_clients
from fedpersonal.training.trained import TrainedModel
from fedpersonal.training.trainer import Trainer


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment(TaskBuild, Generic[OptionsT, DataT]):
    """An experiment: the task's build, with its options, data and trainer.

    Attributes:
        task: The task.
        options: The options, with the method's defaults.
        data: The data, split.
        method: The method that the options name.
        trainer: The trainer that runs the rounds.
        client_facts: Facts about the clients from checks before the first round.
    """

    task: Task[OptionsT, Any, DataT]
    options: OptionsT
    data: DataT
    method: type[Method]
    trainer: Trainer
    client_facts: Mapping[str, Any]

    @property
    def watched_metric(self) -> tuple[str, str]:
        """The validation metric that `--best` and `--early_stopping` watch, and `min` or `max`.

        Raises:
            UserError: If validation has no metric of that name, or none whose direction is known.
        """
        model_metrics = (metric.name for metric in self.evaluator.model.metrics)
        names = [*self.task.validation_metrics(self.data), *model_metrics, "loss"]
        names = [name for name in names if lower_is_better(name) is not None]
        requested = [self.options.best] if self.options.best else [*self.task.metrics, "loss"]
        chosen = next(iter(find_metrics(requested, names)), None)
        if chosen is None:
            raise UserError(
                f"--best={requested[0]}: validation has no such metric; it has {join_words(names)}"
                f"{did_you_mean(requested[0], names)}"
            )
        return chosen, "min" if lower_is_better(chosen) else "max"

    def has_kept(self, part: EvaluationSet) -> bool:
        """Returns whether clients have kept local variables other than states."""
        local = self.evaluator.model.local_variables
        return part.seen and self.algorithm.keeps and not all(v.is_state for v in local)

    def is_personalised(self, part: EvaluationSet) -> bool:
        """Returns whether clients predict with anything but the server's model."""
        return self.has_kept(part) or bool(self.evaluator.personalization(False))

    def evaluation(
        self,
        part: EvaluationSet,
        phases: tuple[Phase, ...] | None = None,
        *,
        brings_kept: bool | None = None,
        start: str | None = None,
        **options: Any,
    ) -> Callable[[TrainedModel], ClientResults]:
        """Packs clients and returns a function that evaluates a trained model on them.

        Args:
            part: The clients.
            phases: The phases that train a client's copy, in place of the evaluator's fine-tuning.
                Before them, seen clients rebuild the variables that they have not kept; unseen
                clients rebuild no variables that the algorithm keeps.
            brings_kept: Whether all clients start from the values that `trained` has for them. None
                for `has_kept`; clients that have kept nothing then rebuild local variables.
            start: As in `Evaluator.personalization`; None for `--local_start`.
            **options: The other arguments of `Evaluator.pack`.
        """
        evaluator, is_fixed = self.evaluator, brings_kept is not None
        has_kept = self.has_kept(part) if brings_kept is None else brings_kept
        if phases is not None:
            rebuilds = has_kept or not self.algorithm.keeps
            rebuilding = evaluator.rebuilding if rebuilds else ()
            evaluator = dataclasses.replace(evaluator, rebuilding=rebuilding, finetuning=phases)
        if start is None or is_fixed:
            start = "kept" if is_fixed else str(getattr(self.options, "local_start", "kept"))
        phases, brings = evaluator.personalization(has_kept, start), has_kept and start != "rebuilt"
        support, query = self.task.for_evaluation(evaluator.model, part)
        # Packing all training examples takes long, and is not needed without phases.
        needs_support = phases or part.support is not self.data.train
        evaluate = evaluator.pack(
            support if needs_support else query.head(0), query, phases, has_kept=brings, **options
        )

        def evaluate_trained(trained: TrainedModel) -> ClientResults:
            if not brings:
                return evaluate(trained.weights)
            is_kept = np.zeros(query.num_clients, bool)

            def read_kept(places: np.ndarray) -> Kept:
                assert trained.kept_by
                kept = trained.kept_by(query.client_ids[places].tolist())
                is_kept[places] = kept[0]
                return kept

            results, lacking = evaluate(trained.weights, read_kept), np.flatnonzero(~is_kept)
            if is_fixed or start != "kept" or not len(lacking):
                return results
            rebuild = evaluator.pack(
                support.subset(lacking),
                query.subset(lacking),
                has_kept=False,
                with_before=False,
                with_predictions=bool(options.get("with_predictions")),
                room=query.num_clients,
            )
            return results.replace(lacking, rebuild(trained.weights))

        return evaluate_trained


def build_experiment(
    task: Task[OptionsT, SourceT, DataT],
    source: SourceT,
    options: OptionsT,
    *,
    shards: int | None = None,
    typed: Collection[str] = (),
) -> Experiment[OptionsT, DataT]:
    """Splits the data, and builds the models and the training process.

    Args:
        task: The task.
        source: The data.
        options: The options.
        shards: The number of shards of each cohort in a resumed run.
        typed: The options that the user has typed; each must have an effect.

    Raises:
        UserError: If the data do not suffice, options do not fit them, or as `check_effects`.
    """
    options = task.with_defaults(options)
    check_rounds(task, options)
    data, method = task.split(source, options.for_split), task.method(options)
    built = task.build(task.sizes(data), options)
    client_facts = check_clients(data, built.algorithm, options)
    for line in task.split_warnings(source, data):
        warn(line)
    train = task.training_clients(built.model, data.train, options)
    participation = options.participation
    if options.is_private:
        _check_state_bound(built.algorithm, options)
    num_eligible = len(participation.eligible(train)) if participation else train.num_clients
    privacy = _privacy(options, num_eligible)
    if method.is_federated:
        work: dict[str, Any] = {
            "clients_per_round": options.clients_per_round,
            "batch_size": options.client_batch_size,
            "local_steps": options.local_steps or None,
            "shuffle": options.shuffle,
            "participation": participation,
            "client_sampling": options.client_sampling,
            "privacy": privacy if options.is_private else None,
        }
    elif isinstance(train, ClientDataset):
        batch_size, rounds = task.central_batching(options, train.num_clients)
        central = pooled_clients(train, rounds_per_epoch=rounds, seed=options.seed)
        work = {
            "clients_per_round": 1,
            "batch_size": batch_size,
            "shuffle": "never",  # `pooled_clients` shuffles the examples.
            "clients_of_round": central,
        }
    else:
        raise UserError(
            f"--method={options.method} needs all examples at once, and {data.name} has too "
            "many for that: its clients are read when they are sampled."
        )
    optimizer, rate = options.server_optimizer, options.server_learning_rate
    assert optimizer and rate  # `with_defaults` has set them.
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
    experiment = Experiment(
        **vars(built),
        task=task,
        options=options,
        data=data,
        method=method,
        trainer=trainer,
        client_facts=client_facts,
    )
    if options.watches:
        _check_watched(experiment)
    check_effects(experiment, source, typed)
    return choose_epochs(experiment)


def _check_watched(experiment: Experiment) -> None:
    """Raises a UserError unless validation can choose between rounds."""
    if not experiment.data.validation.query.num_examples:
        raise UserError(
            "--best and --early_stopping need validation clients, and none has anything to "
            "predict: leave them out."
        )
    _ = experiment.watched_metric  # Raises before the first round if its name is wrong.


def _check_state_bound(algorithm: Algorithm, options: RunOptions) -> None:
    """Raises a UserError unless `dp_state_clip_norm` is set exactly if clients send states."""
    sends_states = algorithm.personal is not None and algorithm.personal.has_server_state
    if not sends_states:
        options.refuse_idle(
            "dp_state_clip_norm",
            where=f"with --method={options.method}, whose clients send no states",
        )
    elif options.dp_state_clip_norm is None:
        raise UserError(
            f"--method={options.method} sends changes of the server's states, which need a "
            "separate bound: give --dp_state_clip_norm, or use another method."
        )


def _privacy(options: RunOptions, num_clients: int) -> DifferentialPrivacy:
    """Returns the differential privacy of the options, with the noise for a target epsilon."""
    noise = options.dp_noise_multiplier
    if options.dp_target_epsilon is not None:
        scheme: dict[str, Any] = {
            "num_clients": num_clients,
            "clients_per_round": min(options.clients_per_round, num_clients),
            "sampling": options.client_sampling,
        }
        most, rounds = None, options.total_rounds
        if options.dp_noise == "seeded":
            most = int(ClientSampler(seed=options.seed, **scheme).most_rounds(rounds)[-1])
        noise = PrivacyBudget.for_epsilon(
            options.dp_target_epsilon,
            rounds=rounds,
            most_rounds=most,
            delta=options.dp_delta,
            **scheme,
        ).noise_multiplier
    return DifferentialPrivacy(
        noise_multiplier=noise or 0.0,
        clip_norm=options.dp_clip_norm,
        state_clip_norm=options.dp_state_clip_norm,
        clipping=options.dp_clipping,
        target_quantile=options.dp_target_quantile,
        noise=options.dp_noise,
        delta=options.dp_delta,
    )
