"""Trained models: their evaluation, predictions, and export to Keras."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf
from absl import logging

from fedpersonal import former
from fedpersonal.client.neighbours import has_memory, make_predictor
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import split_support_query
from fedpersonal.errors import UserError, join_words
from fedpersonal.evaluation.baselines import BASELINE_SUFFIX
from fedpersonal.evaluation.evaluate import Evaluator, Kept
from fedpersonal.evaluation.personalize import personalize
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.evaluation.statistics import check_column
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.examples import check_data, check_features, check_is_clients
from fedpersonal.model.files import to_keras
from fedpersonal.runs.kept import Snapshot, kept_in_parts
from fedpersonal.runs.record import ROUND
from fedpersonal.runtime.context import check_not_forked
from fedpersonal.training.loop import LoopResult

# Clients per shard, when a program evaluates them.
EVALUATION_SHARD_SIZE = 100


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel(Evaluator):
    """A model after its rounds, with the local variables that clients keep.

    A client that has kept local variables predicts with them, with rebuilt ones, or with updated
    ones, as the argument `start` says. Any other client rebuilds its local variables from a support
    set. Both then fine-tune their copies of the model, if there are phases for that.

    Attributes:
        model: The partitioned model, with the personal copies that the algorithm requires.
        rebuilding: The phases that rebuild the local variables of a client that has kept none.
        finetuning: The phases that train a client's copy on its support set before it predicts.
        batch_size: Examples per batch of a client.
        packing: How clients are packed for evaluation: `stacked` or `pooled`, see `Execution`.
        clients_per_shard: Number of clients in a shard of the evaluation; 0 for all.
        seed: Seed of local variables' initial values.
        algorithm: The algorithm that trained the model.
        weights: Global variable's name to value.
        kept_by: Maps clients' names to their kept variables; None if clients keep nothing.
        round_number: The round of the model; 0 before the first.
        snapshot: The variables that clients had kept in that round, if it is not the run's last.
        loop: The rounds' times; None between rounds.
        folder: The run's folder; None between rounds, and if it is removed at the end.
        resources: The resources that `close` releases.

    Examples:
        With `trainer` and `clients` of `Trainer`'s example:

        >>> with trainer.fit(rounds=2, progress=False) as trained:
        ...     table = trained.evaluate(clients)
        ...     predicted = trained.predict({"x": np.ones([3, 2])}, client="a")
        >>> list(table.columns)
        ['client', 'num_examples', 'has_kept', 'loss_before', 'loss_after', 'round']
        >>> predicted.shape
        (3,)
    """

    algorithm: Algorithm
    weights: Mapping[str, np.ndarray]
    kept_by: Callable[[Sequence[str]], Kept] | None = None
    round_number: int = 0
    snapshot: Snapshot | None = None
    loop: LoopResult | None = None
    folder: pathlib.Path | None = None
    resources: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def __repr__(self) -> str:
        rounds, model = f"{self.algorithm.name}, round {self.round_number:,}", self.model
        return f"<TrainedModel: {rounds}: {model.describe_variables()}>"

    def __enter__(self) -> TrainedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the store of clients' local variables for other processes."""
        self.resources.close()

    @former.renamed_arguments(**{"guess": "baseline"})
    def results(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
        baseline: Mapping[str, npt.ArrayLike] | None = None,
    ) -> ClientResults:
        """Evaluates clients, each before and after its model is personalised.

        Args:
            clients: The clients, with the examples to predict.
            support: The support sets, of clients with the same names; None: every second batch of
                `clients`, which is then not predicted. Clients that predict with their kept
                variables, and do not fine-tune, require none, and predict all examples.
            start: The use of kept local variables: predict with them (`kept`), rebuild them from
                the support set (`rebuilt`), or update them by the same steps (`updated`); a
                `RidgePhase` always rebuilds. A client that has kept nothing rebuilds its local
                variables in any case.
            baseline: As in `evaluate`; a notebook shows it next to the results.

        Returns:
            Sums over each client's examples, in the order of `clients`, without predictions.

        Raises:
            UserError: As in `evaluate`.
        """
        check_is_clients("clients", clients)
        columns = self._check_baseline(baseline or {}, clients)
        results = self._results(clients, support, self._has_kept(clients.client_ids), start)
        return dataclasses.replace(results, baseline=columns)

    def _check_baseline(
        self, baseline: Mapping[str, npt.ArrayLike], clients: ClientDataset
    ) -> dict[str, np.ndarray]:
        """Returns each client's values of a baseline, whose names must be metrics."""
        names = ["loss", *(metric.name for metric in self.model.metrics)]
        unknown = [name for name in baseline if name not in names]
        if unknown:
            raise UserError(
                f"baseline has {unknown[0]!r}, which is no metric of the model: "
                f"{join_words(names)}."
            )
        return {
            name: check_column(f"baseline[{name!r}]", values, clients.num_clients)
            for name, values in baseline.items()
        }

    def _results(
        self,
        clients: ClientDataset,
        support: ClientDataset | None,
        has_kept: np.ndarray,
        start: str,
    ) -> ClientResults:
        clients = check_data(self.model, clients)
        if support is not None:
            check_is_clients("support", support)
            support = check_data(self.model, support)
        places, parts = [], []
        for is_kept in (True, False):
            matches = np.flatnonzero(has_kept == is_kept)
            if len(matches):
                places.append(matches)
                parts.append(self._evaluate(clients.subset(matches), support, is_kept, start))
        if not sum(part.num_examples.sum() for part in parts):
            raise UserError(
                "no client has anything to predict: each has too few examples for a query set."
                f" Give support, or a batch_size below {self.batch_size}."
            )
        return _join(parts, np.argsort(np.concatenate(places)))

    @former.renamed_arguments(**{"guess": "baseline"})
    def evaluate(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
        baseline: Mapping[str, npt.ArrayLike] | None = None,
    ) -> pd.DataFrame:
        """Evaluates clients, and returns a table with a row for each.

        Args:
            clients: The clients, with the examples to predict.
            support: The support sets, of clients with the same names; None: every second batch of
                `clients`, which is then not predicted.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.
            baseline: A baseline that the model must beat, on the same examples and without
                training: metric's name to (num_clients,) values, in the order of `clients`. Reports
                compare the results with it, because a model with initial local variables is no
                useful baseline.

        Returns:
            A row for each client: its name `client`; `num_examples`, the number of predicted
            examples; `has_kept`, whether it has kept local variables, other than states, from a
            round; and the loss and each metric before and after personalisation: `loss_before`,
            `loss_after`... Before personalisation, local variables have initial values. NaN for a
            client without predicted examples. With `baseline` also its values, such as
            `rmse_guess`. `round` is the round of the model, which distinguishes this table from a
            `per_client.csv` of another model.

        Raises:
            UserError: If a client is not in the support set, no client has anything to predict,
                `start` is none of the three, or `baseline` has another metric, or not a number for
                each client.
        """
        check_is_clients("clients", clients)
        columns = {
            n + BASELINE_SUFFIX: v for n, v in self._check_baseline(baseline or {}, clients).items()
        }
        has_kept = self._has_kept(clients.client_ids)
        results = self._results(clients, support, has_kept, start)
        table = pd.DataFrame({**results.per_client(), **columns})
        table.insert(2, "has_kept", has_kept)
        table[ROUND] = self.round_number
        return table

    @former.renamed_arguments(**{"guess": "baseline"})
    def test(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
        baseline: Mapping[str, npt.ArrayLike] | None = None,
        folder: str | os.PathLike | None = None,
    ) -> ClientResults:
        """Tests clients, and writes the same files to the run's folder as a command.

        These are `per_client.csv`, `summary.json` and the page. `compare` reads them.

        Args:
            clients: The clients, with the examples to predict.
            support: The support sets, of clients with the same names; None: every second batch of
                `clients`, which is then not predicted.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.
            baseline: A baseline that the model must beat, as in `evaluate`.
            folder: The run's folder; None for the one that was passed to `fit`.

        Returns:
            The result of `results`.

        Raises:
            UserError: As in `evaluate`, or the folder is not that of this model's run.
            TrainingError: If the loss is not finite.

        Examples:
            With all names of `Trainer`'s example:

            >>> with trainer.fit(rounds=2, folder="runs/tested", progress=False) as trained:
            ...     results = trained.test(clients)
            >>> summary = fp.load_run("runs/tested").summary
            >>> summary["test"]["loss"] == results.overall()["loss"]
            True
        """
        from fedpersonal.training.tested import EvaluationReport, hash_labels, report_program

        path = self._folder(folder)
        results = self.results(clients, support=support, start=start, baseline=baseline)
        # Without support sets, the batch size determines the predicted examples.
        selection = {} if support is not None else {"batch_size": self.batch_size}
        about = {"test_labels": hash_labels(clients, **selection)}
        report = EvaluationReport(results, description=about)
        report_program(
            path,
            report,
            results.baseline,
            weights=self.weights,
            method=self.algorithm.name,
            seed=self.seed,
        )
        return results

    def report(self, *, show_clients: bool = False) -> pathlib.Path:
        """Writes the page of the run, `report.html`, again, and returns its path.

        Args:
            show_clients: Whether the page shows clients' names; without them, it can be shared.

        Raises:
            UserError: If the run has no folder.
        """
        from fedpersonal.report.page import write_report

        return write_report(self._folder(None), show_clients=show_clients)

    def _folder(self, folder: str | os.PathLike | None) -> str | os.PathLike:
        folder = self.folder if folder is None else folder
        if folder is None:
            raise UserError("the run has no folder: train with fit(folder=...).")
        return folder

    def overall(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
    ) -> dict[str, float]:
        """Returns the loss and each metric of personalised models, pooled over examples.

        Metrics that no client has are left out.

        Args:
            clients: The clients, with the examples to predict.
            support: The support sets, of clients with the same names; None: every second batch of
                `clients`, which is then not predicted.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.
        """
        return self.results(clients, support=support, start=start).overall()

    def _evaluate(
        self, query: ClientDataset, support: ClientDataset | None, is_kept: bool, start: str
    ) -> ClientResults:
        phases, brings = self.personalization(is_kept, start), is_kept and start != "rebuilt"
        if support is not None:
            support = _of_clients(support, query.client_ids)
        elif phases:
            support, query = split_support_query(query, batch_size=self.batch_size)
        else:
            support = query.head(0)

        def kept(places: np.ndarray) -> Kept:
            return self._kept(query.client_ids[places])

        evaluate = self.pack(support, query, phases, has_kept=brings)
        return evaluate(self.weights, kept if brings else None)

    @property
    def _keeps_states_alone(self) -> bool:
        """Whether clients keep no variables that they predict with (FedEM rebuilds its weights)."""
        return all(v.is_state for v in self.model.local_variables)

    def _has_kept(self, client_ids: np.ndarray) -> np.ndarray:
        if self._keeps_states_alone:
            return np.zeros(len(client_ids), bool)
        return np.concatenate([has_kept for has_kept, _ in kept_in_parts(self._kept, client_ids)])

    def _kept(self, client_ids: Sequence[str] | np.ndarray) -> Kept:
        if self.kept_by is None:
            return np.zeros(len(client_ids), bool), {}
        return self.kept_by([*client_ids])

    def values(
        self,
        client: str | None = None,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
    ) -> dict[str, np.ndarray]:
        """Returns the value of every variable of a client's model, by name.

        After a `NeighboursPhase` there are also the client's stored examples, as `memory/...`.

        Args:
            client: The client's name; None for an unseen client.
            support: The examples that personalise the client's model: a data set of one client, or
                of several that include this one. None for a client that uses its kept variables;
                with client=None, for a model with initial local variables.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.

        Raises:
            UserError: If the client requires a support set and there is none, or the set is not the
                client's.
        """
        check_not_forked()
        if support is not None:
            check_is_clients("support", support)
        if support is not None and (client is not None or support.num_clients != 1):
            support = _of_clients(support, [client])
        in_store, kept = self._kept([] if client is None else [client])
        has_kept = bool(in_store.any()) and (support is None or not self._keeps_states_alone)
        phases = self.personalization(has_kept, start)
        if client is not None and support is None and phases:
            lacks = "trains its model first" if has_kept else "has kept no local variables"
            raise UserError(
                f"client {client!r} {lacks}; give support, its examples, or client=None for a "
                "model with initial local variables."
            )
        brings = has_kept and start != "rebuilt"
        return personalize(
            self.model,
            phases if support is not None else (),
            self.weights,
            support,
            kept={name: value[0] for name, value in kept.items()} if brings else None,
            batch_size=self.batch_size,
            seed=self.seed,
        )

    def predict(
        self,
        features: Mapping[str, npt.ArrayLike] | npt.ArrayLike | pd.DataFrame,
        *,
        client: str | None = None,
        support: ClientDataset | None = None,
        start: str = "kept",
    ) -> np.ndarray:
        """Predicts with a client's model.

        Args:
            features: Input name to (n, ...); other names are ignored. For a model with one input,
                an array. A table has a column of numbers for each input.
            client: The client's name; None for an unseen client.
            support: The examples that personalise the client's model; None to use its kept
                variables.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.

        Returns:
            The model's output, (n, ...); (n,) for one number per example. Without client and
            support the model is not personalised; a warning reports this once.

        Raises:
            UserError: If an input is missing, has another shape or dtype than the model's, or has a
                value out of range of its dtype or of the table in which it is looked up; or the
                client requires a support set and there is none, or the set is not the client's.
        """
        inputs = check_features(self.model, features)
        if client is None and support is None:
            _ = self._has_warned
        values = self.values(client, support=support, start=start)
        return self._output(values, {n: tf.constant(v) for n, v in inputs.items()}).numpy()

    @functools.cached_property
    def _has_warned(self) -> bool:
        """Whether the model is personal; the first access then warns that a prediction is not."""
        is_personal = bool(self.model.local_variables or self.personalization(False))
        if is_personal:
            logging.warning(
                "predict without client or support does not personalise: it uses the shared model "
                "with initial local variables. Give client=..., support=..., or both."
            )
        return is_personal

    @functools.cached_property
    def _output(self) -> Callable[[Mapping, Mapping], tf.Tensor]:
        model = make_predictor(self.model, self.finetuning)

        # Clients' values differ in shape: rows of tables, and stored examples.
        @tf.function(autograph=False, reduce_retracing=True)
        def output(values: Mapping, features: Mapping) -> tf.Tensor:
            return model.as_labels(model.predict(values, features, training=False)[0])

        return output

    def to_keras(
        self,
        client: str | None = None,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
    ) -> tf.keras.Model:
        """Returns a client's model as a Keras model with its weights.

        Args:
            client: The client's name; None for an unseen client.
            support: The examples that personalise the client's model; None to use its kept
                variables.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.
        """
        values = self.values(client, support=support, start=start)
        if has_memory(values):
            raise UserError(
                "the client also predicts with its nearest examples, which a Keras model cannot "
                "do: use predict, or leave client and support out, for the shared model."
            )
        return to_keras(self.model.personal, values)

    def export(
        self,
        folder: str | os.PathLike,
        client: str | None = None,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
    ) -> None:
        """Writes a client's model as a SavedModel, which TensorFlow loads without this library.

        Args:
            folder: The output folder. With a client's local variables, only its owner can read it.
            client: The client's name; None for an unseen client.
            support: The examples that personalise the client's model; None to use its kept
                variables.
            start: The use of kept local variables: `kept`, `rebuilt` or `updated`.
        """
        model = self.to_keras(client, support=support, start=start)
        is_open = client is None and support is None
        mask = os.umask(0o022)
        try:
            os.umask(mask if is_open else mask | 0o077)
            tf.saved_model.save(model, os.fspath(folder))
        finally:
            os.umask(mask)


def _of_clients(
    support: ClientDataset, client_ids: Sequence[str | None] | np.ndarray
) -> ClientDataset:
    """Returns the support sets of the clients with these names, in this order."""
    places = {name: place for place, name in enumerate(support.client_ids)}
    missing = [name for name in client_ids if name not in places]
    if missing and missing[0] is None:
        raise UserError(f"support has {support.num_clients} clients; choose one: client=...")
    if missing:
        raise UserError(
            f"support has no client {missing[0]!r}; its {support.num_clients} clients are "
            f"{', '.join(map(repr, support.client_ids[:3]))}..."
        )
    return support.subset([places[name] for name in client_ids])


def _join(parts: Sequence[ClientResults], order: np.ndarray) -> ClientResults:
    """Returns the results of several groups of clients as one, in another order."""

    def sums(stage: str) -> dict[str, np.ndarray]:
        columns = [getattr(part, stage) for part in parts]
        return {name: np.concatenate([c[name] for c in columns])[order] for name in columns[0]}

    return ClientResults(
        client_ids=np.concatenate([part.client_ids for part in parts])[order],
        num_examples=np.concatenate([part.num_examples for part in parts])[order],
        before=sums("before"),
        after=sums("after"),
        predictions=None,
        metrics=parts[0].metrics,
    )
