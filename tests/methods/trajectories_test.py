"""Rounds of methods with states are those of their papers in NumPy, whoever reports.

Clients drop out, lose updates or are sampled by chance; updates are bounded, clipped, zeroed,
quantised or private. Nothing but weights may be bent by that: control variates, remembered sums and
shares of clusters are exact, over the clients whose updates count.
"""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.data.clients import ClientDataset
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_dyn import fed_dyn
from fedpersonal.methods.fed_em import fed_em
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.scaffold import scaffold
from fedpersonal.model.names import CLUSTER, CLUSTER_SHARES, COPY, SERVER_STATE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.participation import Participation
from fedpersonal.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("not_compiled")

DIM, CLASSES, ROUNDS, RATE, ALPHA, BOUND = 3, 2, 6, 0.5, 0.7, 0.15
STATE_BOUND = 0.2  # Of what a client of SCAFFOLD sends of its state, where that is private.
SIZES = [7, 4, 10, 1, 6]
ENDS = np.append(0, np.cumsum(SIZES))
RANDOM = np.random.default_rng(3)
INPUTS = RANDOM.normal(size=[ENDS[-1], DIM]).astype(np.float32)
TRUTH = np.repeat(RANDOM.normal(size=[len(SIZES), DIM, CLASSES]), SIZES, axis=0)
LABELS = np.einsum("nd,ndk->nk", INPUTS, TRUTH).argmax(1).astype(np.int32)
DATA = ClientDataset([f"c{i}" for i in range(len(SIZES))], ENDS, {"x": INPUTS}, LABELS)
KERNEL = "d/kernel"
WORK = {"client_optimizer": build_sgdm(RATE), "local_epochs": 2}
METHODS = {
    "scaffold": scaffold,
    "fed_dyn": functools.partial(fed_dyn, feddyn_alpha=ALPHA),
    "ifca": ifca,
    "fed_em": fed_em,
}


def factory(make):
    return lambda: make(pytest.importorskip("tensorflow_federated"))


FACTORIES = {
    "clipping": factory(
        lambda t: t.aggregators.clipping_factory(BOUND, t.aggregators.SumFactory())
    ),
    "zeroing": factory(lambda t: t.aggregators.zeroing_factory(0.6, t.aggregators.MeanFactory())),
    "robust": factory(lambda t: t.learning.robust_aggregator()),
    "quantising": factory(
        lambda t: t.aggregators.MeanFactory(
            t.aggregators.EncodedSumFactory.quantize_above_threshold(4, threshold=1)
        )
    ),
}
POISSON = {"client_sampling": "poisson", "clients_per_round": 2}
LOST = {"participation": Participation(dropout_rate=0.3, lost_update_rate=0.5)}
DROPPED = {"participation": Participation(dropout_rate=0.6)}
CONDITIONS = {
    "drop-outs": (DROPPED, {}),
    "losses, bounded": (LOST, {"max_update_norm": BOUND}),
    "poisson, bounded, uniform": (POISSON, {"max_update_norm": BOUND, "weighting": "uniform"}),
    "losses, uniform": (LOST, {"weighting": "uniform"}),
    "losses, private": (LOST, {"weighting": "uniform"}),
    "losses, clipped states, private": (LOST, {"weighting": "uniform"}),
    "drop-outs, clipping": (DROPPED, {"weighting": "uniform"}),
    "poisson, zeroing": (POISSON, {}),
    "losses, robust": (LOST, {}),
}
QUANTISED = {"drop-outs, quantising": (DROPPED, {"weighting": "uniform"})}
# FedEM's server has no state; what TFF's own aggregators do takes long to build.
LEFT_OUT = {("fed_em", c) for c in [*CONDITIONS][2:] if "clipping" not in c}
LEFT_OUT |= {("fed_dyn", "losses, robust"), ("ifca", "losses, private")}
LEFT_OUT |= {(m, "losses, clipped states, private") for m in METHODS if m != "scaffold"}
ROWS = [(m, c) for m in METHODS for c in CONDITIONS if (m, c) not in LEFT_OUT]


def build_model():
    x = tf.keras.Input([DIM], name="x")
    return tf.keras.Model({"x": x}, tf.keras.layers.Dense(CLASSES, use_bias=False, name="d")(x))


def likely(kernel, inputs):
    odds = np.exp(inputs @ kernel)
    return odds / odds.sum(1, keepdims=True)


def slope(kernel, inputs, labels, counts=1.0):
    """The gradient of the cross-entropy, of the mean over examples, each times its count."""
    errors = likely(kernel, inputs) - np.eye(CLASSES)[labels]
    return inputs.T @ (errors * np.reshape(counts, [-1, 1])) / len(labels)


class InNumpy:
    """A server and clients of a method, in float64."""

    def __init__(self, name, kernel, mean_of, *, weighting, private, state_bound=np.inf):
        self.state_bound = state_bound
        self.name, self.kernel, self.mean_of = name, kernel, mean_of
        self.uniform, self.private = weighting == "uniform", private
        zeros = np.zeros_like(kernel)
        self.c, self.own = zeros, [zeros] * len(SIZES)
        self.shares, self.choice = np.full(2, 0.5), np.full([len(SIZES), 2], 0.5)

    def steps(self, client):
        inputs, labels = (a[ENDS[client] : ENDS[client + 1]] for a in (INPUTS, LABELS))
        return [(np.float64(inputs), labels)] * 2

    def train(self, client):
        """Returns what a client makes of the weights, and keeps its state."""
        kernel, own, sent, steps = self.kernel, self.own[client], self.kernel, self.steps(client)
        if self.name == "scaffold":
            for batch in steps:
                kernel = kernel - RATE * (slope(kernel, *batch) - own + self.c)
            self.own[client] = own - self.c + (sent - kernel) / (len(steps) * RATE)
        elif self.name == "fed_dyn":
            for batch in steps:
                kernel = kernel - RATE * (slope(kernel, *batch) - own + ALPHA * (kernel - sent))
            self.own[client] = own - ALPHA * (kernel - sent)
        else:
            inputs, labels = steps[0]
            kernel, rows = kernel.copy(), np.arange(len(labels))
            of_label = [likely(kernel[..., k], inputs)[rows, labels] for k in range(2)]
            if self.name == "ifca":
                best = np.argmin([-np.log(p).sum() for p in of_label])
                self.choice[client] = np.eye(2)[best]
                for batch in steps:
                    kernel[..., best] -= RATE * slope(kernel[..., best], *batch)
                return kernel
            made = self.choice[client] * np.transpose(of_label)
            self.choice[client] = (made / made.sum(1, keepdims=True)).mean(0)
            for batch in steps:
                of_label = [likely(kernel[..., k], inputs)[rows, labels] for k in range(2)]
                made = self.choice[client] * np.transpose(of_label)
                made /= made.sum(1, keepdims=True)
                slopes = [slope(kernel[..., k], *batch, made[:, k]) for k in range(2)]
                kernel = kernel - RATE * np.stack(slopes, -1)
        return kernel

    def round(self, clients):
        before = list(self.own)
        sent = [self.kernel - self.train(client) for client in clients]
        weights = [1.0 if self.uniform else SIZES[client] for client in clients]
        mean = self.mean_of(sent, weights)  # An aggregator's state moves without clients, too.
        if not clients and not self.private:
            return
        mean = mean + np.zeros_like(self.kernel)
        if self.name == "scaffold":
            changes = [clipped(self.own[i] - before[i], self.state_bound) for i in clients]
            self.c = self.c + sum(changes) / len(SIZES)
        if self.name == "fed_dyn":
            # The paper's h over alpha; private sums are all that a private server has.
            total = self.private * mean if self.private else sum(sent)
            self.c = self.c + total / len(SIZES)
            mean = mean + self.c
        if self.name == "ifca":
            self.shares = np.average(self.choice[clients], 0, weights)
            mean = mean / np.where(self.shares, self.shares, np.inf)
        self.kernel = self.kernel - mean


def clipped(update, bound=BOUND):
    return update * min(1.0, bound / np.sqrt(np.square(update).sum()))


def mean_of(condition, shape):
    """Returns what makes the mean of updates: in NumPy, or by TFF's own aggregator."""
    if condition.endswith("private"):
        return lambda sent, weights: sum(map(clipped, sent)) / 4.0
    bend = clipped if "bounded" in condition else np.asarray
    name = condition.split(", ")[-1]
    if name not in FACTORIES:
        return lambda sent, weights: sent and np.average([*map(bend, sent)], 0, weights)
    of, aggregator = pytest.importorskip("tensorflow_federated").aggregators, FACTORIES[name]()
    if isinstance(aggregator, of.UnweightedAggregationFactory):
        aggregator = of.as_weighted_aggregator(aggregator)
    value_type = tff.to_type(collections.OrderedDict([(KERNEL, (np.float32, shape))]))
    process = aggregator.create(value_type, tff.TensorType(np.float32))
    state = process.initialize()

    def aggregate(sent, weights):
        nonlocal state
        updates = [collections.OrderedDict([(KERNEL, np.float32(u))]) for u in sent]
        output = process.next(state, updates, [*map(np.float32, weights)])
        state = output.state
        return np.float64(output.result[KERNEL])

    return aggregate


def trainer_of(method, condition):
    who, options = {**CONDITIONS, **QUANTISED}[condition]
    algorithm = METHODS[method](**WORK, **options)
    name, more = condition.split(", ")[-1], {}
    if name == "private":
        bound = STATE_BOUND if "clipped states" in condition else 1e3
        bound = bound if method == "scaffold" else None
        more["privacy"] = DifferentialPrivacy(
            0.0, clip_norm=BOUND, clipping="fixed", expected_clients=4.0, state_clip_norm=bound
        )
    if name in FACTORIES:
        more["aggregator"] = FACTORIES[name]()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = PartitionedModel(build_model, loss=loss)
    options = {"clients_per_round": 4, "batch_size": 16, "shards": 1, **who, **more}
    return Trainer(model, algorithm, DATA, **options)


@pytest.mark.exhaustive(
    but=(
        "ifca-losses, uniform",
        "scaffold-losses, clipped states, private",
        "scaffold-poisson, zeroing",
        "fed_dyn-drop-outs, clipping",
        "ifca-poisson, bounded, uniform",
    )
)
@pytest.mark.parametrize(("method", "condition"), ROWS)
def test_trajectories_are_the_papers(method, condition):
    trainer = trainer_of(method, condition)
    start = np.float64(trainer.untrained().weights[KERNEL])
    numpy = InNumpy(
        method,
        start,
        mean_of(condition, start.shape),
        weighting=trainer.algorithm.weighting,
        private=4.0 if "private" in condition else 0.0,
        state_bound=STATE_BOUND if "clipped states" in condition else np.inf,
    )
    attended = trainer.attended_rounds(ROUNDS)
    sizes = set()
    for number in range(1, ROUNDS + 1):
        clients = [i for i, name in enumerate(DATA.client_ids) if number in attended[name]]
        sizes.add(len(clients))
        numpy.round(clients)
    assert len(sizes) > 1  # Else the nominal share would do.
    with trainer.fit(rounds=ROUNDS, progress=False) as trained:
        close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
        close(trained.weights[KERNEL], numpy.kernel)
        assert np.abs(numpy.kernel - start).max() > 0.05
        if method == "scaffold":
            close(trained.weights[f"{SERVER_STATE}/{KERNEL}"], numpy.c)
            error = np.abs(numpy.c - np.mean(numpy.own, 0)).max()
            assert error > 0.01 if "clipped states" in condition else error < 1e-12
        if method == "ifca":
            close(trained.weights[CLUSTER_SHARES], numpy.shares)
            return
        known, kept = trained.kept_by(list(DATA.client_ids))
        name, own = f"{COPY}/{KERNEL}", numpy.own
        name, own = (CLUSTER, numpy.choice) if method == "fed_em" else (name, own)
        close(kept[name][known], np.array(own)[known])


@pytest.mark.exhaustive(but=("scaffold",))
@pytest.mark.parametrize("method", ["scaffold", "ifca"])
def test_states_stay_exact_where_weights_are_quantised(method):
    trainer = trainer_of(method, *QUANTISED)
    with trainer.fit(rounds=ROUNDS, progress=False) as trained:
        if method == "scaffold":
            known, kept = trained.kept_by(list(DATA.client_ids))
            own = kept[f"{COPY}/{KERNEL}"] * known[:, np.newaxis, np.newaxis]
            c = trained.weights[f"{SERVER_STATE}/{KERNEL}"]
            np.testing.assert_allclose(c, own.mean(0), rtol=0, atol=1e-6)
            assert np.abs(c).max() > 1e-2
            return
        attended = trainer.attended_rounds(ROUNDS).values()
        last = max(max(rounds, default=0) for rounds in attended)
        chosen = trained.weights[CLUSTER_SHARES] * sum(last in rounds for rounds in attended)
        np.testing.assert_allclose(chosen, np.round(chosen), rtol=0, atol=1e-6)


def test_a_round_without_clients_leaves_the_server_where_it_is():
    """Momentum, too, waits for the next update."""
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for algorithm in (fed_dyn(**WORK), fed_avg(**WORK)):
        trainer = Trainer(
            PartitionedModel(build_model, loss=loss), algorithm, DATA, clients_per_round=1,
            server_optimizer=build_sgdm(0.5, momentum=0.9), **LOST,
        )  # fmt: skip
        attended = trainer.attended_rounds(20).values()
        reported = [any(number in rounds for rounds in attended) for number in range(1, 21)]
        first = next(n for n in range(1, 20) if reported[n - 1] and not reported[n])
        before, after = (
            trainer.fit(rounds=number, progress=False).weights[KERNEL]
            for number in (first, first + 1)
        )
        assert np.abs(before - trainer.untrained().weights[KERNEL]).max() > 1e-3
        np.testing.assert_array_equal(before, after)
