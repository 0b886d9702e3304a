"""Training of a model by an algorithm, for a program of one's own and for all tasks."""

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
from fedpersonal.errors import UserError, counted, kind_of, named_arguments
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
from fedpersonal.model.examples import check_data, check_own_rows
from fedpersonal.model.files import list_parts
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers import as_tff_optimizer
from fedpersonal.runs.checkpoints import StoreCheckpoints
from fedpersonal.runs.folder import RunFolder, derived, new_secret, settle_secret
from fedpersonal.runs.kept import KeptState, Rounds, Snapshot, kept_with_weights, read_kept
from fedpersonal.runs.store import LocalStateStore
from fedpersonal.runs.validation import find_best_round
from fedpersonal.runtime.context import check_not_forked
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.budget import Spending
from fedpersonal.training.callbacks import BestModel, Callback
from fedpersonal.training.clients import ClientsOfRound, ReadWhenDrawn, describe_clients
from fedpersonal.training.draw import Draw
from fedpersonal.training.loop import run_rounds
from fedpersonal.training.participation import Participation
from fedpersonal.training.session import Session
from fedpersonal.training.trained import EVALUATED_TOGETHER, TrainedModel

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
        algorithm: What a client does in a round.
        process: The TFF process.
        crossings: What one client receives and sends in a round.
        num_shards: Into how many shards a cohort is divided.
        privacy: What hides each client's part in the global variables, or None.
        budget: What that spends, or None.

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
        train: ClientDataset | ReadWhenDrawn,
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
        """Builds the TFF process, and makes sure that nothing local crosses its boundary.

        Args:
            model: The partitioned model.
            algorithm: What a client does in a round.
            train: The clients that train, with the model's inputs among their features.
            finetuning: What trains a client's copy of the model before it predicts, on its support
                set.
            server_optimizer: What takes the mean of the clients' updates for a gradient; None for
                SGD of rate 1, which adds the mean.
            clients_per_round: Clients drawn for a round; of fewer clients, all.
            batch_size: Examples of a client's batch, at most as many as the largest client has.
            local_steps: Batches that a client draws at random for a round; None for all it has.
            shuffle: When a client's examples are shuffled, by the seed, before they are cut into
                batches: `never`; before `rounds`; or before `epochs`, each pass of a phase. Support
                and query sets keep their examples. Evaluation takes the data's order.
            participation: What becomes of the clients drawn; None if all take part.
            packing: How a shard's clients are computed: `stacked`, which suits models of many small
                operations, or `pooled`, which suits models bound by arithmetic.
            shards: Into how many shards a cohort is divided; None for one a processor.
            aggregator: A factory of `tff.aggregators`; None for the weighted mean.
            client_sampling: `fixed`: so many clients in each round; or `poisson`: each client by
                itself, with the same chance, so that rounds differ in size and may be empty.
            privacy: What hides each client's part in the global variables; None for nothing.
            clients_of_round: Whose examples a round takes, in place of a random draw.
            seed: Seed of initial values, of the clients drawn and of their examples.

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
            check_own_rows(model, check_data(model, train))
        self._finetuning = algorithm.finetuning(finetuning)
        self._batch_size, self._seed, self._shuffle = batch_size, seed, shuffle
        if shuffle == "rounds" and local_steps:
            raise UserError(
                f"shuffle='rounds' has no effect with local_steps={local_steps}, which draws each "
                "round's examples in a random order: take 'epochs', or leave it out."
            )
        self._secret = new_secret() if privacy is not None and privacy.is_secret else None
        self.crossings: list[Crossing] = []  # Known once the process is built; none without rounds.
        self._draw_by = functools.partial(
            Draw,
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
        self._draw = self._draw_by(secret_seed=self._derived("clients"))
        self.privacy, self.budget, self._spending = privacy, None, None
        if privacy is not None:
            self._spending = Spending.of(privacy, self._draw, sampling=client_sampling)
            self.privacy, self.budget = self._spending.privacy, self._spending.budget
        self.num_shards = shards or default_num_shards()
        check_memory(model, self.num_shards, clients=self._draw.room if model.copies else 0)
        largest = self._draw.largest_batch(batch_size)
        self._execution = Execution.for_cohorts(
            self._draw.room,
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
            num_clients=self._draw.num_clients,
            seed=seed,
        )
        self._given = {
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
            self.crossings = check_boundary(model, self.process.next, folding=self.process.folding)

    def __repr__(self) -> str:
        drawn = f"{self._draw.clients_per_round:,} of {self._draw.num_clients:,} clients a round"
        said = f"{self.algorithm.name}, {drawn}, batches of {self._batch_size:,}"
        return f"<Trainer: {said}: {self.model.describe_variables()}>"

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
        cohort = make(*self._draw.clients_of_round(round_number))
        if not self._draw.keeps_lost:
            return cohort
        data, indices = self._draw.lost_of_round(round_number)
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
            rounds: Rounds in all; an algorithm without rounds, such as `local_only`, runs none.
            folder: The run's folder, which receives `metrics.csv`, TensorBoard events, checkpoints,
                what clients keep, the model, for `load_run`, and `report.html`, to look at; a run
                that is there goes on. None for one that is removed when the model is closed.
            validate: Maps a model between rounds to metrics, such as those of `overall`, which
                become `eval/...`.
            rounds_per_eval: Rounds from one validation to the next.
            rounds_per_checkpoint: Rounds from one checkpoint to the next.
            callbacks: What else takes part, such as `EarlyStopping`.
            best: A metric of `metrics.csv`, such as `eval/loss`: the model returned is that of the
                round where it was best, with what clients had kept then. Checkpoints carry this
                model, too. None for the last round's, which a warning says if the metric was NaN
                in every round.
            best_mode: Whether less of that metric (`min`) or more (`max`) is better.
            progress: Whether to report progress on stderr.

        Returns:
            The trained model. Close it, or use it in a `with` statement, where other programs want
            what clients keep.

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
            run_folder.check_data(describe_clients(self._draw.train))
            self._take_secret(run_folder)
            if files.is_program:
                run_folder.check_training(self._describe_training())
            if not self.algorithm.trains:
                return files.finish(self.untrained(), None, self.describe_privacy)
            store = None
            if self.algorithm.keeps:
                store = files.open_store(self.model.local_variables)
                self._draw.warn_of_never_drawn(rounds)
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
        """Returns what rounds have spent, of what mechanism, for JSON; nothing without privacy."""
        return self._spending.describe(rounds) if self._spending else {}

    @property
    def participation_columns(self) -> list[str]:
        """The columns of `metrics.csv` about clients that took no part; none if all take part."""
        return [*self._draw.columns(1)]

    def _columns(self, rounds: int) -> Callable[[int], dict[str, float]]:
        """Returns what gives further columns of a round's row, by its number."""
        spent = self._spending.by_round(rounds) if self._spending else None
        draw, told = self._draw, {}
        if self._has_aggregator and self.privacy is None:
            told = {k: v for k, v in bytes_per_client(self.crossings).items() if v is not None}
        return lambda number: {**(spent(number) if spent else {}), **draw.columns(number), **told}

    def attended_rounds(self, rounds: int) -> dict[str, list[int]]:
        """Returns in which rounds, from 1, each training client took part, by name.

        Args:
            rounds: Rounds that were run.

        Raises:
            UserError: If the draw of clients is secret.
        """
        if self._secret is not None:
            raise UserError("who was drawn is secret, as the noise of differential privacy is.")
        return self._draw.attended_rounds(rounds)

    def audit(self, *, rounds: int = 4) -> Audit:
        """Checks by experiment what crosses the boundary; `docs/explanation/boundary.md` tells how.

        Args:
            rounds: Rounds to look at.

        Returns:
            What was found; it `holds` if that is nothing.
        """
        from fedpersonal.audit.audit import Audit, audit, guarantee
        from fedpersonal.audit.subject import Subject

        if not self.algorithm.trains:
            notes = ["There are no rounds: nothing is ever sent."]
            return Audit((), (), (), notes, guarantee(self.describe_privacy(rounds)))
        drawn = map(self._draw.clients_of_round, range(1, 101))
        try:
            data, indices = next(one for one in drawn if len(one[1]))
        except StopIteration:
            raise UserError("no client takes part in rounds 1 to 100: nothing is sent.") from None
        subject = Subject.of(
            clients=data.subset(indices),
            model=self.model,
            algorithm=self.algorithm,
            process=self.process,
            build=self._build,
            execution=self._execution,
            seed=self._seed,
            has_aggregator=self._has_aggregator,
        )
        train = self._draw.train
        most = np.arange(min(100, train.num_clients))
        many = train.subset(most) if self._draw.is_random else None
        privacy = self.describe_privacy(rounds)
        found = audit(subject, privacy=privacy, rounds=rounds, many=many)
        return dataclasses.replace(found, crossings=self.crossings)

    def untrained(self) -> TrainedModel:
        """Returns the model with its initial weights, of which no client has kept anything."""
        nobody = Snapshot.empty(self.model.local_variables) if self.algorithm.keeps else None
        trained = self._trained(None, self.process.initialize(), 0)
        return dataclasses.replace(trained, kept_by=nobody.kept_by if nobody else None)

    def _trained(
        self, store: LocalStateStore | None, state: State | KeptState, round_number: int
    ) -> TrainedModel:
        return TrainedModel(
            model=self.model,
            rebuilding=self.algorithm.personalization(self.model),
            finetuning=self._finetuning,
            batch_size=self._batch_size,
            packing=self._execution.packing,
            together=EVALUATED_TOGETHER,
            seed=self._seed,
            algorithm=self.algorithm,
            weights=state.global_model_weights.trainable,
            kept_by=functools.partial(read_kept, store, state) if store else None,
            round_number=round_number,
        )

    def _derived(self, purpose: str) -> int | None:
        return None if self._secret is None else derived(self._secret, purpose)

    def _private(self) -> dict[str, Any]:
        return {"privacy": self.privacy, "secret_seed": self._derived("noise")}

    def _take_secret(self, folder: RunFolder) -> None:
        """Has noise and draw follow from the secret of the run that goes on in a folder."""
        if self._secret is None:
            return
        known, self._secret = self._secret, settle_secret(folder.path, self._secret)
        if self._secret != known:
            self._draw = self._draw_by(secret_seed=self._derived("clients"))
            self.process = self._build(self.model, **self._private())

    def _dropped(self, store: LocalStateStore | None) -> Callable[[Any, int], list[str]]:
        next_round = Rounds(self.process, store).next
        return lambda state, number: find_dropped(next_round, state, self.cohort(number))

    def _describe_training(self) -> dict[str, Any]:
        """Returns all that a program trains with, which `RunFolder.check_training` takes."""
        initial = fingerprint(self._plain_model.initial_local_values(seed=self._seed))
        parts = {"model": list_parts(self._plain_model), "initial_local_values": initial}
        return {**parts, **self._given}

    def _describe(self) -> dict[str, Any]:
        return {
            "method": self.algorithm.name,
            "local_variables": [v.name for v in self.model.local_variables],
            "finetuning_phases": len(self._finetuning),
            "batch_size": self._batch_size,
            "packing": self._execution.packing,
            "shuffle": self._shuffle,
            "seed": self._seed,
            **self._draw.options,
            **({"privacy": dataclasses.asdict(self.privacy)} if self.privacy else {}),
        }


def _show_best_round(folder: RunFolder) -> None:
    """Prints which round validated best, and how far the last is from it."""
    found = find_best_round(folder.metrics)
    if found is not None:
        advice = f": fit(best='eval/{found.metric}') returns the best round's model"
        line = f"{found.sentence()}{'' if found.is_last else advice}"
        print(line, file=sys.stderr, flush=True)


def _check_parts(model: object, algorithm: object, train: object) -> None:
    """Raises a UserError that says what is to be given in place of what is no such part."""
    if not isinstance(model, PartitionedModel):
        raise UserError(
            "model must be a PartitionedModel, which takes a Keras model or its builder, not "
            f"{kind_of(model)}."
        )
    if not isinstance(algorithm, Algorithm):
        raise UserError(
            "algorithm must be what a method's function returns, such as "
            f"fp.fed_avg(client_optimizer=...), not {kind_of(algorithm)}."
        )
    if isinstance(train, ClientDataset) and train.num_clients and not train.num_examples:
        raise UserError(
            f"none of the {counted(train.num_clients, 'clients')} in train has an example: give "
            "clients with examples."
        )
    if not hasattr(train, "num_clients"):
        raise UserError(
            "train must be a ClientDataset, as of clients_from_datasets({name: dataset}) or "
            f"clients_from_table(...), not {kind_of(train)}."
        )
