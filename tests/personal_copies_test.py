"""A program of one's own whose clients keep a copy of the model: predictions, export, folders."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedpersonal as fp
from fedpersonal.federated.process import check_fit
from fedpersonal.methods.algorithm import Algorithm, GradientPhase, PersonalCopies

SGD = tff.learning.optimizers.build_sgdm(0.2)
WORK = {"batch_size": 4, "clients_per_round": 3, "shards": 1}
COPY = "personal_copy/out/kernel"


pytestmark = pytest.mark.usefixtures("not_compiled")


def build_model():
    x = tf.keras.Input([2], name="x")
    return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, use_bias=False, name="out")(x))


@pytest.fixture(name="clients", scope="module")
def _clients(make_dataset):
    """Each client has a slope of its own."""
    random = np.random.default_rng(1)

    def client(number):
        x = random.normal(size=(9, 2)).astype(np.float32)
        return {"x": x}, (x @ [number, -number]).astype(np.float32)

    return make_dataset([client(number) for number in range(5)])


@pytest.fixture(name="run", scope="module")
def _run(clients, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "ditto"
    algorithm = fp.ditto(client_optimizer=SGD, pull=0.1, local_only_epochs=2)
    trainer = fp.Trainer(
        fp.PartitionedModel(build_model), algorithm, clients.subset(range(4)), **WORK
    )
    with trainer.fit(rounds=6, folder=folder, progress=False) as trained:
        yield folder, algorithm, trained


def test_a_client_predicts_with_its_copy(run, clients, tmp_path):
    _, _, trained = run
    x = {"x": np.eye(2, dtype=np.float32)}
    known, kept = trained.kept_by(["client3"])
    assert known.all()
    np.testing.assert_allclose(trained.predict(x, client="client3"), kept[COPY][0, :, 0], rtol=1e-5)
    shared = np.asarray(trained.weights["out/kernel"])[:, 0]
    np.testing.assert_allclose(trained.predict(x), shared, rtol=1e-5)
    assert np.abs(kept[COPY][0, :, 0] - shared).max() > 0.1
    keras = trained.to_keras("client3")
    np.testing.assert_allclose(np.squeeze(keras(x)), kept[COPY][0, :, 0], rtol=1e-5)
    trained.export(tmp_path / "model", "client3")
    table = trained.evaluate(clients)
    assert table["has_kept"].tolist() == [True] * 4 + [False]
    assert (table["loss_after"] < table["loss_before"])[:4].all()


def test_a_client_that_has_kept_nothing_trains_a_copy_with_the_pull(run, clients):
    _, _, trained = run
    support = clients.subset([4])
    shared = np.asarray(trained.weights["out/kernel"], np.float64)
    own, x, y = shared.copy(), support.features["x"], support.labels[:, np.newaxis]
    for start in (0, 4, 8) * 2:
        rows = slice(start, start + 4)
        slope = 2 * x[rows].T @ (x[rows] @ own - y[rows]) / len(y[rows])
        own = own - 0.2 * (slope + 0.1 * (own - shared))
    found = trained.values(support=support)
    np.testing.assert_allclose(found[COPY], own, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found["out/kernel"], trained.weights["out/kernel"])


def test_the_folder_opens_again(run, clients):
    folder, algorithm, trained = run
    expected = trained.overall(clients)
    trained.close()
    with fp.load_run(folder, algorithm=algorithm).trained as loaded:
        assert loaded.overall(clients) == expected


def test_what_does_not_fit_is_refused():
    plain = fp.PartitionedModel(build_model)
    algorithm = fp.ditto(client_optimizer=SGD)
    with pytest.raises(ValueError, match=r"ditto needs local variables; the model has none"):
        check_fit(plain, algorithm)
    with pytest.raises(ValueError, match=r"furl has no personal copies; take the model"):
        check_fit(algorithm.prepare(plain), fp.furl(client_optimizer=SGD))
    phase = GradientPhase("personal", "all", SGD)
    with pytest.raises(ValueError, match="'odd': personal copies are rebuilt or kept"):
        Algorithm("odd", (phase,), "none", personal=PersonalCopies())
    with pytest.raises(ValueError, match="mixing must be from 0 to 1, not 1.5"):
        PersonalCopies(mixing=1.5)
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        fp.LookAhead(SGD, steps=0)
    with pytest.raises(ValueError, match="envelope must be at least 0, not -1"):
        fp.LookAhead(SGD, envelope=-1.0)
    with pytest.raises(ValueError, match="data must be one of.*not 'some'"):
        fp.LookAhead(SGD, data="some")


def test_copies_that_blow_up_are_not_kept(clients):
    """The shared model, which is trained apart from them, goes on."""
    algorithm = fp.ditto(
        client_optimizer=SGD, local_optimizer=tff.learning.optimizers.build_sgdm(1e30)
    )
    trainer = fp.Trainer(fp.PartitionedModel(build_model), algorithm, clients, **WORK)
    start = trainer.untrained().weights["out/kernel"]
    with trainer.fit(rounds=1, progress=False) as trained:
        known, kept = trained.kept_by(clients.client_ids.tolist())
        np.testing.assert_array_equal(kept[COPY][known], np.stack([start] * known.sum()))
        assert np.isfinite(trained.weights["out/kernel"]).all()
        assert (trained.weights["out/kernel"] != start).all()
