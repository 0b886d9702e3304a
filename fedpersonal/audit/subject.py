"""The subject of an audit: a process, its model and algorithm, and clients to try it with."""

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
    """The values that crossed the boundary in a call.

    Attributes:
        members: For each member of CLIENTS, or for the server alone, the value of each of
            `Recorder.crossings`.
        result: The computation's result, or None.
    """

    members: list[list[np.ndarray]]
    result: Any


class Recorder:
    """Runs a computation and records the values that it broadcasts, or that each member sends.

    The values are arguments of intrinsics while the computation runs. Results that are not needed
    are not computed.

    Attributes:
        crossings: The recorded crossings, all of one direction.
    """

    def __init__(self, computation: tff.Computation, direction: str, *, with_result: bool = False):
        """Prepares to record a computation with arguments.

        Args:
            computation: The computation.
            direction: The recorded direction: `broadcast` or `aggregate`.
            with_result: Whether to return the computation's result, too.
        """
        root = tff.to_call_dominant(computation.to_building_block())
        assert isinstance(root, tff.Lambda)
        body = root.result
        calls = body.locals if isinstance(body, tff.Block) else []
        self.crossings: list[Crossing] = []
        recorded: list[tff.ComputationBuildingBlock] = []
        for _, call in calls:
            intrinsic = call.function if isinstance(call, tff.Call) else None
            if isinstance(intrinsic, tff.Intrinsic):
                argument = call.argument
                for part in sent_parts(argument.type_signature, intrinsic.type_signature):
                    if part.direction == direction:
                        self.crossings += crossings_of(part)
                        recorded.append(functools.reduce(_select, part.place, argument))
        self._with_result = with_result
        body_result = ([body.result] if isinstance(body, tff.Block) else [body]) * with_result
        result = tff.Struct([*body_result, *recorded])
        block = tff.Lambda(root.parameter_name, root.parameter_type, tff.Block(calls, result))
        # A building block has lost the Python types of its argument and its result.
        signature = computation.type_signature
        results = [*[signature.result] * with_result, *(part.type_signature for part in recorded)]
        self._computation = tff.computation_from_proto(
            tff.to_proto(block), tff.FunctionType(signature.parameter, tff.to_type(tuple(results)))
        )

    def __call__(self, *arguments: Any) -> Traffic:
        """Runs the computation."""
        if not self.crossings and not self._with_result:
            return Traffic([[]], None)
        results = list(self._computation(*arguments))
        result = results.pop(0) if self._with_result else None
        # A value that all members share comes once.
        columns = [value if isinstance(value, list) else [value] for value in results]
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
    """An audited process, with clients to try it with.

    Attributes:
        model: The partitioned model.
        algorithm: The clients' algorithm.
        process: The audited process.
        build: Builds the process of a model, by the same algorithm and execution, with the
            weighted mean as aggregator.
        execution: How the process executes cohorts.
        clients: The clients of a round; the first has the most examples.
        seed: The seed of the process' random numbers.
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
    def from_clients(
        cls, *, clients: ClientDataset, execution: Execution, **attributes: Any
    ) -> Subject:
        """Returns a subject with the first batches of a round's clients."""
        clients = clients.head(_BATCHES * execution.batch_size)
        order = np.argsort(-clients.counts, kind="stable")
        return cls(clients=clients.subset(order), execution=execution, **attributes)

    def examples(self, place: int, clients: ClientDataset | None = None) -> Client:
        """Returns a client's examples in the model's types, by default of the subject's clients."""
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
        """Returns a cohort of one client as an argument of the process.

        Args:
            place: The client's index.
            local: The local variables that it has kept, or None.
            labels: Labels in place of its labels.
            order: The example whose inputs each example gets, (n,); None for no change.
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
        """Returns a cohort, with clients' kept local variables, as an argument of the process."""
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
        zeros = {v.name: np.zeros(v.shape, np.float32) for v in self.model.local_variables}
        kept = [zeros if values is None else values for values in local]
        has_kept = np.array([values is not None for values in local])
        return cohort.with_local_state(
            has_kept, {name: np.stack([values[name] for values in kept]) for name in zeros}
        )


class Round(NamedTuple):
    """A round of the first client alone.

    Attributes:
        number: The number of rounds before.
        state: The server's state before the round.
        local: The local variables that the client had kept, or None.
        traffic: The values that the client sent, and the round's result.
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


def run_rounds_of_one(
    subject: Subject, process: Process, rounds: int
) -> tuple[Recorder, list[Round]]:
    """Runs rounds of the first client alone, and records the values that it sends."""
    recorder, done = Recorder(process.next, "aggregate", with_result=True), []
    state, local = process.initialize(), None
    for number in range(rounds):
        traffic = recorder(state, subject.argument(0, local, round_number=number))
        done.append(Round(number, state, local, traffic))
        state = traffic.result.state
        if subject.algorithm.keeps:
            (kept,) = traffic.result.local
            local = {name: np.asarray(value)[0] for name, value in kept["values"].items()}
    return recorder, done
