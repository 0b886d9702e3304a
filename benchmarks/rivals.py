"""Other implementations of FedRecon's round: TFF's `build_fed_recon`, JAX, Numba, a NumPy loop.

Each is a `side_by_side.Side`. All but TFF's train plain matrix factorization by SGD, with support
and query batches in turn.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.by_numpy import USER_START, Batches, Steps, train_client
from benchmarks.side_by_side import new_context
from fedpersonal.data.batches import pad_batches, touched_rows
from fedpersonal.data.clients import ClientDataset
from fedpersonal.optimizers import build_server_optimizer


class TffRounds:
    """TFF's `build_fed_recon` in TFF's runtime."""

    def __init__(
        self,
        build_keras_model: Callable[[], tf.keras.Model],
        local_layers: Sequence[str],
        train: ClientDataset,
        sample: Callable[[int], Iterable[int]],
        options: Any,
        loss: Callable[[], tf.keras.losses.Loss],
    ):
        """Builds the process.

        Args:
            build_keras_model: Builds the model with random initial weights.
            local_layers: Names of its local layers.
            train: The clients.
            sample: Maps a round number to the indices of its clients.
            options: FedRecon's options, with defaults.
            loss: The loss.
        """
        self._train, self._sample = train, sample
        self._batch_size = options.client_batch_size
        self._inputs = build_keras_model().input_names
        (example,) = self._datasets([0])
        sgd = tff.learning.optimizers.build_sgdm
        self._context = new_context("tff")
        self._process = tff.learning.algorithms.build_fed_recon(
            lambda: _split_model(build_keras_model(), local_layers, example.element_spec),
            loss_fn=loss,
            server_optimizer_fn=build_server_optimizer(
                options.server_optimizer,
                learning_rate=options.server_learning_rate,
                epsilon=options.server_epsilon,
            ),
            client_optimizer_fn=sgd(options.client_learning_rate),
            reconstruction_optimizer_fn=sgd(options.reconstruction_learning_rate),
            dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(
                recon_epochs=options.reconstruction_epochs,
                recon_steps_max=options.max_reconstruction_steps,
                post_recon_epochs=options.local_epochs,
                post_recon_steps_max=options.max_local_steps,
                split_dataset=True,
            ),
        )
        with self._installed():
            self._state = self._process.initialize()

    def start_from(self, weights: Sequence[np.ndarray]) -> None:
        """Sets the global variables."""
        start = tff.learning.models.ModelWeights(trainable=list(weights), non_trainable=[])
        with self._installed():
            self._state = self._process.set_model_weights(self._state, start)

    def prepare(self, round_number: int) -> list[tf.data.Dataset]:
        """Returns a round's clients."""
        return self._datasets(self._sample(round_number))

    def run(self, prepared: list[tf.data.Dataset]) -> None:
        """Runs a round."""
        with self._installed():
            self._state = self._process.next(self._state, prepared).state

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the global variables."""
        with self._installed():
            return self._process.get_model_weights(self._state).trainable

    def _datasets(self, indices: Iterable[int]) -> list[tf.data.Dataset]:
        datasets = []
        for features, labels in map(self._train.client, indices):
            x = {name: features[name] for name in sorted(self._inputs)}
            pairs = collections.OrderedDict(x=collections.OrderedDict(x), y=labels)
            datasets.append(tf.data.Dataset.from_tensor_slices(pairs).batch(self._batch_size))
        return datasets

    def _installed(self) -> Any:
        return tff.framework.get_context_stack().install(self._context)


def _split_model(
    keras_model: tf.keras.Model, local_layers: Sequence[str], input_spec: Any
) -> tff.learning.models.ReconstructionModel:
    layers = [layer for layer in keras_model.layers if layer.variables]
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        keras_model=keras_model,
        global_layers=[layer for layer in layers if layer.name not in local_layers],
        local_layers=[layer for layer in layers if layer.name in local_layers],
        input_spec=input_spec,
    )


class PaddedCohort(NamedTuple):
    """The clients of a round.

    Attributes:
        rows: int32 (C, R): the items that each client has rated, then 0.
        places: int32 (C, N, B): the position of an example's item among `rows`.
        ratings: float32 (C, N, B).
        mask: float32 (C, N, B): 1 for an example.
        num_batches: int32 (C,).
    """

    rows: np.ndarray
    places: np.ndarray
    ratings: np.ndarray
    mask: np.ndarray
    num_batches: np.ndarray


def pad_cohort(train: ClientDataset, indices: np.ndarray, *, batch_size: int) -> PaddedCohort:
    """Pads clients' ratings; every cohort of a data set has the same shapes."""
    most = int(train.counts.max())
    batches = pad_batches(train, indices, batch_size=batch_size)
    missing = -(-most // batch_size) - batches.mask.shape[1]

    def pad(array: np.ndarray) -> np.ndarray:
        return np.pad(array, ((0, 0), (0, missing), (0, 0)))

    mask = pad(batches.mask)
    rows, places = touched_rows(pad(batches.features["item"]), mask)
    return PaddedCohort(
        rows=np.pad(rows, ((0, 0), (0, most - rows.shape[1]))),
        places=places,
        ratings=pad(batches.labels),
        mask=mask,
        num_batches=mask.any(-1).sum(-1).astype(np.int32),
    )


class JaxRounds:
    """An implementation in JAX: `jit(vmap(scan))`, only on the rows that clients touch."""

    def __init__(self, cohort: Callable[[int], PaddedCohort], items: np.ndarray, steps: Steps):
        """Takes a function from round to clients, the items' vectors (items, K), the steps."""
        self.prepare = cohort
        self._items = jnp.asarray(items)
        self._next = jax.jit(lambda items, cohort: _jax_round(items, cohort, steps))

    def run(self, prepared: PaddedCohort) -> None:
        """Runs a round and waits for its end."""
        self._items = self._next(self._items, prepared).block_until_ready()

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the items' vectors."""
        return [np.asarray(self._items)]


def _jax_round(items: Any, cohort: PaddedCohort, steps: Steps) -> Any:
    """Returns the items' vectors after a round; the server adds the weighted mean change."""
    tables = items[cohort.rows]
    train = functools.partial(_jax_client, steps=steps)
    changes, weights = jax.vmap(train)(tables, *cohort[1:])
    weighted = (changes * weights[:, None, None]).reshape(-1, items.shape[1])
    total = jnp.zeros_like(items).at[cohort.rows.reshape(-1)].add(weighted)
    return items + total / weights.sum()


def _jax_client(
    table: Any, places: Any, ratings: Any, mask: Any, num_batches: Any, steps: Steps
) -> tuple[Any, Any]:
    """Returns the change of a client's rows (R, K), and its examples in the update."""
    num_support, num_query = (num_batches + 1) // 2, num_batches // 2
    most_support, most_query = (len(places) + 1) // 2, len(places) // 2

    def loss(user: Any, rows: Any, batch: Any) -> Any:
        errors = rows @ user - ratings[batch]
        return (mask[batch] * errors**2).sum() / jnp.maximum(mask[batch].sum(), 1)

    def rebuild(user: Any, step: Any) -> tuple[Any, None]:
        batch = 2 * (step % jnp.maximum(num_support, 1))
        active = step < steps.epochs * num_support
        slope = jax.grad(loss)(user, table[places[batch]], batch)
        return user - steps.rebuilding_rate * active * slope, None

    def update(table: Any, step: Any) -> tuple[Any, Any]:
        batch = 2 * step + 1
        active = step < num_query
        slope = jax.grad(loss, 1)(user, table[places[batch]], batch)
        moved = table.at[places[batch]].add(-steps.client_rate * active * slope)
        return moved, active * mask[batch].sum()

    user = jnp.full([table.shape[1]], USER_START)
    rebuilding = min(steps.max_rebuilding, steps.epochs * most_support)
    user, _ = jax.lax.scan(rebuild, user, jnp.arange(rebuilding))
    updates = min(steps.max_updates, most_query)
    after, examples = jax.lax.scan(update, table, jnp.arange(updates))
    return after - table, examples.sum()


class NumpyRounds:
    """A plain NumPy loop over clients and steps."""

    def __init__(self, cohort: Callable[[int], list[Batches]], items: np.ndarray, steps: Steps):
        """Takes a function from round to clients, the items' vectors (items, K), the steps."""
        self.prepare = cohort
        self._items, self._steps = items.copy(), steps

    def run(self, prepared: list[Batches]) -> None:
        """Runs a round."""
        total, weight = np.zeros_like(self._items), 0
        for batches in prepared:
            rows, change, examples = train_client(self._items, batches, self._steps)
            total[rows] += change * np.float32(examples)
            weight += examples
        self._items += total / np.float32(weight)

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the items' vectors."""
        return [self._items]


class NumbaRounds:
    """An implementation in Numba: single-threaded loops, as a practical limit.

    `make benchmark` installs Numba; the library does not use it.
    """

    def __init__(
        self, train: ClientDataset, sample: Callable[[int], np.ndarray], items: np.ndarray, *, steps
    ):
        """Takes the data, a sampler of clients, the items' vectors (items, K) and the steps."""
        import numba

        self._train, self._sample = train, sample
        self._items, self._steps = items.copy(), steps
        self._round = numba.njit(fastmath=True)(_numba_round)

    def prepare(self, round_number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the items and the ratings of a round's clients, and the clients' offsets."""
        cohort = self._train.subset(self._sample(round_number))
        return cohort.features["item"], cohort.labels, cohort.offsets

    def run(self, prepared: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Runs a round."""
        self._items += self._round(self._items, *prepared, *self._steps)

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the items' vectors."""
        return [self._items]


def _numba_round(
    items, rated, ratings, offsets, batch_size, rebuilding_rate, client_rate, epochs,
    max_rebuilding, max_updates,
):  # fmt: skip
    """Returns the weighted mean of the clients' changes."""
    total, weight, size = np.zeros_like(items), 0, items.shape[1]
    places = np.full(len(items), -1, np.int32)
    user, slope = np.empty(size, np.float32), np.empty(size, np.float32)
    errors, rows = np.empty(batch_size, np.float32), np.empty(len(items), np.int32)
    for client in range(len(offsets) - 1):
        start, end = offsets[client], offsets[client + 1]
        num_batches = -(-(end - start) // batch_size)
        num_support, num_rows, examples = (num_batches + 1) // 2, 0, 0
        user[:] = USER_START
        for step in range(min(epochs * num_support, max_rebuilding)):
            first = start + 2 * (step % num_support) * batch_size
            last = min(first + batch_size, end)
            slope[:] = 0
            for place in range(first, last):
                vector, error = items[rated[place]], -ratings[place]
                for k in range(size):
                    error += vector[k] * user[k]
                for k in range(size):
                    slope[k] += 2 * error * vector[k]
            rate = np.float32(rebuilding_rate / (last - first))
            for k in range(size):
                user[k] -= rate * slope[k]
        table = np.empty((end - start, size), np.float32)
        for step in range(min(num_batches // 2, max_updates)):
            first = start + (2 * step + 1) * batch_size
            last = min(first + batch_size, end)
            examples += last - first
            for place in range(first, last):
                item = rated[place]
                if places[item] < 0:
                    places[item], rows[num_rows] = num_rows, item
                    table[num_rows] = items[item]
                    num_rows += 1
                vector, error = table[places[item]], -ratings[place]
                for k in range(size):
                    error += vector[k] * user[k]
                errors[place - first] = error
            rate = np.float32(2 * client_rate / (last - first))
            for place in range(first, last):
                vector = table[places[rated[place]]]
                for k in range(size):
                    vector[k] -= rate * errors[place - first] * user[k]
        for row in range(num_rows):
            for k in range(size):
                total[rows[row], k] += examples * (table[row, k] - items[rows[row], k])
            places[rows[row]] = -1
        weight += examples
    return total / np.float32(weight)
