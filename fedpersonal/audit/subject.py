"""What is audited: a process, its model and algorithm, and a few clients to try it with."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedpersonal import tff
from fedpersonal.audit.plain_model import Arrays, Client
from fedpersonal.data.clients import ClientDataset
from fedpersonal.federated.boundary import Crossing, crossings_of, sent_parts
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import Process
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel


class Traffic(NamedTuple):
    """What crossed in a call.

    Attributes:
        members: For each member of CLIENTS, or for the server alone, the value of each of
            `Tap.crossings`.
        result: What the computation returns, or None.
    """

    members: list[list[np.ndarray]]
    result: Any


class Tap:
    """Runs a computation and tells what it broadcasts, or what each member sends.

    The values are the arguments of the intrinsics themselves, of the computation as it runs; what
    is not asked for is not computed.

    Attributes:
        crossings: What crosses in that direction.
    """

    def __init__(self, computation: tff.Computation, direction: str, *, with_result: bool = False):
        """Takes a computation that has arguments, and `broadcast` or `aggregate`."""
        root = tff.to_call_dominant(computation.to_building_block())
        assert isinstance(root, tff.Lambda)
        body = root.result
        calls = body.locals if isinstance(body, tff.Block) else []
        self.crossings: list[Crossing] = []
        tapped: list[tff.ComputationBuildingBlock] = []
        for _, call in calls:
            intrinsic = call.function if isinstance(call, tff.Call) else None
            if isinstance(intrinsic, tff.Intrinsic):
                argument = call.argument
                for part in sent_parts(argument.type_signature, intrinsic.type_signature):
                    if part.direction == direction:
                        self.crossings += crossings_of(part)
                        tapped.append(functools.reduce(_select, part.place, argument))
        self._with_result = with_result
        wanted = ([body.result] if isinstance(body, tff.Block) else [body]) * with_result
        result = tff.Struct([*wanted, *tapped])
        block = tff.Lambda(root.parameter_name, root.parameter_type, tff.Block(calls, result))
        # A building block has lost the Python types of its argument and its result.
        own_type = computation.type_signature
        results = [*[own_type.result] * with_result, *(part.type_signature for part in tapped)]
        self._computation = tff.computation_of(
            tff.to_proto(block), tff.FunctionType(own_type.parameter, tff.to_type(tuple(results)))
        )

    def __call__(self, *arguments: Any) -> Traffic:
        """Runs the computation."""
        if not self.crossings and not self._with_result:
            return Traffic([[]], None)
        found = list(self._computation(*arguments))
        result = found.pop(0) if self._with_result else None
        # What is the same for all members comes as one value.
        columns = [value if isinstance(value, list) else [value] for value in found]
        count = max(map(len, columns), default=0)
        members = zip(*(column * (count // len(column)) for column in columns))
        return Traffic(
            [[t for value in member for t in _flat(value)] for member in members], result
        )


def _flat(value: Any) -> list[np.ndarray]:
    struct = tff.from_container((value,), recursive=True)
    return [np.asarray(tensor) for tensor in tff.flatten(struct)]


def _select(block: tff.ComputationBuildingBlock, index: int) -> tff.ComputationBuildingBlock:
    if isinstance(block, tff.Struct):
        return block[index]
    return tff.Selection(block, index=index)


# Enough for every part of a client's data, and for another batch of another size.
_BATCHES = 6


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """What is audited.

    Attributes:
        model: The partitioned model.
        algorithm: What a client does in a round.
        process: The process that runs.
        build: Builds the process of a model, by the same algorithm and execution, with the
            weighted mean as aggregator.
        execution: How the process executes cohorts.
        clients: The clients of a round; the first has the most examples.
        seed: What the process' draws follow from.
        has_aggregator: Whether the process has another aggregator than the weighted mean.
    """

    model: PartitionedModel
    algorithm: Algorithm
    process: Process
    build: Callable[[PartitionedModel], Process]
    execution: Execution
    clients: ClientDataset
    seed: int
    has_aggregator: bool = False

    @classmethod
    def of(cls, *, clients: ClientDataset, execution: Execution, **parts: Any) -> Subject:
        """Makes one of a round's clients, of whose examples some batches are taken."""
        clients = clients.head(_BATCHES * execution.batch_size)
        order = np.argsort(-clients.counts, kind="stable")
        return cls(clients=clients.subset(order), execution=execution, **parts)

    def examples(self, place: int, clients: ClientDataset | None = None) -> Client:
        """Returns a client's examples as the model takes them, one of other clients if given."""
        clients = clients or self.clients
        features, labels = clients.client(place)
        specs = self.model.input_spec.items()
        return Client(
            {name: features[name].astype(spec.dtype.as_numpy_dtype) for name, spec in specs},
            labels.astype(self.model.label_spec.dtype.as_numpy_dtype),
            str(clients.client_ids[place]),
        )

    def argument(
        self,
        place: int,
        local: Arrays | None,
        *,
        labels: np.ndarray | None = None,
        order: np.ndarray | None = None,
        round_number: int = 0,
    ) -> list[Any]:
        """Returns a cohort of one client as the process takes it.

        Args:
            place: Which client.
            local: What it has kept, or None for nothing, where clients keep local variables.
            labels: Others than its own.
            order: Which of its examples' inputs each example has, (n,); None for its own.
            round_number: The number of rounds before.
        """
        client = self.clients.subset([place])
        if order is not None:
            inputs = {name: column[order] for name, column in client.features.items()}
            client = dataclasses.replace(client, features=inputs)
        if labels is not None:
            client = dataclasses.replace(client, labels=labels)
        return self.cohort(client, [local], round_number=round_number)

    def cohort(
        self, clients: ClientDataset, local: list[Arrays | None], *, round_number: int = 0
    ) -> list[Any]:
        """Returns a cohort of some clients, with what they have kept, as the process takes it."""
        cohort = make_cohort(
            self.model,
            clients,
            np.arange(clients.num_clients),
            execution=self.execution,
            touched_data=self.algorithm.touched_data,
            round_number=round_number,
        )
        if not self.algorithm.keeps:
            return cohort.examples
        nothing = {v.name: np.zeros(v.shape, np.float32) for v in self.model.local_variables}
        kept = [nothing if own is None else own for own in local]
        known = np.array([own is not None for own in local])
        return cohort.with_local_state(
            known, {name: np.stack([own[name] for own in kept]) for name in nothing}
        )


class Round(NamedTuple):
    """A round of the first client alone.

    Attributes:
        number: The number of rounds before.
        state: The server's state before it.
        local: What the client had kept, or None.
        traffic: What it sent, and what came of it.
    """

    number: int
    state: Any
    local: Arrays | None
    traffic: Traffic

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The global variables that the server sent."""
        weights = self.state.global_model_weights.trainable
        return {name: np.asarray(value) for name, value in weights.items()}


def run_rounds_of_one(subject: Subject, process: Process, rounds: int) -> tuple[Tap, list[Round]]:
    """Runs rounds of the first client alone, and keeps what it sends."""
    tap, done = Tap(process.next, "aggregate", with_result=True), []
    state, local = process.initialize(), None
    for number in range(rounds):
        traffic = tap(state, subject.argument(0, local, round_number=number))
        done.append(Round(number, state, local, traffic))
        state = traffic.result.state
        if subject.algorithm.keeps:
            (kept,) = traffic.result.local
            local = {name: np.asarray(value)[0] for name, value in kept["values"].items()}
    return tap, done
