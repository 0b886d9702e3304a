"""Evaluation of every client, before and after its local variables are built.

Reconstruction evaluation (Singhal et al., section 4.1, RECONEVAL) builds the local variables of a
client from its support set, with the global ones frozen, and predicts its query set. Without
phases it is the paper's standard evaluation: predictions with the variables as they are.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Phase, RidgePhase
from fedpersonal.client_batches import batch_metric_sums, predict_batch, take_batch
from fedpersonal.client_values import starting_values
from fedpersonal.client_work import run_phase
from fedpersonal.datasets.client_dataset import ClientDataset
from fedpersonal.execution import as_examples, pack_clients, packed_type
from fedpersonal.metrics import Metric, finalize
from fedpersonal.partition import PartitionedModel
from fedpersonal.ridge import check_linear
from fedpersonal.tracing import keras_computation

PERCENTILES = (5, 25, 50, 75, 95)


@dataclasses.dataclass(frozen=True, eq=False)
class ClientResults:
    """Sums over each client's query set; clients in the order of the data set evaluated.

    Attributes:
        client_ids: (num_clients,) names.
        num_examples: float64 (num_clients,): examples predicted.
        before: Metric name, and `loss`, to float64 sums (num_clients,), before personalisation.
        after: The same after it.
        predictions: (num_clients, longest query set, ...) after it, padded.
        metrics: The metrics, for their finalizers.
    """

    client_ids: np.ndarray
    num_examples: np.ndarray
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    predictions: np.ndarray
    metrics: tuple[Metric, ...]

    def overall(self) -> dict[str, float]:
        """Returns the metrics over all examples of all clients, after personalisation."""
        sums = {name: values.sum() for name, values in self.after.items()}
        values = finalize(self.metrics, sums, self.num_examples.sum())
        return {name: float(value) for name, value in sorted(values.items())}

    def per_client(self) -> dict[str, np.ndarray]:
        """Returns columns, a row a client: id, examples, each metric before and after."""
        columns = {"client": self.client_ids, "num_examples": self.num_examples.astype(np.int64)}
        for stage, sums in (("before", self.before), ("after", self.after)):
            for name, values in finalize(self.metrics, sums, self.num_examples).items():
                columns[f"{name}_{stage}"] = values
        return columns

    def distribution(self) -> dict[str, Any]:
        """Returns percentiles over clients of each metric, and the share of clients hurt.

        A client is hurt when its mean loss is higher after personalisation than before.
        """
        columns = self.per_client()
        known = self.num_examples > 0
        spread = {
            name[: -len("_after")]: {
                f"p{p}": float(v)
                for p, v in zip(PERCENTILES, np.percentile(values[known], PERCENTILES))
            }
            for name, values in columns.items()
            if name.endswith("_after") and known.any()
        }
        hurt = columns["loss_after"][known] > columns["loss_before"][known]
        return {"percentiles": spread, "share_hurt": float(hurt.mean()) if known.any() else None}


def split_support_query(
    dataset: ClientDataset, *, batch_size: int
) -> tuple[ClientDataset, ClientDataset]:
    """Splits every client by batches, as training does: even ones support, odd ones query."""
    odd = (dataset.example_positions // batch_size) % 2 == 1
    return dataset.filter_examples(~odd), dataset.filter_examples(odd)


def pack_evaluation(
    model: PartitionedModel,
    support: ClientDataset,
    query: ClientDataset,
    *,
    clients: int,
    batch_size: int,
) -> list[collections.OrderedDict]:
    """Packs two data sets of the same clients for an `Evaluation`.

    Args:
        model: The partitioned model.
        support: What local variables are built from.
        query: What is predicted.
        clients: Clients a member.
        batch_size: Examples a batch of the support set.

    Returns:
        The members; an evaluation may take them again and again.
    """
    width = max(1, int(query.counts.max(initial=1)))
    order = np.argsort(-support.counts, kind="stable")
    return [
        collections.OrderedDict(
            ids=np.pad(chunk, (0, clients - len(chunk)), constant_values=-1).astype(np.int32),
            support=pack_clients(
                model, support, chunk, clients=clients, batch_size=batch_size, touched_data="none"
            ),
            query=pack_clients(
                model, query, chunk, clients=clients, batch_size=width, touched_data="none"
            ),
        )
        for chunk in (order[i : i + clients] for i in range(0, len(order), clients))
    ]


class Evaluation:
    """Evaluates clients in packed members; built once, called with any weights."""

    def __init__(
        self,
        model: PartitionedModel,
        phases: Sequence[Phase],
        *,
        clients: int,
        batch_size: int,
        query_width: int,
        seed: int = 0,
    ):
        """Builds the TFF computation.

        Args:
            model: The partitioned model.
            phases: What builds the local variables: `Algorithm.personalization`, or nothing. They
                run on the support set as a whole.
            clients: Clients a member, as packed.
            batch_size: Examples a batch of the support set, as packed.
            query_width: Examples of the longest query set, as packed.
            seed: Seed of the local variables' initial values.

        Raises:
            ValueError: If a phase moves global variables.
        """
        if any(phase.variables != "local" for phase in phases):
            raise ValueError("Evaluation: only phases that move local variables can personalise.")
        if any(isinstance(phase, RidgePhase) for phase in phases):
            check_linear(model)
        self._model = model
        phases = [dataclasses.replace(phase, data="all") for phase in phases]
        weights_type = tff.to_type(
            collections.OrderedDict(
                (v.name, (v.dtype.as_numpy_dtype, list(v.shape))) for v in model.global_variables
            )
        )
        member_type = tff.to_type(
            collections.OrderedDict(
                ids=(np.int32, [clients]),
                support=packed_type(model, clients=clients, batch_size=batch_size),
                query=packed_type(model, clients=clients, batch_size=query_width),
            )
        )

        @keras_computation(weights_type, member_type)
        def evaluate_member(weights, member):
            support, query = as_examples(member["support"]), as_examples(member["query"])
            values = starting_values(model, dict(weights), support, tf.constant([seed, -1]))

            def predicted():
                only = tf.zeros([clients], tf.int32)
                batch = take_batch(model, query, only, values)
                outcome = predict_batch(model, values, batch, training=False)
                sums = batch_metric_sums(model, batch, outcome)
                return outcome.predictions, collections.OrderedDict(sorted(sums.items()))

            predictions, before = predicted()
            after = before
            for phase in phases:
                values = run_phase(model, phase, values, support)
            if phases:
                predictions, after = predicted()
            return collections.OrderedDict(
                ids=member["ids"],
                num_examples=tf.reduce_sum(query.mask, [1, 2]),
                before=before,
                after=after,
                predictions=predictions,
            )

        @tff.federated_computation(
            tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(member_type, tff.CLIENTS)
        )
        def evaluate(weights, members):
            return tff.federated_map(evaluate_member, (tff.federated_broadcast(weights), members))

        self.computation = evaluate

    def __call__(
        self,
        weights: Mapping[str, np.ndarray],
        members: Sequence[Mapping[str, Any]],
        client_ids: np.ndarray,
    ) -> ClientResults:
        """Evaluates global variables.

        Args:
            weights: Global variable's name to value; others are ignored.
            members: From `pack_evaluation`.
            client_ids: (num_clients,) names of the clients packed.
        """
        weights = collections.OrderedDict(
            (v.name, weights[v.name]) for v in self._model.global_variables
        )
        outputs = self.computation(weights, list(members))
        # Results may come back in another order than they went out, so they carry their ids.
        ids = np.concatenate([o["ids"] for o in outputs])
        order = np.argsort(ids, kind="stable")[(ids < 0).sum() :]

        def column(*path: str) -> np.ndarray:
            parts = []
            for output in outputs:
                for key in path:
                    output = output[key]
                parts.append(output)
            return np.concatenate(parts)[order]

        names = list(outputs[0]["after"])
        return ClientResults(
            client_ids=client_ids,
            num_examples=column("num_examples").astype(np.float64),
            before={name: column("before", name).astype(np.float64) for name in names},
            after={name: column("after", name).astype(np.float64) for name in names},
            predictions=column("predictions"),
            metrics=self._model.metrics,
        )


def evaluate_clients(
    model: PartitionedModel,
    phases: Sequence[Phase],
    weights: Mapping[str, np.ndarray],
    support: ClientDataset,
    query: ClientDataset,
    *,
    batch_size: int,
    clients: int = 100,
    seed: int = 0,
) -> ClientResults:
    """Builds an evaluation, packs the clients and evaluates them once."""
    members = pack_evaluation(model, support, query, clients=clients, batch_size=batch_size)
    evaluation = Evaluation(
        model,
        phases,
        clients=clients,
        batch_size=batch_size,
        query_width=members[0]["query"]["mask"].shape[2],
        seed=seed,
    )
    return evaluation(weights, members, query.client_ids)
