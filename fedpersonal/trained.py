"""A trained model: evaluated, asked, handed on to Keras."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import tensorflow as tf

from fedpersonal.algorithm import Algorithm, Phase
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.splits import split_support_query
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import ClientResults, build_evaluation
from fedpersonal.evaluation.personalize import personalize
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.simulation.loop import LoopResult

LOCAL_STATE = "local_state.sqlite"

# Who of some clients has kept anything, bool (n,), and local variable's name to (n, ...).
Kept = tuple[np.ndarray, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model after its rounds, and what clients keep.

    Attributes:
        model: The partitioned model.
        algorithm: What clients did in a round.
        weights: Global variable's name to value.
        kept_by: Maps clients' names to what they have kept; None where clients keep nothing.
        batch_size: Examples of a client's batch.
        seed: Seed of local variables' initial values.
        loop: The rounds' times; None between rounds.
        resources: What `close` gives back.
    """

    model: PartitionedModel
    algorithm: Algorithm
    weights: Mapping[str, np.ndarray]
    kept_by: Callable[[Sequence[str]], Kept] | None
    batch_size: int = 16
    seed: int = 0
    loop: LoopResult | None = None
    resources: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> TrainedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets other processes have the store of what clients keep."""
        self.resources.close()

    def evaluate(
        self, clients: ClientDataset, *, support: ClientDataset | None = None
    ) -> pd.DataFrame:
        """Evaluates clients, each before and after its model is personalised.

        A client that has kept local variables predicts with them. Any other builds its own by the
        algorithm's `personalization`, from a support set.

        Args:
            clients: What is predicted.
            support: What local variables are built from, of the same clients; None: every second
                batch of `clients`, which is then not predicted. Clients that have kept theirs need
                none.

        Returns:
            A row a client: `client`, `num_examples`, whether it was `seen` in training, and each
            metric `_before` and `_after`.

        Raises:
            UserError: If nobody has anything to predict.
        """
        known, _ = self._kept(clients.client_ids)
        tables = []
        for is_known in (True, False):
            some = np.flatnonzero(known == is_known)
            if len(some):
                own = None if support is None else support.subset(some)
                results = self._evaluate(clients.subset(some), own, is_known)
                tables.append(pd.DataFrame(results.per_client()).assign(seen=is_known))
        table = pd.concat(tables).set_index("client").loc[list(clients.client_ids)].reset_index()
        if not table["num_examples"].sum():
            raise UserError(
                "nobody has anything to predict: each client has too few examples for a query set."
                f" Give support, or a batch_size below {self.batch_size}."
            )
        return table

    def overall(
        self, clients: ClientDataset, *, support: ClientDataset | None = None
    ) -> dict[str, float]:
        """Returns each metric over all clients' examples, after personalisation.

        Arguments are those of `evaluate`. Metrics are means weighted by examples.
        """
        table = self.evaluate(clients, support=support)
        weights = table["num_examples"]
        names = [name for name in table.columns if name.endswith("_after")]
        means = {n: np.average(table[n].fillna(0), weights=weights) for n in names}
        return {name[: -len("_after")]: float(mean) for name, mean in means.items()}

    def _evaluate(
        self, query: ClientDataset, support: ClientDataset | None, is_known: bool
    ) -> ClientResults:
        phases = () if is_known else self.algorithm.personalization(self.model)
        if support is None and phases:
            support, query = split_support_query(query, batch_size=self.batch_size)
        elif support is None:
            support = query.filter_examples(np.zeros(query.num_examples, bool))
        evaluate = build_evaluation(
            self.model,
            phases,
            support,
            query,
            batch_size=self.batch_size,
            with_kept=is_known,
            seed=self.seed,
        )
        kept = (self._kept(query.client_ids),) if is_known else ()
        return evaluate(self.weights, *kept)

    def _kept(self, client_ids: Sequence[str]) -> Kept:
        if self.kept_by is None:
            return np.zeros(len(client_ids), bool), {}
        return self.kept_by(client_ids)

    def values(
        self, client: str | None = None, *, support: ClientDataset | None = None
    ) -> dict[str, np.ndarray]:
        """Returns the value of every variable of a client's model, by name.

        Args:
            client: Its name; None for a client that nobody has seen.
            support: Its examples, of one client, from which it builds local variables that it has
                not kept; None for initial ones.

        Raises:
            UserError: If the client has kept nothing and there is no support set.
        """
        known, kept = self._kept([client] if client is not None else [])
        if known.any():
            return {**self.weights, **{name: value[0] for name, value in kept.items()}}
        if client is not None and support is None and self.model.local_variables:
            raise UserError(
                f"client {client!r} has kept no local variables; give support, its examples, or "
                "client=None for a model with initial ones."
            )
        phases: tuple[Phase, ...] = ()
        if support is not None:
            phases = self.algorithm.personalization(self.model)
        return personalize(
            self.model,
            phases,
            self.weights,
            support,
            batch_size=self.batch_size,
            seed=self.seed,
        )

    def predict(
        self,
        features: Mapping[str, np.ndarray],
        *,
        client: str | None = None,
        support: ClientDataset | None = None,
    ) -> np.ndarray:
        """Predicts with a client's model.

        Args:
            features: Input name to (n, ...).
            client: As of `values`.
            support: As of `values`.

        Returns:
            The model's output, (n, ...).
        """
        values = self.values(client, support=support)
        model = self.model

        @tf.function(autograph=False)
        def output(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
            constants = {name: tf.constant(value) for name, value in values.items()}
            return model.as_labels(model.predict(constants, features, training=False)[0])

        given = {n: tf.cast(features[n], s.dtype) for n, s in model.input_spec.items()}
        return output(given).numpy()

    def to_keras(
        self, client: str | None = None, *, support: ClientDataset | None = None
    ) -> tf.keras.Model:
        """Returns a client's model as a Keras model with its weights.

        Args:
            client: As of `values`.
            support: As of `values`.
        """
        from fedpersonal.model.export import to_keras

        return to_keras(self.model, self.values(client, support=support))

    def export(
        self,
        folder: str | os.PathLike,
        client: str | None = None,
        *,
        support: ClientDataset | None = None,
    ) -> None:
        """Writes a client's model as a SavedModel, which TensorFlow loads without this library.

        Args:
            folder: Where to.
            client: As of `values`.
            support: As of `values`.
        """
        tf.saved_model.save(self.to_keras(client, support=support), os.fspath(folder))
