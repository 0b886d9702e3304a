"""One experiment of any task: its data, model and training, built from options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError, did_you_mean, listed
from fedpersonal.evaluation.client_metrics import find_metrics, lower_is_better
from fedpersonal.evaluation.evaluate import Kept
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.method import Method
from fedpersonal.methods.phases import Phase
from fedpersonal.optimizers import build_server_optimizer
from fedpersonal.tasks.findings import check_clients, warn
from fedpersonal.tasks.idle import check_effects, check_rounds
from fedpersonal.tasks.options import RunOptions
from fedpersonal.tasks.standalone import choose_epochs
from fedpersonal.tasks.task import (
    Built,
    DataT,
    EvaluationSet,
    OptionsT,
    SourceT,
    Task,
)
from fedpersonal.training.budget import PrivacyBudget
from fedpersonal.training.clients import ClientSampler, pooled_clients
from fedpersonal.training.trained import TrainedModel
from fedpersonal.training.trainer import Trainer


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
    method: type[Method]
    trainer: Trainer
    findings: Mapping[str, Any]

    @property
    def watched(self) -> tuple[str, str]:
        """The validation metric that `--best` and `--early_stopping` watch, and `min` or `max`.

        Raises:
            UserError: If validation has no metric of that name, or none whose direction is known.
        """
        of_model = (metric.name for metric in self.evaluator.model.metrics)
        names = [*self.task.validated_metrics(self.data), *of_model, "loss"]
        known = [name for name in names if lower_is_better(name) is not None]
        wanted = [self.options.best] if self.options.best else [*self.task.metrics, "loss"]
        chosen = next(iter(find_metrics(wanted, known)), None)
        if chosen is None:
            raise UserError(
                f"--best={wanted[0]}: validation has no such metric; it has {listed(known)}"
                f"{did_you_mean(wanted[0], known)}"
            )
        return chosen, "min" if lower_is_better(chosen) else "max"

    def has_kept(self, part: EvaluationSet) -> bool:
        """Tells whether clients bring local variables that they have kept, beside states."""
        local = self.evaluator.model.local_variables
        return part.seen and self.algorithm.keeps and not all(v.is_state for v in local)

    def is_personalised(self, part: EvaluationSet) -> bool:
        """Tells whether clients predict with anything else than what the server has."""
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
        """Packs clients and returns what evaluates a trained model on them.

        Args:
            part: The clients.
            phases: What trains a client's copy, in place of the evaluator's fine-tuning. Before it,
                clients that train rebuild what they have not kept; others nothing that is kept.
            brings_kept: Whether all clients start from what `trained` has for them; None for
                `has_kept`, where those who have kept nothing rebuild their local variables.
            start: As of `Evaluator.personalization`; None for `--local_start`.
            **options: The others of `Evaluator.pack`.
        """
        evaluator, is_given = self.evaluator, brings_kept is not None
        has_kept = self.has_kept(part) if brings_kept is None else brings_kept
        if phases is not None:
            rebuilds = has_kept or not self.algorithm.keeps
            rebuilding = evaluator.rebuilding if rebuilds else ()
            evaluator = dataclasses.replace(evaluator, rebuilding=rebuilding, finetuning=phases)
        if start is None or is_given:
            start = "kept" if is_given else str(getattr(self.options, "local_start", "kept"))
        phases, brings = evaluator.personalization(has_kept, start), has_kept and start != "rebuilt"
        support, query = self.task.for_evaluation(evaluator.model, part)
        # Packing all that clients have trained on takes long, and nothing would read it.
        is_read = phases or part.support is not self.data.train
        evaluate = evaluator.pack(
            support if is_read else query.head(0), query, phases, has_kept=brings, **options
        )

        def of(trained: TrainedModel) -> ClientResults:
            if not brings:
                return evaluate(trained.weights)
            known = np.zeros(query.num_clients, bool)

            def kept(places: np.ndarray) -> Kept:
                assert trained.kept_by
                found = trained.kept_by(query.client_ids[places].tolist())
                known[places] = found[0]
                return found

            results, lacking = evaluate(trained.weights, kept), np.flatnonzero(~known)
            if is_given or start != "kept" or not len(lacking):
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

        return of


def build_experiment(
    task: Task[OptionsT, SourceT, DataT],
    source: SourceT,
    options: OptionsT,
    *,
    shards: int | None = None,
    typed: Collection[str] = (),
) -> Experiment[OptionsT, DataT]:
    """Splits data as read, and builds the models and the training process.

    Args:
        task: The task.
        source: The data.
        options: The options.
        shards: Into how many shards a run that goes on divides its cohorts.
        typed: The options that the user has typed, none of which may be without an effect.

    Raises:
        UserError: If the data do not suffice, options do not fit them, or as `check_effects`.
    """
    options = task.settle(options)
    check_rounds(task, options)
    data, method = task.split(source, options.for_split), task.method(options)
    built = task.build(task.sizes(data), options)
    findings = check_clients(data, built.algorithm, options)
    for line in task.split_warnings(source, data):
        warn(line)
    train = task.training_clients(built.model, data.train, options)
    participation = options.participation
    if options.is_private:
        _check_state_bound(built.algorithm, options)
    drawn_from = len(participation.eligible(train)) if participation else train.num_clients
    privacy = _privacy(options, drawn_from)
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
        batch_size, rounds = task.pool(options, train.num_clients)
        everybody = pooled_clients(train, rounds_per_epoch=rounds, seed=options.seed)
        work = {
            "clients_per_round": 1,
            "batch_size": batch_size,
            "shuffle": "never",  # They come shuffled.
            "clients_of_round": everybody,
        }
    else:
        raise UserError(
            f"--method={options.method} needs all examples at once, and {data.name} has too "
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
    experiment = Experiment(
        **vars(built),
        task=task,
        options=options,
        data=data,
        method=method,
        trainer=trainer,
        findings=findings,
    )
    if options.watches:
        _check_watched(experiment)
    check_effects(experiment, source, typed)
    return choose_epochs(experiment)


def _check_watched(experiment: Experiment) -> None:
    """Raises a UserError unless rounds can be chosen by their validation, as options ask."""
    if not experiment.data.validation.query.num_examples:
        raise UserError(
            "--best and --early_stopping need validation clients, and none has anything to "
            "predict: leave them out."
        )
    _ = experiment.watched  # A mistake in its name shows before the first round.


def _check_state_bound(algorithm: Algorithm, options: RunOptions) -> None:
    """Raises a UserError unless states that clients send have a bound, and no others have one."""
    sends_states = algorithm.personal is not None and algorithm.personal.has_server_state
    if not sends_states:
        options.refuse_idle(
            "dp_state_clip_norm",
            where=f"with --method={options.method}, whose clients send no states",
        )
    elif options.dp_state_clip_norm is None:
        raise UserError(
            f"--method={options.method} sends changes of the server's states, which need a bound "
            "of their own: give --dp_state_clip_norm, or take another method."
        )


def _privacy(options: RunOptions, num_clients: int) -> DifferentialPrivacy:
    """Returns what options ask for, with the noise found; none where they ask for none."""
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
