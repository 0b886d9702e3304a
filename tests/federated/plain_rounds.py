"""Rounds and evaluations as plain Keras and NumPy compute them; and TFF's own FedRecon.

The plain round of a client is the audit's; sums, means, bounds and metrics are computed here.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import zlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from round_models import BATCH_SIZE, COUNTS, DATA, MODELS, RATINGS

from fedpersonal import tff
from fedpersonal.audit.plain_model import Client
from fedpersonal.audit.reference import Reference
from fedpersonal.data.clients import ClientDataset
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import GradientPhase, NeighboursPhase
from fedpersonal.model.names import CLUSTER_SHARES, MIXING, SERVER_STATE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.runtime.context import make_stock_context
from fedpersonal.tff.optimizers import build_sgdm

NUM_CLIENTS = 8  # That may take part, as processes are told.
SERVER = build_sgdm(0.9)


class Case(NamedTuple):
    """A model, what its clients do, and how it is computed."""

    model: str
    algorithm: Algorithm
    packing: str = "stacked"
    clients_per_shard: int = 2
    batch_size: int = BATCH_SIZE
    server: Any = SERVER
    aggregator: Any = None
    privacy: DifferentialPrivacy | None = None
    data: ClientDataset | None = None
    sizes: tuple[int, ...] = (3, 0, 1, 6)
    when: str = "never"

    @property
    def shuffle(self):
        """What draws the orders of examples."""
        return self.algorithm.shuffle(self.when, batch_size=self.batch_size, seed=5)

    @property
    def of_plain(self):
        """The case but for how clients are packed."""
        return self._replace(packing="stacked", clients_per_shard=1)

    @property
    def clients(self):
        """The clients' examples."""
        return self.data or DATA.get(self.model, RATINGS)

    def cohorts(self):
        """Draws cohorts of these sizes, several, none, one, all; clients come back."""
        seed = zlib.crc32(f"{self.model} {self.algorithm.name}".encode())
        random = np.random.default_rng(seed)
        return [random.permutation(len(COUNTS))[:size] for size in self.sizes]


@functools.cache
def model_of(name):
    build, options = MODELS[name]
    return PartitionedModel(build, **options)


def prepared(case):
    return case.algorithm.prepare(model_of(case.model))


class Round(NamedTuple):
    """What comes of a round."""

    weights: dict[str, np.ndarray]
    metrics: dict[str, Any]
    kept: dict[int, dict[str, np.ndarray]]


@functools.cache
def plain_rounds(case):
    """Computes the same rounds plainly; `case` is `Case.of_plain`."""
    model, dataset = prepared(case), case.clients
    reference = Reference(
        model, case.algorithm, batch_size=case.batch_size, seed=5, shuffle=case.shuffle
    )
    weights = {k: np.asarray(v) for k, v in model.initial_global_values(seed=5).items()}
    bookkeeping = {*model.server_states, CLUSTER_SHARES}
    moving = [name for name in weights if name not in bookkeeping]
    mean_of = _mean_of(case, model, {name: weights[name] for name in moving})
    optimizer_state = case.server.initialize(
        collections.OrderedDict(
            (k, tf.TensorSpec(weights[k].shape, weights[k].dtype)) for k in moving
        )
    )
    copied = model.copies.values() if case.algorithm.server_has_memory else ()
    memory = {name: np.zeros_like(weights[name]) for name in copied}
    kept, found = {}, []
    for number, indices in enumerate(case.cohorts()):
        weights, sent = dict(weights), []
        states, sums = collections.Counter(), collections.Counter()
        for index in map(int, indices):
            client = client_of(model, dataset, index)
            local = kept.get(index) if case.algorithm.keeps else None
            if local is None:
                local = reference.fresh_local_values(client, number)
            expected = reference.run(weights, local, client, number)
            kept[index] = expected.kept
            if len(client.labels):
                sent.append((expected.updates, expected.weight))
                for name, value in expected.states.items():
                    share = expected.weight if name == CLUSTER_SHARES else 1 / NUM_CLIENTS
                    states[name] = states[name] + share * value
            for name, value in expected.sums.items():
                sums[name] = sums[name] + value
        mean, measured = mean_of(sent)
        for name, change in states.items() if case.privacy is None else ():
            if name in model.server_states:
                weights[name] = np.float32(weights[name] + change)
        if case.algorithm.server_has_memory and case.privacy is None:
            moved = {name: states[f"{SERVER_STATE}/{name}"] for name in memory if sent}
            memory.update((name, memory[name] - value) for name, value in moved.items())
        is_reported = any(weight for _, weight in sent) or case.privacy is not None
        # A server that nobody reports to stays where it is; so it does without a mean.
        if is_reported and all(np.isfinite(value).all() for value in mean.values()):
            steps = {name: mean[name] + memory.get(name, 0.0) for name in moving}
            if CLUSTER_SHARES in states:
                shares = states[CLUSTER_SHARES] / states[CLUSTER_SHARES].sum()
                weights[CLUSTER_SHARES] = np.float32(shares)
                for name in model.clustered - model.server_rows_per_client:
                    steps[name] = mean[name] / np.where(shares, shares, np.inf)
            tensors = [
                collections.OrderedDict((k, tf.constant(values[k], tf.float32)) for k in moving)
                for values in (weights, steps)
            ]
            optimizer_state, moved = case.server.next(optimizer_state, *tensors)
            for variable in model.global_variables:
                name, constraint = variable.name, variable.constraint
                if constraint and (np.asarray(moved[name]) != weights[name]).any():
                    moved[name] = constraint(moved[name])
            weights = {k: np.asarray(moved.get(k, value)) for k, value in weights.items()}
        metrics = {**_finalized(model, sums), **measured}
        found.append(Round(weights, metrics, dict(kept) if case.algorithm.keeps else {}))
    return found


def client_of(model, dataset, index):
    features, labels = dataset.client(index)
    specs = model.input_spec.items()
    columns = {name: features[name].astype(spec.dtype.as_numpy_dtype) for name, spec in specs}
    labels = labels.astype(model.label_spec.dtype.as_numpy_dtype)
    return Client(columns, labels, str(dataset.client_ids[index]))


def _finalized(model, sums):
    if not sums:
        sums = {"loss": np.zeros(2), "num_examples": 0.0, "num_dropped_updates": 0.0}
        sums.update({metric.name: np.zeros(2) for metric in model.metrics})
    metrics = dict(sums)
    for name, finalize in {"loss": float, **{m.name: m.finalize for m in model.metrics}}.items():
        total, weight = sums[name]
        metrics[name] = np.asarray(finalize(total / weight)) if weight else np.nan
    return {**metrics, f"num_{model.unit}": sums["loss"][1]}


def _mean_of(case, model, weights):
    """Returns what makes the mean of clients' updates and weights, and what it measures."""
    if case.privacy is not None:
        return _clipped_mean(case.privacy, weights)
    if case.aggregator is not None:
        return _tffs_mean(case.aggregator(), model, weights)

    def mean_of(sent):
        total = sum(weight for _, weight in sent)
        mean = {}
        for name in weights:
            share = [
                1.0 if name in model.server_rows_per_client else weight / (total or 1.0)
                for _, weight in sent
            ]
            mean[name] = sum(s * own[name] for s, (own, _) in zip(share, sent))
            mean[name] = np.float32(mean[name] + np.zeros_like(weights[name]))
        return mean, {}

    return mean_of


def _clipped_mean(privacy, weights):
    bound = np.float32(privacy.clip_norm)

    def mean_of(sent):
        nonlocal bound
        norms = [np.sqrt(sum(np.square(u).sum() for u in own.values())) for own, _ in sent]
        mean = {}
        for name, value in weights.items():
            parts = [
                own[name] * min(1.0, bound / max(norm, 1e-30))
                for (own, _), norm in zip(sent, norms)
            ]
            mean[name] = np.float32((sum(parts) + np.zeros_like(value)) / privacy.expected_clients)
        if privacy.clipping == "fixed":
            return mean, {}
        measured = {"clip_norm": bound}
        excess = sum(0.5 if norm <= bound else -0.5 for norm in norms)
        within = np.clip(excess / privacy.expected_clients + 0.5, 0.0, 1.0)
        bound = np.float32(bound * np.exp(-0.2 * (within - 0.5)))
        return mean, measured

    return mean_of


def _tffs_mean(factory, model, weights):
    """Lets TFF itself aggregate the plain updates; rows of owned tables are summed beside it."""
    import tensorflow_federated as tffs

    shared = {k: v for k, v in weights.items() if k not in model.server_rows_per_client}
    value_type = tff.to_type(
        collections.OrderedDict((k, (np.float32, v.shape)) for k, v in shared.items())
    )
    if isinstance(factory, tffs.aggregators.UnweightedAggregationFactory):
        factory = tffs.aggregators.as_weighted_aggregator(factory)
    process = factory.create(value_type, tff.TensorType(np.float32))
    state = process.initialize()

    def mean_of(sent):
        nonlocal state
        updates = [
            collections.OrderedDict((k, np.float32(own[k])) for k in shared) for own, _ in sent
        ]
        output = process.next(state, updates, [np.float32(weight) for _, weight in sent])
        state = output.state
        mean = dict(output.result)
        for name in model.server_rows_per_client:
            total = sum(own[name] for own, _ in sent)
            mean[name] = np.float32(total + np.zeros_like(weights[name]))
        return {name: mean[name] for name in weights}, {}

    return mean_of


def tffs_rounds(case):
    """Lets TFF's own FedRecon compute the rounds of a case, in cohorts of at least one client."""
    import tensorflow_federated as tffs

    model = prepared(case)
    local = {v.layer for v in model.local_variables}
    spec = collections.OrderedDict(
        x=collections.OrderedDict(sorted(model.input_spec.items())), y=model.label_spec
    )

    def model_fn():
        keras_model = MODELS[case.model][0]()
        layers = [layer for layer in keras_model.layers if layer.variables]
        return tffs.learning.models.ReconstructionModel.from_keras_model_and_layers(
            keras_model=keras_model,
            global_layers=[layer for layer in layers if layer.name not in local],
            local_layers=[layer for layer in layers if layer.name in local],
            input_spec=spec,
        )

    class Theirs(tffs.learning.optimizers.Optimizer):
        """One of ours, which takes the same steps, as TFF wants it."""

        def __init__(self, own):
            self.initialize, self.next = own.initialize, own.next

        initialize = next = None  # Else the class would be abstract.

    rebuild, update = case.algorithm.phases
    loss = tf.keras.losses.SparseCategoricalCrossentropy if case.model == "classes" else None
    process = tffs.learning.algorithms.build_fed_recon(
        model_fn,
        loss_fn=loss or tf.keras.losses.MeanSquaredError,
        server_optimizer_fn=Theirs(case.server),
        client_optimizer_fn=Theirs(update.optimizer),
        reconstruction_optimizer_fn=Theirs(rebuild.optimizer),
        dataset_split_fn=tffs.learning.models.ReconstructionModel.build_dataset_split_fn(
            recon_epochs=rebuild.epochs,
            recon_steps_max=rebuild.max_steps,
            post_recon_epochs=update.epochs,
            post_recon_steps_max=update.max_steps,
            split_dataset=update.data == "query",
        ),
    )
    names = [v.name for v in model.global_variables]
    start = model.initial_global_values(seed=5)
    stock = make_stock_context()  # It alone takes data sets.
    with tff.get_context_stack().install(stock):
        state = process.initialize()
    weights = tffs.learning.models.ModelWeights([start[name] for name in names], [])
    state = process.set_model_weights(state, weights)
    for indices in case.cohorts():
        clients = [client_of(model, case.clients, index) for index in indices]
        datasets = [
            tf.data.Dataset.from_tensor_slices(
                collections.OrderedDict(x=collections.OrderedDict(sorted(x.items())), y=y)
            ).batch(case.batch_size)
            for x, y, _ in clients
        ]
        with tff.get_context_stack().install(stock):
            state = process.next(state, datasets).state
        yield dict(zip(names, process.get_model_weights(state).trainable))


class PlainEvaluation:
    """What phases make of one client after another, and what each then predicts."""

    def __init__(self, model, phases, *, batch_size, seed):
        """Takes the phases, which run on a whole support set."""
        still = GradientPhase("global", "all", SERVER, epochs=0)
        self._neighbours = self._memory = None
        if phases and isinstance(phases[-1], NeighboursPhase):
            *phases, self._neighbours = phases
        phases = (*(dataclasses.replace(phase, data="all") for phase in phases), still)
        algorithm = Algorithm("evaluated", phases, "rebuilt")
        self._model = model
        self._reference = Reference(model, algorithm, batch_size=batch_size, seed=seed)

    def values_of(self, weights, local, support):
        """Returns the variables after the phases; `local` are None for fresh ones."""
        if local is None:
            local = self._reference.fresh_local_values(support, -1)
        self._reference.run(weights, local, support, -1)
        variables = self._reference._variables
        if self._neighbours:
            self._memory = self._head_inputs(support), np.ravel(support.labels)
        return {v.name: variables[v.name].numpy() for v in self._model.variables}

    def predict(self, query):
        """Predicts with what the phases have made; returns outputs, and sums by metric."""
        model, variables = self._model, self._reference._variables
        alpha = variables[MIXING].numpy() if MIXING in variables else 1.0
        for name, source in model.copies.items():
            mixed = alpha * variables[name] + (1.0 - alpha) * variables[source]
            variables[source].assign(mixed)
        keras_model, labels = self._reference._keras, tf.constant(query.labels)
        predictions = model.as_labels(tf.constant(self._reference.predict(query)))
        weights = model.example_weights(labels)
        if self._memory:
            mixed = mix_with_neighbours(
                self._neighbours, *self._memory, self._head_inputs(query), predictions.numpy(),
                is_binary=model.label_spec.dtype.is_floating,
                has_logits=keras_model.layers[-1].activation is tf.keras.activations.linear,
            )  # fmt: skip
            predictions = tf.constant(mixed, tf.float32)
        losses = model.example_losses(labels, predictions)
        for added in keras_model.losses:
            losses += weights * added
        pairs = {"loss": (losses, weights)}
        for metric in model.metrics:
            own = weights if metric.example_weight is None else metric.example_weight(labels)
            pairs[metric.name] = metric.example_value(labels, predictions), own
        return predictions.numpy(), {
            name: np.array([np.sum(part) for part in pair]) for name, pair in pairs.items()
        }

    def _head_inputs(self, client):
        """Returns what the head is called with, by a Keras model that ends there."""
        keras_model = self._reference._keras
        cut = tf.keras.Model(
            keras_model.input, keras_model.get_layer(self._neighbours.head[0]).input
        )
        columns = {name: tf.constant(column) for name, column in client.features.items()}
        return cut(self._model.arrange(columns), training=False).numpy()


def mix_with_neighbours(phase, known, labels, asked, output, *, is_binary=False, has_logits=True):
    """Mixes a model's output with what nearest examples make likely, in NumPy, one after another.

    Labels of sequences, whose 0 is padding, and of classes alike: (batch,) or (batch * places,).
    """
    known = known.reshape(len(labels), -1).astype(np.float64)
    is_sequence = asked.ndim == 3
    if is_sequence:
        known, labels = known[labels != 0], labels[labels != 0]
    size, says = known.shape[1], np.float64(output)
    says = np.stack([0 * says, says], -1) if is_binary else says
    if has_logits:
        says = np.exp(says - says.max(-1, keepdims=True))
        says /= says.sum(-1, keepdims=True)
    mixed = says.reshape(-1, says.shape[-1]).copy()
    for row, one in zip(mixed, asked.reshape(-1, size)):
        distances = np.square(known - one).mean(1)
        nearest = np.argsort(distances, kind="stable")[: phase.neighbours]
        votes = np.exp(-distances[nearest] / phase.scale)
        row *= 1 - phase.weight
        np.add.at(row, labels[nearest].astype(int), phase.weight * votes / votes.sum())
    mixed = np.log(mixed) if has_logits else mixed
    return mixed[:, 1] - mixed[:, 0] if is_binary else mixed.reshape(output.shape)
