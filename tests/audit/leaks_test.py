"""Leaks that are planted, each in an honest process: the audit finds every one."""

from __future__ import annotations

import collections
import dataclasses
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.audit.declared import check_added, check_loss, check_metrics
from fedpersonal.audit.reference import Reference
from fedpersonal.audit.subject import Subject
from fedpersonal.federated import process as process_module
from fedpersonal.federated import server
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.federated.process import KeptOutput, Process
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.fed_dyn import fed_dyn
from fedpersonal.methods.fed_em import fed_em
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.furl import furl
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.methods.per_fed_avg import per_fed_avg
from fedpersonal.methods.pfedme import pfedme
from fedpersonal.methods.scaffold import scaffold
from fedpersonal.model.metrics import RMSE, Metric
from fedpersonal.model.names import CLUSTER
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import UserVector, matrix_factorization
from fedpersonal.tff.optimizers import build_adam, build_sgdm
from fedpersonal.training import trainer as trainer_module
from fedpersonal.training.trainer import Trainer

NUM_ITEMS, DIM, ROUNDS = 7, 3, 3
SGD = build_sgdm(0.1)
TABLE, OWN = "item_embedding/embeddings", "user_embedding/vector"
HONEST = matrix_factorization(num_items=NUM_ITEMS, embedding_dim=DIM)


def model_of(build=HONEST, **options):
    return PartitionedModel(
        build,
        **{
            "local_layers": ["user_embedding"],
            "lookups": {"item_embedding": "item"},
            "metrics": [RMSE],
            **options,
        },
    )


FURL = furl(client_optimizer=SGD, local_epochs=2)


def trainer_of(clients, *, model=None, algorithm=FURL, **options):
    return Trainer(
        model or model_of(), algorithm, clients, clients_per_round=4, batch_size=4, shards=1,
        **options,
    )  # fmt: skip


def in_sums(change, local_variable=OWN):
    """Plants a leak in what a shard sums: of the sums, the local values before, and examples."""
    honest = process_module.train_and_sum

    def leaky(model, algorithm, global_values, examples, seed, *, local, **options):
        sums, after = honest(
            model, algorithm, global_values, examples, seed, local=local, **options
        )
        exists = tf.reduce_max(examples.mask, [1, 2]) > 0
        own = tf.reduce_sum(tf.boolean_mask(local[local_variable], exists), 0)
        change(sums, own, examples, seed[1])
        return sums, after

    return mock.patch.object(process_module, "train_and_sum", leaky)


def beside(send):
    """Plants a leak beside an honest round: `send` gets what clients have kept, at CLIENTS."""

    def build(*args, **kwargs):
        honest = process_module.build_process(*args, **kwargs)

        @tff.federated_computation(honest.next.type_signature.parameter)
        def leaky(state, shards):
            @tff.tf_computation(shards.type_signature.member)
            def own(shard):
                return tf.reduce_sum(shard["local"]["values"][OWN], 0)

            output = honest.next(state, shards)
            sent = send(tff.federated_map(own, shards))
            metrics = tff.federated_zip((output.metrics, sent))
            return KeptOutput(output.state, metrics, output.local)

        return Process(honest.initialize, leaky, keeps=True)

    return mock.patch.object(trainer_module, "build_process", build)


def add(sums, values):
    """Adds numbers to the update of a row."""
    updates = sums["updates"]
    row = tf.reshape(values, [-1]) * tf.ones([DIM])
    updates[TABLE] = tf.tensor_scatter_nd_add(updates[TABLE], [[5]], [row])


def weigh(sums, own, examples, number):
    sums["weight"] += 1e-2 * tf.reduce_sum(own)


def rename(sums, own, examples, number):
    sums["metrics"]["num_examples"] = tf.reduce_sum(own)


def in_a_new_leaf(sums, own, examples, number):
    sums["note"] = collections.OrderedDict(harmless=own)


def and_back(value):
    """Sums, and broadcasts the sum in the same round."""
    again = tff.federated_broadcast(tff.federated_sum(value))
    return tff.federated_sum(again)


def in_many_places(sums, own, examples, number):
    for change in (weigh, rename, in_a_new_leaf):
        change(sums, own, examples, number)


SUMS = {
    "in a weight, a count and a new leaf": in_many_places,
    "in round 3 alone": lambda sums, own, examples, number: add(
        sums, own * tf.cast(number == 2, tf.float32)
    ),
    "times 1e-6": lambda sums, own, examples, number: add(sums, 1e-6 * own),
    "times the update's norm": lambda sums, own, examples, number: add(
        sums, own * tf.norm(sums["updates"][TABLE])
    ),
    "labels in the update": lambda sums, own, examples, number: add(
        sums, 1e-6 * tf.reduce_sum(examples.labels * examples.mask)
    ),
    "inputs in the update": lambda sums, own, examples, number: add(
        sums, 1e-6 * tf.reduce_sum(tf.cast(examples.features["item"], tf.float32) * examples.mask)
    ),
}
BESIDE = {
    "a bare tensor": (tff.federated_sum, {"severed", "reference"}),
    "its mean": (tff.PACKAGE.federated_mean, {"severed", "reference"}),
    "a broadcast": (and_back, {"broadcast", "severed", "reference"}),
}


def checks_of(audit):
    assert not audit.holds and audit.leaks
    return {verdict.check for verdict in audit.verdicts if not verdict.holds}


def test_an_honest_round_raises_no_alarm(clients):
    audit = trainer_of(clients).audit(rounds=ROUNDS)
    assert audit.holds and audit.leaks == []
    assert [verdict.check for verdict in audit.verdicts] == [
        "names", "broadcast", "severed", "reference", "declared",
    ]  # fmt: skip
    # It is held to a few units of float32's rounding, and the audit says to which.
    (note,) = (note for note in audit.notes if "as small as rounding" in note)
    assert 2**-24 < float(note.split(", ")[-2].split(" ")[0]) < 1e-5


@pytest.mark.exhaustive(but=("in round 3 alone", "times 1e-6", "times the update's norm"))
@pytest.mark.parametrize("name", SUMS)
def test_a_leak_in_what_is_summed(clients, name):
    with in_sums(SUMS[name]):
        audit = trainer_of(clients).audit(rounds=ROUNDS)
    found = checks_of(audit)
    # A plain round sees what is larger than rounding; behind the loss it alone sees anything.
    assert ("severed" in found) == (name != "times the update's norm")
    assert ("reference" not in found) == (name == "times 1e-6")
    if name.startswith("in a weight"):
        for place in ("weight", "num_examples", "note"):
            assert any(place in leak for leak in audit.leaks)
    if name == "in round 3 alone":
        assert all(leak.startswith("round 3: ") for leak in audit.leaks)


@pytest.mark.exhaustive(but=("a broadcast",))
@pytest.mark.parametrize("name", BESIDE)
def test_a_leak_beside_an_honest_round(clients, name):
    if name.startswith("its "):
        pytest.importorskip("tensorflow_federated")  # It says what they are made of.
    send, expected = BESIDE[name]
    with beside(send):
        audit = trainer_of(clients).audit(rounds=ROUNDS)
    assert checks_of(audit) == expected


class Pulled(tf.keras.layers.Layer):
    """Adds a loss that pulls items along the user's vector, whatever the ratings."""

    def call(self, rating, own, item):
        self.add_loss(tf.reduce_sum(tf.stop_gradient(own) * item, axis=-1))
        return rating


def build_two_outputs(with_loss):
    def build():
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        table = tf.keras.layers.Embedding(NUM_ITEMS, DIM, name="item_embedding")(item)
        own = UserVector(DIM, name="user_embedding")(item)
        rating = tf.reduce_sum(own * table, -1)
        if with_loss:
            return tf.keras.Model({"item": item}, Pulled(name="pulled")(rating, own, table))
        second = tf.reduce_sum(tf.stop_gradient(own) * table, -1)
        return tf.keras.Model({"item": item}, tf.stack([rating, second], axis=-1))

    return build


@pytest.mark.exhaustive
def test_a_metric_that_returns_predictions(clients):
    tells = Metric("tells", lambda labels, predictions: predictions + 1e-5 * labels)
    audit = trainer_of(clients, model=model_of(metrics=[RMSE, tells])).audit(rounds=1)
    assert checks_of(audit) == {"declared"}
    assert audit.leaks[0].startswith("metric 'tells' ignores labels")


@pytest.mark.exhaustive
def test_a_local_value_in_a_loss_that_the_model_adds(clients):
    """A stop_gradient of a local value makes the update of what it is multiplied with its copy."""
    audit = trainer_of(clients, model=model_of(build_two_outputs(True))).audit(rounds=1)
    assert checks_of(audit) == {"severed", "declared"}


@pytest.mark.exhaustive
def test_a_local_value_in_a_loss_beside_that_of_the_data(clients):
    def loss(labels, outputs):
        return tf.square(labels[:, 0] - outputs[:, 0]) + 1e-3 * outputs[:, 1]

    model = model_of(build_two_outputs(False), loss=loss, metrics=[])
    audit = trainer_of(clients, model=model).audit(rounds=1)
    assert checks_of(audit) == {"declared"}
    assert "number 1 of the model's output" in audit.leaks[0]


def declared(clients, **options):
    """Returns what the audit says of what a model declares, without a process."""
    model = model_of(**options)
    execution = Execution(batch_size=4)
    subject = Subject.from_clients(
        clients=clients, execution=execution, model=model, algorithm=FURL, process=None,
        build=None, seed=0,
    )  # fmt: skip
    reference = Reference(model, FURL, batch_size=4, seed=0)
    checks = (check_loss, check_metrics, check_added)
    return [line for check in checks for line in check(subject, reference)]


def test_a_metric_that_returns_predictions_is_named(clients):
    tells = Metric("tells", lambda labels, predictions: predictions + 1e-5 * labels)
    (found,) = declared(clients, metrics=[RMSE, tells])
    assert found.startswith("metric 'tells' ignores labels")


def focal(labels, predictions):
    """A weight that is not differentiated, by how far off a prediction is."""
    return tf.stop_gradient(tf.abs(predictions - labels)) * tf.square(predictions - labels)


MSE, MAE = tf.keras.losses.mse, tf.keras.losses.mae


@pytest.mark.exhaustive(but=("mean_squared_error-<lambda>1", "mean_absolute_error-floor"))
@pytest.mark.parametrize(
    ("base", "hidden"),
    [
        (MSE, lambda p: 1e3 * tf.stop_gradient(p)),
        (MAE, lambda p: 1e-2 * tf.stop_gradient(p)),
        (MAE, tf.floor),
        (MSE, lambda p: tf.stop_gradient(tf.cos(100.0 * p))),
    ],
)
def test_a_loss_whose_value_tells_predictions(clients, base, hidden):
    def loss(labels, predictions):
        return base(labels, predictions) + hidden(predictions)[:, 0]

    (found,) = declared(clients, loss=loss)
    assert found.startswith("the loss' value changes with predictions in a way that its derivative")


@pytest.mark.exhaustive(but=("mae", "focal"))
@pytest.mark.parametrize("loss", ["mse", "mae", focal, tf.keras.losses.Huber(0.5), "logcosh"])
def test_a_loss_whose_value_is_its_derivative_s(clients, loss):
    assert declared(clients, loss=loss) == []


class Adding(tf.keras.layers.Layer):
    """Adds a function of the user's vector, of ids and of the item's vector to the loss."""

    def __init__(self, added):
        super().__init__()
        self._added = added

    def call(self, rating, own, item, table):
        self.add_loss(self._added(own, tf.cast(item, tf.float32), table))
        return rating


def adding(added):
    def build():
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        table = tf.keras.layers.Embedding(NUM_ITEMS, DIM, name="item_embedding")(item)
        own = UserVector(DIM, name="user_embedding")(item)
        rating = Adding(added)(tf.reduce_sum(own * table, -1), own, item, table)
        return tf.keras.Model({"item": item}, rating)

    return build


ADDED = {
    "inputs": (lambda own, item, table: 1e-3 * item, "depends on inputs"),
    "a cosine": (lambda own, item, table: tf.reduce_sum(tf.cos(9.0 * own), -1), "reveals more"),
    "an entry's square": (lambda own, item, table: own[:, 0] ** 2, "reveals more"),
    "a fourth power": (lambda own, item, table: tf.reduce_sum(own**4, -1), "reveals more"),
    "penalties": (
        lambda own, item, table: tf.reduce_sum(own**2 + tf.abs(own) + 2.0 * table**2, -1),
        None,
    ),
    "one of the batch": (lambda own, item, table: tf.reduce_mean(table**2), None),
}


@pytest.mark.exhaustive(but=("inputs", "an entry's square", "penalties"))
@pytest.mark.parametrize("name", ADDED)
def test_what_a_loss_that_the_model_adds_may_tell(clients, name):
    added, said = ADDED[name]
    found = declared(clients, build=adding(added))
    assert [said in line for line in found] == [True] * (said is not None)


@pytest.mark.exhaustive
def test_labels_of_which_each_has_its_own_weight(clients):
    model = model_of(example_weight=lambda labels: 1.0 + tf.abs(labels))
    assert trainer_of(clients, model=model).audit(rounds=1).leaks == []
    with in_sums(SUMS["labels in the update"]):
        audit = trainer_of(clients, model=model).audit(rounds=1)
    assert checks_of(audit) == {"severed", "reference"}
    assert any(note.startswith("not tested: what example_weight reveals") for note in audit.notes)


@pytest.mark.exhaustive
def test_a_loss_that_compares_a_client_s_examples_raises_no_alarm(clients):
    def centred(labels, predictions):
        return tf.square(predictions - tf.reduce_mean(predictions) - labels)

    assert trainer_of(clients, model=model_of(loss=centred)).audit(rounds=1).leaks == []


class Carrying:
    """SGD whose state takes local values from one step to the global variables of the next."""

    def __init__(self, carried):
        self._carried = carried

    def initialize(self, specs):
        return {"rate": tf.constant(0.1), "carried": tf.zeros([DIM])}

    def next(self, state, weights, gradients):
        moved = {k: w - state["rate"] * gradients[k] for k, w in weights.items()}
        if TABLE in moved:
            moved[TABLE] += self._carried(state["carried"], gradients[TABLE])
        return {**state, "carried": weights.get(OWN, state["carried"])}, moved


def signs_in_last_digits(own, gradient):
    """Writes one bit a number, where the data loss has a gradient: `severed` never sees it."""
    return tf.where(gradient == 0, 0.0, 5e-6 * tf.sign(own))


@pytest.mark.exhaustive(but=("signs_in_last_digits-reference-pooled",))
@pytest.mark.parametrize(
    ("carried", "check", "packing"),
    [
        (lambda own, gradient: 1e-3 * own, "severed", "stacked"),
        (lambda own, gradient: tf.norm(gradient) * own, "reference", "stacked"),
        (signs_in_last_digits, "reference", "pooled"),
    ],
)
def test_an_optimizer_that_carries_local_values(clients, carried, check, packing):
    algorithm = furl(client_optimizer=Carrying(carried), local_epochs=2)
    audit = trainer_of(clients, algorithm=algorithm, packing=packing).audit(rounds=1)
    assert check in checks_of(audit)


def local_values_in_the_update(honest):
    """Returns what trains clients and adds a millionth of where their local variables end."""

    def leaky(*arguments):
        output = honest(*arguments)
        own = 1e-6 * output.local_values[OWN][:, tf.newaxis]
        return output._replace(updates={TABLE: output.updates[TABLE] + own})

    return leaky


SUPPORT = {"client_optimizer": SGD, "reconstruction_optimizer": SGD}
REBUILDING = {
    "by gradient": fed_recon(**SUPPORT),
    "by gradient, all at once": fed_recon(**SUPPORT, joint_training=True),
    "by ridge": fed_recon(client_optimizer=SGD, reconstruction="ridge"),
}


@pytest.mark.exhaustive(but=("by gradient-None",))
@pytest.mark.parametrize(
    ("name", "aggregator"),
    [
        *((name, None) for name in REBUILDING),
        ("by ridge", lambda of: of.clipping_factory(0.1, of.MeanFactory())),
    ],
)
def test_a_copy_of_what_is_rebuilt(clients, name, aggregator):
    if aggregator:
        aggregator = aggregator(pytest.importorskip("tensorflow_federated").aggregators)
    options = {"algorithm": REBUILDING[name], "aggregator": aggregator}
    assert trainer_of(clients, **options).audit(rounds=1).leaks == []
    with mock.patch.object(
        server, "train_clients", local_values_in_the_update(server.train_clients)
    ):
        assert checks_of(trainer_of(clients, **options).audit(rounds=1)) == {"severed"}


@pytest.mark.exhaustive
def test_differential_privacy_holds_and_says_epsilon(clients):
    algorithm = fed_recon(**SUPPORT, weighting="uniform")
    privacy = DifferentialPrivacy(noise_multiplier=2.0)
    trainer = trainer_of(clients, algorithm=algorithm, privacy=privacy)
    audit = trainer.audit(rounds=1)
    assert audit.leaks == []
    epsilon = trainer.budget.epsilon(1)
    assert f"differential privacy, epsilon {epsilon:.3g} " in audit.guarantee


@pytest.mark.exhaustive
def test_leaks_do_not_hide_in_rounds_without_examples(clients):
    """A client with a single batch still tells by its weight."""
    few = clients.head(2)
    assert trainer_of(few).audit(rounds=1).holds
    with in_sums(weigh):
        assert "severed" in checks_of(trainer_of(few).audit(rounds=1))


ADAM = build_adam(0.05)
COPY = f"personal_copy/{TABLE}"
WORK = {"client_optimizer": SGD, "local_epochs": 2}
PERSONAL = {
    "ditto": ditto(**WORK, local_optimizer=ADAM, local_only_epochs=2),
    "mr_mtl": mr_mtl(**WORK),
    "apfl": apfl(**WORK),
    "per_fed_avg": per_fed_avg(**WORK, adaptation_optimizer=SGD),
    "pfedme": pfedme(**WORK, inner_optimizer=SGD, inner_steps=2, envelope=2.0),
    "scaffold": scaffold(**WORK),
    "fed_dyn": fed_dyn(**WORK, feddyn_alpha=5.0),
    "ifca": ifca(**WORK),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PERSONAL)
def test_a_copy_of_shared_variables(clients, name):
    """With rows that are one client's each, which are no leak."""
    build = matrix_factorization(
        num_items=NUM_ITEMS, num_users=4, embedding_dim=DIM, use_biases=True, l2=0.01
    )
    model = model_of(
        build,
        local_layers=[],
        lookups={f"{of}_{kind}": of for of in ("item", "user") for kind in ("embedding", "bias")},
        per_client_tables=["user_embedding", "user_bias"],
    )
    trainer = trainer_of(clients, model=model, algorithm=PERSONAL[name])
    audit = trainer.audit(rounds=2)
    assert audit.leaks == []
    reveals_copies = name in ("mr_mtl", "scaffold", "fed_dyn")
    assert any("depend on their personal copies" in note for note in audit.notes) == reveals_copies
    assert any("reveal their choice of a model" in note for note in audit.notes) == (name == "ifca")
    if name not in ("ditto", "mr_mtl"):
        return
    with in_sums(lambda sums, own, *_: add(sums, 1e-2 * tf.reduce_sum(own)), COPY):
        found = checks_of(
            trainer_of(clients, model=model, algorithm=PERSONAL[name]).audit(rounds=2)
        )
    assert "reference" in found and ("severed" in found) != reveals_copies


@pytest.mark.exhaustive
def test_a_mixture_of_models(clients):
    """With layers that draw, a penalty, and outputs that are probabilities, which are no leak."""

    def build():
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        row = tf.keras.layers.Embedding(NUM_ITEMS, DIM, name="item_embedding")(item)
        penalty = tf.keras.regularizers.L2(0.1)
        dense = tf.keras.layers.Dense(
            1, activation="sigmoid", kernel_regularizer=penalty, name="head"
        )
        return tf.keras.Model({"item": item}, dense(tf.keras.layers.Dropout(0.5)(row)))

    model = model_of(build, local_layers=[], loss="binary_crossentropy", metrics=[])
    signs = dataclasses.replace(
        clients, labels=np.float32(clients.labels > np.median(clients.labels))
    )
    trainer = trainer_of(signs, model=model, algorithm=fed_em(**WORK, num_clusters=3))
    audit = trainer.audit(rounds=2)
    assert audit.leaks == []
    assert any("weights of the models" in note for note in audit.notes)

    def leak(sums, own, *_):
        sums["updates"][TABLE] += 1e-2 * own

    with in_sums(leak, CLUSTER):
        found = trainer_of(signs, model=model, algorithm=fed_em(**WORK)).audit(rounds=2)
    assert {"severed", "reference"} <= {*checks_of(found)}
