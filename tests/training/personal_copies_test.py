"""A program of one's own whose clients keep a copy of the model: predictions, export, folders."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.2)
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


@pytest.mark.exhaustive
def test_the_folder_opens_again(run, clients):
    folder, algorithm, trained = run
    expected = trained.overall(clients)
    trained.close()
    model = fp.PartitionedModel(build_model)
    with fp.load_run(folder, model=model, algorithm=algorithm).trained as loaded:
        assert loaded.overall(clients) == expected
