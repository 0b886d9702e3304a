"""`load_run` on the folder of a program of one's own; on binaries' it is in tests/suite/tasks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.files import pack_arrays, unpack_arrays, write_json

SGD = tf.keras.optimizers.SGD(0.1)
FURL = fp.furl(client_optimizer=SGD)


class Weighing(tf.keras.layers.Layer):
    """A layer that is not Keras' own."""

    def build(self, shape):
        self.vector = self.add_weight("vector", [shape[-1]], initializer="ones")

    def call(self, inputs):
        return inputs * self.vector


def build(*, units=1, weighing=False):
    def build_model():
        x = tf.keras.Input([2], name="x")
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        vector = tf.keras.layers.Embedding(5, 2, name="items")(item)
        hidden = tf.keras.layers.Dense(3, activation="tanh")(x)
        hidden = Weighing(name="weighing")(hidden) if weighing else hidden
        both = tf.keras.layers.Concatenate()([hidden, vector])
        return tf.keras.Model(
            {"x": x, "item": item}, tf.keras.layers.Dense(units, name="own")(both)
        )

    return build_model


def partitioned(build_model, **options):
    options = {"metrics": ["mae"], "loss": tf.keras.losses.Huber(), **options}
    return fp.PartitionedModel(
        build_model, local_layers=["own"], lookups={"items": "item"}, **options
    )


@pytest.fixture(name="data", scope="module")
def _data():
    random = np.random.default_rng(0)
    return fp.ClientDataset(
        client_ids=[f"c{i}" for i in range(6)],
        offsets=np.arange(7) * 8,
        features={
            "x": random.normal(size=(48, 2)).astype(np.float32),
            "item": random.integers(0, 5, 48).astype(np.int32),
        },
        labels=random.normal(size=48).astype(np.float32),
    )


@pytest.fixture(name="run", scope="module")
def _run(data, tmp_path_factory):
    """A finished run, its folder, and what it says of all clients."""

    def run(model, algorithm=FURL):
        folder = tmp_path_factory.mktemp("run")
        trainer = fp.Trainer(model, algorithm, data.subset([0, 1, 2, 3]), batch_size=4)
        with trainer.fit(rounds=2, folder=folder, progress=False) as trained:
            return folder, trained.evaluate(data)

    return run


def assert_says(trained, data, expected):
    with trained:
        found = trained.evaluate(data)
    assert list(found) == list(expected)
    for column in expected:
        np.testing.assert_array_equal(found[column], expected[column], err_msg=column)


@pytest.fixture(name="keras_run", scope="module")
def _keras_run(run):
    return run(partitioned(build()))


@pytest.fixture(name="load", scope="module")
def _load():
    model = partitioned(build())

    def load(folder, **options):
        return fp.load_run(folder, **{"model": model, "algorithm": FURL, **options})

    return load


def test_a_run_opens_with_its_model(keras_run, load, data):
    folder, expected = keras_run
    assert expected["has_kept"].sum() == 4
    loaded = load(folder)
    assert len(loaded.metrics) == 2 and loaded.trained.round_number == 2
    assert_says(loaded.trained, data, expected)


def test_another_model_is_refused_by_name(keras_run, load):
    folder, _ = keras_run
    nobodys = fp.PartitionedModel(build(), lookups={"items": "item"})
    with pytest.raises(
        fp.UserError, match=r"local variables are \['own/kernel', 'own/bias'\], not"
    ):
        _ = load(folder, model=nobodys).trained
    with pytest.raises(fp.UserError, match="local_state.sqlite holds the local variables of anot"):
        _ = load(folder, model=partitioned(build(units=2))).trained
    with pytest.raises(fp.UserError, match="global variable 'weighing/vector' .* is missing there"):
        _ = load(folder, model=partitioned(build(weighing=True))).trained
    with pytest.raises(fp.UserError, match="run with method = 'furl', not 'fed_per'"):
        _ = load(folder, algorithm=fp.fed_per(client_optimizer=SGD)).trained


def test_what_is_missing_is_named(keras_run, load, tmp_path):
    folder, _ = keras_run
    for forgotten in ("model", "algorithm"):
        with pytest.raises(fp.UserError, match="of a user's program: pass its model and.*, furl"):
            _ = load(folder, **{forgotten: None}).trained
    with pytest.raises(fp.UserError, match="finetuning_phases = 0, not 1"):
        phase = fp.GradientPhase("all", "all", SGD)
        _ = load(folder, finetuning=[phase]).trained
    with pytest.raises(fp.UserError, match="not the folder of a run"):
        fp.load_run(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(fp.UserError, match="the run has not ended"):
        _ = load(tmp_path).trained
    for name in ("model.json", "model.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(fp.UserError, match="has no local_state.sqlite"):
        _ = load(tmp_path).trained
    (tmp_path / "model.npz").write_bytes((folder / "model.npz").read_bytes()[:99])
    with pytest.raises(fp.UserError, match="model.npz is damaged or was changed"):
        _ = load(tmp_path).trained


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model.json", {"batch_size": 0}, "model.json is damaged or was changed"),
        ("model.json", {"seed": 2**40}, "model.json is damaged or was changed"),
        ("config.json", {"packing": None}, "config.json is damaged or was changed"),
        ("config.json", {"method": ["x\n"] * 999}, "is a run with method = "),
        ("config.json", {"task": "x" * 999}, "config.json: there is no task 'xxx"),
    ],
)
def test_other_values_with_a_right_digest_are_one_line(
    keras_run, load, tmp_path, file, change, message
):
    for name in ("config.json", "model.json", "model.npz"):
        (tmp_path / name).write_bytes((keras_run[0] / name).read_bytes())
    value = json.loads((tmp_path / file).read_text())
    del value["digest"]
    (value["options"] if file == "config.json" else value).update(change)
    write_json(tmp_path / file, value, checked=True)
    options = {"model": None, "algorithm": None} if "task" in change else {}
    with pytest.raises(fp.UserError, match=message) as caught:
        _ = load(tmp_path, **options).trained
    said = str(caught.value)
    assert str(tmp_path) in said and said.isprintable() and len(said) < 2000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global items/embeddings": np.zeros([5, 2])}, "'items/embeddings' .float32 of shape"),
        ({"clients": np.array([1, 2])}, "model.npz is damaged or was changed"),
        ({"local own/bias": np.zeros([3, 1], np.float32)}, "'own/bias' .float32 of shape"),
        ({"local own/bias": None}, "'own/bias' .* is missing there"),
    ],
)
def test_other_arrays_with_a_right_digest_are_one_line(keras_run, load, tmp_path, change, message):
    for name in ("config.json", "model.json"):
        (tmp_path / name).write_bytes((keras_run[0] / name).read_bytes())
    arrays = unpack_arrays((keras_run[0] / "model.npz").read_bytes())
    bias, kernel = np.zeros([2, 1], np.float32), np.zeros([2, 5, 1], np.float32)
    arrays.update({"clients": np.array(["a", "b"]), "local own/bias": bias})
    arrays.update({"local own/kernel": kernel})
    for changed, said in (({}, None), (change, message)):
        arrays.update(changed)
        kept = {name: array for name, array in arrays.items() if array is not None}
        (tmp_path / "model.npz").write_bytes(pack_arrays(kept))
        run = load(tmp_path)
        if said is None:
            assert run.trained.kept_by(["b", "c"])[0].tolist() == [True, False]
        else:
            with pytest.raises(fp.UserError, match=said):
                _ = run.trained
