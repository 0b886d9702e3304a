"""A trained model: evaluated, asked, handed on to Keras."""

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

from fedpersonal.client.neighbours import predicting, remembers
from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import split_support_query
from fedpersonal.errors import UserError, listed
from fedpersonal.evaluation.evaluate import Evaluator, Kept
from fedpersonal.evaluation.guess import GUESS
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

# Clients in a shard, where a program evaluates them.
EVALUATED_TOGETHER = 100


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel(Evaluator):
    """A model after its rounds, and what clients keep.

    A client that has kept local variables predicts with them, unless asked to rebuild them or to
    bring them up to date first. Any other rebuilds its own from a support set. Either then
    fine-tunes its copy of the model, where there are phases for that.

    Attributes:
        model: The partitioned model, with the personal copies that the algorithm asks for.
        rebuilding: What rebuilds local variables where a client has kept none.
        finetuning: What trains a client's copy before it predicts, from its support set.
        batch_size: Examples of a client's batch.
        packing: How clients are packed to be evaluated: `stacked` or `pooled`, see `Execution`.
        together: How many clients a shard holds then; 0 for all.
        seed: Seed of local variables' initial values.
        algorithm: What clients did in a round.
        weights: Global variable's name to value.
        kept_by: Maps clients' names to what they have kept; None where clients keep nothing.
        round_number: The round whose model it is; 0 before the first.
        snapshot: What clients had kept in that round, where it is not the run's last one.
        loop: The rounds' times; None between rounds.
        folder: That of its run; None between rounds, and where it is removed at the end.
        resources: What `close` gives back.

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
        """Lets other processes have the store of what clients keep."""
        self.resources.close()

    def results(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
        guess: Mapping[str, npt.ArrayLike] | None = None,
    ) -> ClientResults:
        """Evaluates clients, each before and after its model is personalised.

        Args:
            clients: What is predicted.
            support: What clients' models are personalised on, by the same names; None: every
                second batch of `clients`, which is then not predicted. Clients that predict with
                what they have kept, and do not fine-tune, need none, and predict all.
            start: What clients do with local variables that they have kept: predict with them
                (`kept`), rebuild them from the support set (`rebuilt`), or bring them up to date by
                the same steps (`updated`), for which a `RidgePhase` rebuilds. A client that has
                kept nothing rebuilds its own in any case.
            guess: As of `evaluate`; a notebook shows it beside the results.

        Returns:
            Sums over each client's examples, in the order of `clients`, without predictions.

        Raises:
            UserError: As of `evaluate`.
        """
        check_is_clients("clients", clients)
        told = self._guess(guess or {}, clients)
        results = self._results(clients, support, self._has_kept(clients.client_ids), start)
        return dataclasses.replace(results, guess=told)

    def _guess(
        self, guess: Mapping[str, npt.ArrayLike], clients: ClientDataset
    ) -> dict[str, np.ndarray]:
        """Returns each client's values by a guess, once they are known to be of metrics."""
        names = ["loss", *(metric.name for metric in self.model.metrics)]
        unknown = [name for name in guess if name not in names]
        if unknown:
            raise UserError(
                f"guess has {unknown[0]!r}, which is no metric of the model: {listed(names)}."
            )
        return {
            name: check_column(f"guess[{name!r}]", values, clients.num_clients)
            for name, values in guess.items()
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
            some = np.flatnonzero(has_kept == is_kept)
            if len(some):
                places.append(some)
                parts.append(self._evaluate(clients.subset(some), support, is_kept, start))
        if not sum(part.num_examples.sum() for part in parts):
            raise UserError(
                "nobody has anything to predict: each client has too few examples for a query set."
                f" Give support, or a batch_size below {self.batch_size}."
            )
        return _join(parts, np.argsort(np.concatenate(places)))

    def evaluate(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
        guess: Mapping[str, npt.ArrayLike] | None = None,
    ) -> pd.DataFrame:
        """Evaluates clients, and says of each what came of it.

        Args:
            clients: What is predicted.
            support: What clients' models are personalised on, by the same names; None: every
                second batch of `clients`, which is then not predicted.
            start: Local variables that clients have kept are `kept`, `rebuilt` or `updated`.
            guess: What the model must beat: metric's name to (num_clients,) values, in the order of
                `clients`, of a guess that trains no model, on the same examples. A report judges
                by it: initial local variables alone are nothing to compare with.

        Returns:
            A row a client: its name `client`; `num_examples`, which it predicts; `has_kept`,
            whether it has kept local variables, other than states, from a round; and the loss and
            each metric before and after personalisation: `loss_before`, `loss_after`... Before,
            local variables are initial ones. NaN where a client has nothing to predict. With
            `guess` also its values, such as `rmse_guess`. `round` is the model's, so that a
            `per_client.csv` of another one is not taken for the run's.

        Raises:
            UserError: If a client is not in the support set, nobody has anything to predict,
                `start` is none of these, or `guess` has another metric, or not a number a client.
        """
        check_is_clients("clients", clients)
        told = {n + GUESS: v for n, v in self._guess(guess or {}, clients).items()}
        has_kept = self._has_kept(clients.client_ids)
        results = self._results(clients, support, has_kept, start)
        table = pd.DataFrame({**results.per_client(), **told})
        table.insert(2, "has_kept", has_kept)
        table[ROUND] = self.round_number
        return table

    def test(
        self,
        clients: ClientDataset,
        *,
        support: ClientDataset | None = None,
        start: str = "kept",
        guess: Mapping[str, npt.ArrayLike] | None = None,
        folder: str | os.PathLike | None = None,
    ) -> ClientResults:
        """Tests clients, and writes to the folder of the run what commands do.

        These are `per_client.csv`, `summary.json` and the page, by which `compare` takes the run.

        Args:
            clients: What is predicted.
            support: What clients' models are personalised on, by the same names; None: every
                second batch of `clients`, which is then not predicted.
            start: Local variables that clients have kept are `kept`, `rebuilt` or `updated`.
            guess: What the model must beat, as of `evaluate`.
            folder: The folder that `fit` was given; None: this model knows it.

        Returns:
            What `results` returns.

        Raises:
            UserError: As of `evaluate`, or the folder is not that of this model's run.
            TrainingError: If the loss is not finite.

        Examples:
            With all names of `Trainer`'s example:

            >>> with trainer.fit(rounds=2, folder="runs/tested", progress=False) as trained:
            ...     results = trained.test(clients)
            >>> summary = fp.load_run("runs/tested").summary
            >>> summary["test"]["loss"] == results.overall()["loss"]
            True
        """
        from fedpersonal.runs.tested import TestReport, hash_labels, report_program

        path = self._folder(folder)
        results = self.results(clients, support=support, start=start, guess=guess)
        # Without support sets, batches say what is predicted.
        how = {} if support is not None else {"batch_size": self.batch_size}
        about = {"test_labels": hash_labels(clients, **how)}
        report_program(path, self, TestReport(results, description=about), results.guess)
        return results

    def report(self, *, show_clients: bool = False) -> pathlib.Path:
        """Writes the page of the run, `report.html`, anew, and returns where it is.

        Args:
            show_clients: Whether the page has clients' names; else it is made to be shared.

        Raises:
            UserError: If the run has no folder.
        """
        from fedpersonal.report.page import write_report

        return write_report(self._folder(None), show_clients=show_clients)

    def _folder(self, given: str | os.PathLike | None) -> str | os.PathLike:
        folder = self.folder if given is None else given
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
        """Returns the loss and each metric over all examples of all clients, personalised.

        Left out is a metric in which no client counts.

        Args:
            clients: What is predicted.
            support: What clients' models are personalised on, by the same names; None: every
                second batch of `clients`, which is then not predicted.
            start: Local variables that clients have kept are `kept`, `rebuilt` or `updated`.
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
        """Whether clients build anew all that they predict with, such as FedEM's weights."""
        return all(v.is_state for v in self.model.local_variables)

    def _has_kept(self, client_ids: np.ndarray) -> np.ndarray:
        if self._keeps_states_alone:
            return np.zeros(len(client_ids), bool)
        return np.concatenate([known for known, _ in kept_in_parts(self._kept, client_ids)])

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

        After a `NeighboursPhase` there is also what the client remembers, as `memory/...`.

        Args:
            client: Its name; None for a client that nobody has seen.
            support: Examples from which it personalises its model: of one client, or of several
                among which it is. None for a client that uses what it has kept; with client=None,
                for a model with initial local variables.
            start: Local variables that it has kept are `kept`, `rebuilt` or `updated`.

        Raises:
            UserError: If it needs a support set and there is none, or the set is not the client's.
        """
        check_not_forked()
        if support is not None:
            check_is_clients("support", support)
        if support is not None and (client is not None or support.num_clients != 1):
            support = _of_clients(support, [client])
        known, kept = self._kept([] if client is None else [client])
        has_kept = bool(known.any()) and (support is None or not self._keeps_states_alone)
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
            features: Input name to (n, ...); other names are ignored. An array alone is the input
                of a model with one, and a table has a column of numbers for each input.
            client: Its name; None for a client that nobody has seen.
            support: Examples from which it personalises its model; None for what it has kept.
            start: Local variables that it has kept are `kept`, `rebuilt` or `updated`.

        Returns:
            The model's output, (n, ...); (n,) of one number an example. Without client and support
            the model is not personalised, as a warning says once.

        Raises:
            UserError: If an input is missing, or has another shape or dtype than the model's, or a
                value that its dtype or a table that it looks up does not have; or the client needs
                a support set and there is none, or the set is not the client's.
        """
        given = check_features(self.model, features)
        if client is None and support is None:
            _ = self._has_warned
        values = self.values(client, support=support, start=start)
        return self._output(values, {n: tf.constant(v) for n, v in given.items()}).numpy()

    @functools.cached_property
    def _has_warned(self) -> bool:
        """Whether a warning, given at first access, says that a prediction is not personalised."""
        is_personal = bool(self.model.local_variables or self.personalization(False))
        if is_personal:
            logging.warning(
                "predict without client or support does not personalise: it uses the shared model "
                "with initial local variables. Give client=..., support=..., or both."
            )
        return is_personal

    @functools.cached_property
    def _output(self) -> Callable[[Mapping, Mapping], tf.Tensor]:
        model = predicting(self.model, self.finetuning)

        # Clients' values differ in shape: in rows of a table, and in what they remember.
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
            client: Its name; None for a client that nobody has seen.
            support: Examples from which it personalises its model; None for what it has kept.
            start: Local variables that it has kept are `kept`, `rebuilt` or `updated`.
        """
        values = self.values(client, support=support, start=start)
        if remembers(values):
            raise UserError(
                "the client predicts by its nearest examples, too, for which a Keras model has no "
                "place: use predict, or leave client and support out, for the shared model."
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
            folder: Where to. With a client's local variables, its owner alone may read it.
            client: Its name; None for a client that nobody has seen.
            support: Examples from which it personalises its model; None for what it has kept.
            start: Local variables that it has kept are `kept`, `rebuilt` or `updated`.
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
    """Returns the support sets of some clients, in their order."""
    places = {name: place for place, name in enumerate(support.client_ids)}
    missing = [name for name in client_ids if name not in places]
    if missing and missing[0] is None:
        raise UserError(f"support has {support.num_clients} clients; say which one: client=...")
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
