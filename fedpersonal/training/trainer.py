"""Training of a model by an algorithm, for programs and for all tasks."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.client.one_gradient import steps_once_a_batch
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.sources import fingerprint
from fedpersonal.errors import UserError, named_arguments, type_name, with_count
from fedpersonal.federated.boundary import (
    as_table,
    bytes_per_client,
    check_boundary,
)
from fedpersonal.federated.cohort import (
    Cohort,
    Execution,
    default_num_shards,
    find_dropped,
    make_cohort,
)
from fedpersonal.federated.memory import check_memory
from fedpersonal.federated.process import build_process
from fedpersonal.federated.server import State
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import Phase
from fedpersonal.model.examples import check_data, check_per_client_rows
from fedpersonal.model.files import list_parts
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers import as_tff_optimizer
from fedpersonal.runs.checkpoints import StoreCheckpoints
from fedpersonal.runs.folder import RunFolder, derive_secret, load_or_create_secret, new_secret
from fedpersonal.runs.kept import KeptState, Rounds, Snapshot, kept_with_weights, read_kept
from fedpersonal.runs.state import Callback
from fedpersonal.runs.store import LocalStateStore
from fedpersonal.runs.validation import find_best_round
from fedpersonal.runtime.context import check_not_forked
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.budget import Spending
from fedpersonal.training.callbacks import BestModel
from fedpersonal.training.client_sampling import ClientSampling
from fedpersonal.training.clients import ClientsOfRound, LazyClients, describe_clients
from fedpersonal.training.loop import run_rounds
from fedpersonal.training.participation import Participation
from fedpersonal.training.session import Session
from fedpersonal.training.trained import EVALUATION_SHARD_SIZE, TrainedModel

if TYPE_CHECKING:
    from fedpersonal.audit.audit import Audit
    from fedpersonal.federated.aggregators import Aggregator
    from fedpersonal.federated.boundary import Crossing
    from fedpersonal.federated.privacy import DifferentialPrivacy
    from fedpersonal.optimizers import AnyOptimizer

Validate = Callable[[TrainedModel], Mapping[str, float]]


class Trainer:
    """Trains a partitioned model by an algorithm on clients' examples.

    Attributes:
        model: The partitioned model, with the personal copies that the algorithm asks for.
        algorithm: The algorithm.
        process: The TFF process.
        crossings: The values that one client receives and sends in a round.
        num_shards: Number of shards of a cohort.
        privacy: The mechanism that hides each client's part in the global variables, or None.
        budget: The privacy budget, or None.

    Examples:
        With `model` of `PartitionedModel`'s example, and four clients with ten examples each:

        >>> x, offsets = np.random.default_rng(0).normal(size=[40, 2]), np.arange(5) * 10
        >>> clients = fp.ClientDataset([*"abcd"], offsets, {"x": x}, x.sum(1))
        >>> algorithm = fp.fed_per(client_optimizer=tf.keras.optimizers.SGD(0.1))
        >>> trainer = fp.Trainer(model, algorithm, clients, batch_size=5)
        >>> with trainer.fit(rounds=2, progress=False) as trained:
        ...     trained.overall(clients)["loss"] < trainer.untrained().overall(clients)["loss"]
        True
    """

    @named_arguments
    def __init__(
        self,
        model: PartitionedModel,
        algorithm: Algorithm,
        train: ClientDataset | LazyClients,
        *,
        finetuning: Sequence[Phase] = (),
        server_optimizer: AnyOptimizer | None = None,
        clients_per_round: int = 10,
        batch_size: int = 16,
        local_steps: int | None = None,
        shuffle: str = "epochs",
        participation: Participation | None = None,
        packing: str = "stacked",
        shards: int | None = None,
        aggregator: Aggregator | None = None,
        client_sampling: str = "fixed",
        privacy: DifferentialPrivacy | None = None,
        clients_of_round: ClientsOfRound | None = None,
        seed: int = 0,
    ):
        """Builds the TFF process, and checks that no local variable crosses its boundary.

        Args:
            model: The partitioned model.
            algorithm: The algorithm.
            train: The clients that train, with the model's inputs among their features.
            finetuning: The phases that train a client's copy of the model on its support set before
                it predicts.
            server_optimizer: The optimizer that uses the mean of the clients' updates as a
                gradient; None for SGD of rate 1, which adds the mean.
            clients_per_round: Clients sampled for a round; all clients, if fewer exist.
            batch_size: Examples per batch; at most as many as the largest client has.
            local_steps: Batches that a client samples for a round; None for all its batches.
            shuffle: When a client's examples are shuffled, by the seed, before they are divided
                into batches: `never`; before `rounds`; or before `epochs`, each pass of a phase.
                Support and query sets keep their examples. Evaluation uses the order of the data.
            participation: Dropouts, losses and delays of clients; None if all sampled clients take
                part.
            packing: How a shard's clients are computed: `stacked`, faster for models of many small
                operations, or `pooled`, faster for models bound by arithmetic.
            shards: Number of shards of a cohort; None for one per processor.
            aggregator: A factory of `tff.aggregators`; None for the weighted mean.
            client_sampling: `fixed`: the same number of clients in each round; or `poisson`: each
                client independently, with the same probability, so that rounds differ in size and
                may be empty.
            privacy: The mechanism that hides each client's part in the global variables, or None.
            clients_of_round: Maps a round to its clients, in place of random sampling.
            seed: Seed of initial values, and of the sampling of clients and of their examples.

        Raises:
            UserError: If an option is out of range, data, model and algorithm do not fit, or a
                round does not fit in memory.
            LocalVariableError: If a local variable would leave its client.
        """
        check_not_forked()
        _check_parts(model, algorithm, train)
        self._plain_model = model
        self.model = model = algorithm.prepare(model)
        self.algorithm = algorithm
        if isinstance(train, ClientDataset):
            check_per_client_rows(model, check_data(model, train))
        self._finetuning = algorithm.finetuning(finetuning)
        self._batch_size, self._seed, self._shuffle = batch_size, seed, shuffle
        if shuffle == "rounds" and local_steps:
            raise UserError(
                f"shuffle='rounds' has no effect with local_steps={local_steps}, which samples "
                "each round's examples in a random order: use 'epochs', or leave it out."
            )
        self._secret = new_secret() if privacy is not None and privacy.is_secret else None
        self.crossings: list[Crossing] = []  # Set below, if there are rounds.
        self._build_sampling = functools.partial(
            ClientSampling,
            algorithm,
            train,
            clients_of_round=clients_of_round,
            clients_per_round=clients_per_round,
            batch_size=batch_size,
            local_steps=local_steps,
            sampling=client_sampling,
            participation=participation,
            is_private=privacy is not None,
            seed=seed,
        )
        self._sampling = self._build_sampling(secret_seed=self._derived("clients"))
        self.privacy, self.budget, self._spending = privacy, None, None
        if privacy is not None:
            self._spending = Spending.of(privacy, self._sampling, sampling=client_sampling)
            self.privacy, self.budget = self._spending.privacy, self._spending.budget
        self.num_shards = shards or default_num_shards()
        check_memory(model, self.num_shards, clients=self._sampling.capacity if model.copies else 0)
        largest = self._sampling.largest_batch(batch_size)
        self._execution = Execution.for_cohorts(
            self._sampling.capacity,
            batch_size=largest,
            packing=packing,
            shards=self.num_shards,
            shuffle=algorithm.shuffle(shuffle, batch_size=largest, seed=seed),
        )
        if server_optimizer is None:
            server_optimizer = build_sgdm(1.0)
        server_optimizer = as_tff_optimizer(server_optimizer)
        self._build = functools.partial(
            build_process,
            algorithm=algorithm,
            execution=self._execution,
            server_optimizer=server_optimizer,
            num_clients=self._sampling.num_clients,
            seed=seed,
        )
        self._user_parts = {
            "algorithm": algorithm,
            "finetuning": self._finetuning,
            "server_optimizer": server_optimizer,
            "aggregator": aggregator,
            "clients_of_round": clients_of_round,
        }
        self._has_aggregator = not (aggregator is None and privacy is None)
        adds_up = packing == "pooled" and not self._has_aggregator
        self._steps_once = adds_up and steps_once_a_batch(self.model, algorithm)
        self.process = self._build(model, aggregator=aggregator, **self._private())
        if algorithm.trains:
            self.crossings = check_boundary(
                model, self.process.next, reduction_types=self.process.reduction_types
            )

    def __repr__(self) -> str:
        clients = self._sampling
        sampling = f"{clients.clients_per_round:,} of {clients.num_clients:,} clients a round"
        parts = f"{self.algorithm.name}, {sampling}, batches of {self._batch_size:,}"
        return f"<Trainer: {parts}: {self.model.describe_variables()}>"

    def cohort(self, round_number: int) -> Cohort:
        """Returns the clients of a round, in shards."""
        make = functools.partial(
            make_cohort,
            self.model,
            execution=self._execution,
            touched_data=self.algorithm.touched_data,
            steps_once=self._steps_once,
            round_number=round_number,
        )
        cohort = make(*self._sampling.clients_of_round(round_number))
        if not self._sampling.keeps_lost:
            return cohort
        data, indices = self._sampling.lost_of_round(round_number)
        return dataclasses.replace(cohort, lost=make(data, indices) if len(indices) else None)

    @named_arguments
    def fit(
        self,
        *,
        rounds: int,
        folder: str | os.PathLike | RunFolder | None = None,
        validate: Validate | None = None,
        rounds_per_eval: int = 50,
        rounds_per_checkpoint: int = 50,
        callbacks: Sequence[Callback] = (),
        best: str | None = None,
        best_mode: str = "min",
        progress: bool = True,
    ) -> TrainedModel:
        """Runs the rounds that are missing.

        Args:
            rounds: The total number of rounds; an algorithm without rounds, such as `local_only`,
                runs none.
            folder: The run's folder, which receives `metrics.csv`, TensorBoard events, checkpoints,
                clients' kept variables, the model, for `load_run`, and `report.html`. If it holds a
                run, that run is resumed. None for a folder that is removed when the model is
                closed.
            validate: Maps a model between rounds to metrics, such as the result of `overall`; they
                become `eval/...`.
            rounds_per_eval: Rounds from one validation to the next.
            rounds_per_checkpoint: Rounds from one checkpoint to the next.
            callbacks: Further callbacks, such as `EarlyStopping`.
            best: A metric of `metrics.csv`, such as `eval/loss`. The returned model is that of the
                round with the best value, with the variables that clients had kept then.
                Checkpoints store this model, too. If the metric is NaN in every round, a warning is
                logged and the model is that of the last round. None for the last round's model.
            best_mode: Whether a lower (`min`) or higher (`max`) value of the metric is better.
            progress: Whether to report progress on stderr.

        Returns:
            The trained model. Close it, or use it in a `with` statement, so that other programs can
            open the store of clients' local variables.

        Raises:
            UserError: If training diverges, or the folder holds another run, or one of other data,
                or cannot be written.
        """
        if best is None and best_mode != "min":
            raise UserError(f"best_mode={best_mode!r} has no effect without best: leave it out.")
        with Session.open(folder, self._describe(), num_shards=self.num_shards) as files:
            run_folder = files.folder
            if not isinstance(folder, RunFolder):
                run_folder.write_boundary(as_table(self.crossings))
            run_folder.check_data(describe_clients(self._sampling.train))
            self._take_secret(run_folder)
            if files.is_program:
                run_folder.check_training(self._describe_training())
            if not self.algorithm.trains:
                return files.finish(self.untrained(), None, self.describe_privacy)
            store = None
            if self.algorithm.keeps:
                store = files.open_store(self.model.local_variables)
                self._sampling.warn_of_never_sampled(rounds)
            keep = kept_with_weights(store)
            watched = BestModel(best, mode=best_mode, keep=keep) if best else None
            loop = run_rounds(
                process=Rounds(self.process, store),
                cohort_fn=self.cohort,
                run_folder=run_folder,
                total_rounds=rounds,
                evaluate_fn=(lambda *reached: validate(self._trained(store, *reached)))
                if validate
                else None,
                rounds_per_eval=rounds_per_eval,
                rounds_per_checkpoint=rounds_per_checkpoint,
                progress=progress,
                saved_in=StoreCheckpoints(store) if store else None,
                callbacks=[*callbacks, watched] if watched else callbacks,
                columns_fn=self._columns(rounds),
                dropped_fn=None if self._secret is not None else self._dropped(store),
            )
            if progress and not isinstance(folder, RunFolder):
                _show_best_round(run_folder)
            trained = self._trained(store, loop.state, loop.resumed_from + loop.rounds_run)
            trained = dataclasses.replace(trained, loop=loop)
            return files.finish(trained, watched, self.describe_privacy)

    def describe_privacy(self, rounds: int) -> dict[str, Any]:
        """Returns the spent budget and its mechanism for JSON; empty without privacy."""
        return self._spending.describe(rounds) if self._spending else {}

    @property
    def participation_columns(self) -> list[str]:
        """The columns of `metrics.csv` about participation; none if all sampled clients do."""
        return [*self._sampling.columns(1)]

    def _columns(self, rounds: int) -> Callable[[int], dict[str, float]]:
        """Returns a function from round number to further columns of the round's row."""
        spent = self._spending.by_round(rounds) if self._spending else None
        sampling, sizes = self._sampling, {}
        if self._has_aggregator and self.privacy is None:
            sizes = {k: v for k, v in bytes_per_client(self.crossings).items() if v is not None}
        return lambda number: {
            **(spent(number) if spent else {}),
            **sampling.columns(number),
            **sizes,
        }

    def attended_rounds(self, rounds: int) -> dict[str, list[int]]:
        """Returns the rounds, from 1, in which each training client took part, by name.

        Args:
            rounds: Number of rounds that were run.

        Raises:
            UserError: If the sampled clients are secret.
        """
        if self._secret is not None:
            raise UserError(
                "the sampled clients are secret, as is the noise of differential privacy."
            )
        return self._sampling.attended_rounds(rounds)

    def audit(self, *, rounds: int = 4) -> Audit:
        """Checks by experiment what crosses the boundary; see `docs/explanation/boundary.md`.

        Args:
            rounds: Number of rounds to check.

        Returns:
            The audit, which `holds` if it has no findings.
        """
        from fedpersonal.audit.audit import Audit, audit, guarantee
        from fedpersonal.audit.subject import Subject

        if not self.algorithm.trains:
            notes = ["There are no rounds: nothing is ever sent."]
            return Audit((), (), (), notes, guarantee(self.describe_privacy(rounds)))
        cohorts = map(self._sampling.clients_of_round, range(1, 101))
        try:
            data, indices = next(one for one in cohorts if len(one[1]))
        except StopIteration:
            raise UserError("no client takes part in rounds 1 to 100: nothing is sent.") from None
        subject = Subject.from_clients(
            clients=data.subset(indices),
            model=self.model,
            algorithm=self.algorithm,
            process=self.process,
            build=self._build,
            execution=self._execution,
            seed=self._seed,
            has_aggregator=self._has_aggregator,
        )
        train = self._sampling.train
        first = np.arange(min(100, train.num_clients))
        first_clients = train.subset(first) if self._sampling.is_random else None
        privacy = self.describe_privacy(rounds)
        result = audit(subject, privacy=privacy, rounds=rounds, measured_clients=first_clients)
        return dataclasses.replace(result, crossings=self.crossings)

    def untrained(self) -> TrainedModel:
        """Returns the model with its initial weights; no client has kept anything."""
        empty = Snapshot.empty(self.model.local_variables) if self.algorithm.keeps else None
        trained = self._trained(None, self.process.initialize(), 0)
        return dataclasses.replace(trained, kept_by=empty.kept_by if empty else None)

    def _trained(
        self, store: LocalStateStore | None, state: State | KeptState, round_number: int
    ) -> TrainedModel:
        return TrainedModel(
            model=self.model,
            rebuilding=self.algorithm.personalization(self.model),
            finetuning=self._finetuning,
            batch_size=self._batch_size,
            packing=self._execution.packing,
            clients_per_shard=EVALUATION_SHARD_SIZE,
            seed=self._seed,
            algorithm=self.algorithm,
            weights=state.global_model_weights.trainable,
            kept_by=functools.partial(read_kept, store, state) if store else None,
            round_number=round_number,
        )

    def _derived(self, purpose: str) -> int | None:
        return None if self._secret is None else derive_secret(self._secret, purpose)

    def _private(self) -> dict[str, Any]:
        return {"privacy": self.privacy, "secret_seed": self._derived("noise")}

    def _take_secret(self, folder: RunFolder) -> None:
        """Derives noise and sampling from the secret of the run in a folder, if it has one."""
        if self._secret is None:
            return
        previous, self._secret = self._secret, load_or_create_secret(folder.path, self._secret)
        if self._secret != previous:
            self._sampling = self._build_sampling(secret_seed=self._derived("clients"))
            self.process = self._build(self.model, **self._private())

    def _dropped(self, store: LocalStateStore | None) -> Callable[[Any, int], list[str]]:
        next_round = Rounds(self.process, store).next
        return lambda state, number: find_dropped(next_round, state, self.cohort(number))

    def _describe_training(self) -> dict[str, Any]:
        """Returns the model, algorithm and other parts of a training, for `check_training`."""
        initial = fingerprint(self._plain_model.initial_local_values(seed=self._seed))
        parts = {"model": list_parts(self._plain_model), "initial_local_values": initial}
        return {**parts, **self._user_parts}

    def _describe(self) -> dict[str, Any]:
        return {
            "method": self.algorithm.name,
            "local_variables": [v.name for v in self.model.local_variables],
            "finetuning_phases": len(self._finetuning),
            "batch_size": self._batch_size,
            "packing": self._execution.packing,
            "shuffle": self._shuffle,
            "seed": self._seed,
            **self._sampling.options,
            **({"privacy": dataclasses.asdict(self.privacy)} if self.privacy else {}),
        }


def _show_best_round(folder: RunFolder) -> None:
    """Prints the round that validated best, and how much worse the last round is."""
    best = find_best_round(folder.metrics)
    if best is not None:
        advice = f": fit(best='eval/{best.metric}') returns the best round's model"
        line = f"{best.sentence()}{'' if best.is_last else advice}"
        print(line, file=sys.stderr, flush=True)


def _check_parts(model: object, algorithm: object, train: object) -> None:
    """Raises a UserError if an argument of `Trainer` has the wrong type, or there is no data."""
    if not isinstance(model, PartitionedModel):
        raise UserError(
            "model must be a PartitionedModel, made of a Keras model or its builder, not "
            f"{type_name(model)}."
        )
    if not isinstance(algorithm, Algorithm):
        raise UserError(
            "algorithm must be the result of a method's function, such as "
            f"fp.fed_avg(client_optimizer=...), not {type_name(algorithm)}."
        )
    if isinstance(train, ClientDataset) and train.num_clients and not train.num_examples:
        raise UserError(
            f"none of the {with_count(train.num_clients, 'clients')} in train has an example: give "
            "clients with examples."
        )
    if not hasattr(train, "num_clients"):
        raise UserError(
            "train must be a ClientDataset, as of clients_from_datasets({name: dataset}) or "
            f"clients_from_table(...), not {type_name(train)}."
        )
