"""`load_run` on the folder of a program of one's own; on binaries' it is in tests/tasks."""

from __future__ import annotations

import json
import sys

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


def build(*, units=1, own=False):
    def build_model():
        x = tf.keras.Input([2], name="x")
        item = tf.keras.Input([], dtype=tf.int32, name="item")
        vector = tf.keras.layers.Embedding(5, 2, name="items")(item)
        hidden = tf.keras.layers.Dense(3, activation="tanh")(x)
        hidden = Weighing(name="weighing")(hidden) if own else hidden
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


def test_a_run_opens_with_its_model(keras_run, data):
    folder, expected = keras_run
    assert expected["has_kept"].sum() == 4
    loaded = fp.load_run(folder, model=partitioned(build()), algorithm=FURL)
    assert len(loaded.metrics) == 2 and loaded.trained.round_number == 2
    assert_says(loaded.trained, data, expected)


def test_a_model_of_keras_own_parts_is_in_the_folder(keras_run, data):
    folder, expected = keras_run
    assert_says(fp.load_run(folder, algorithm=FURL).trained, data, expected)


def test_so_is_a_ready_made_sequential_model(data, run):
    columns = {"first_input": data.features["x"]}
    data = fp.ClientDataset(data.client_ids, data.offsets, columns, data.labels)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(3, input_shape=[2], name="first"), tf.keras.layers.Dense(1)]
    )
    model.compile(loss="mae", metrics=["mse"])
    model = fp.PartitionedModel(model)
    algorithm = fp.fed_avg(client_optimizer=SGD)
    trainer = fp.Trainer(model, algorithm, data)
    folder, _ = run(partitioned(build()))
    with trainer.fit(rounds=1, folder=folder / "inner", progress=False) as trained:
        expected = trained.evaluate(data)
    assert "mse_after" in expected or "mean_squared_error_after" in expected
    assert_says(fp.load_run(folder / "inner", algorithm=algorithm).trained, data, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"build_model": build(own=True)},
        {"loss": lambda labels, predictions: tf.abs(labels - predictions)},
        {"metrics": [fp.Metric("double", lambda labels, predictions: 2 * predictions)]},
        {"example_weight": lambda labels: 1 + tf.abs(labels), "metrics": []},
    ],
    ids=["layer", "loss", "metric", "weight"],
)
def test_other_models_must_be_given(run, data, options):
    folder, expected = run(partitioned(**{"build_model": build(), **options}))
    with pytest.raises(fp.UserError, match="not of Keras' own parts alone.*give load_run the mod"):
        _ = fp.load_run(folder, algorithm=FURL).trained
    again = partitioned(**{"build_model": build(), **options})
    assert_says(fp.load_run(folder, model=again, algorithm=FURL).trained, data, expected)


def as_lambda(layer):
    function = {"class_name": "function", "config": "z", "module": "this", "registered_name": "z"}
    config = {"name": layer["config"]["name"], "function": function, "function_type": "function"}
    layer.update(class_name="Lambda", config={**config, "module": "this", "arguments": {}})


def as_own_layer(layer):
    layer.update(class_name="Own", module="this", registered_name="Own")


def as_registered_layer(layer):
    layer.update(registered_name="own>Registered")


def with_own_initializer(layer):
    own = {"class_name": "Own", "config": {}, "module": "this", "registered_name": "Own"}
    layer["config"]["bias_initializer"] = own


def with_function(module):
    def change(layer):
        function = {"class_name": "function", "module": module, "config": "get_file"}
        layer["config"]["activation"] = {**function, "registered_name": "get_file"}

    return change


def as_function_of_keras(layer):
    layer.update(class_name="get_file", module="keras.utils")


def as_operation(function):
    def change(layer):
        layer.update(class_name="TFOpLambda", module="keras.src.layers.core.tf_op_layer")
        layer.update(registered_name="TFOpLambda", config={"name": "dense", "function": function})
        layer["inbound_nodes"] = [["_CONSTANT_VALUE", -1, "planted", {"contents": "planted"}]]

    return change


def as_node(layer):
    node = {"name": "planted", "op": "WriteFile", "input": ["a", "b"]}
    config = {"name": "planted", "node_def": node, "constants": {"0": "planted", "1": "planted"}}
    layer.update(class_name="TensorFlowOpLayer", module="keras.src.engine.base_layer")
    layer.update(registered_name="TensorFlowOpLayer", config=config)


def as_lookup(kind, **config):
    def change(layer):
        layer.update(class_name=kind, config={"name": "dense", **config})

    return change


FUNCTION = {"class_name": "function", "module": "os", "config": "system", "registered_name": None}
PLANTED = {
    "lambda": (as_lambda, "layer 'Lambda' is not read"),
    "own layer": (as_own_layer, "part 'this.Own' is not read"),
    "registered layer": (as_registered_layer, "layer 'Dense' is not read"),
    "own initializer": (with_own_initializer, "part 'this.Own' is not read"),
    "function": (with_function("keras.utils"), "part 'keras.utils.function' is not read"),
    "built-in": (with_function("builtins"), "part 'builtins.function' is not read"),
    "function as layer": (as_function_of_keras, "part 'keras.utils.get_file' is not read"),
    "writing": (as_operation("io.write_file"), "operation 'io.write_file' is not read"),
    "older writing": (as_operation("compat.v1.io.write_file"), "'compat.v1.io.write_file' is"),
    "node of a graph": (as_node, "operation 'WriteFile' is not read"),
    "download": (as_operation("keras.utils.get_file"), "operation 'keras.utils.get_file' is not"),
    "vocabulary": (as_lookup("StringLookup", vocabulary="/etc/passwd"), "file '/etc/passwd' is"),
    "texts": (as_lookup("TextVectorization", vocabulary="/etc/passwd"), "file '/etc/passwd' is"),
    "own split": (as_lookup("TextVectorization", split=FUNCTION), "part 'os.function' is not read"),
    "class": (as_lookup("ClassMethod", cls_symbol="io.gfile.GFile"), "layer 'ClassMethod' is not"),
    "columns": (as_lookup("DenseFeatures", feature_columns=[]), "layer 'DenseFeatures' is not"),
}


@pytest.mark.parametrize(("change", "message"), PLANTED.values(), ids=PLANTED)
def test_a_model_with_code_or_files_is_not_read(keras_run, tmp_path, monkeypatch, change, message):
    from fedpersonal.model.files import read_model

    monkeypatch.chdir(tmp_path)
    about = json.loads((keras_run[0] / "model.json").read_text())["model"]
    described = json.loads(about["keras"])
    change(next(x for x in described["config"]["layers"] if x["class_name"] == "Dense"))
    # JSON has more than one way to write a name.
    text = json.dumps(described).replace('"Lambda"', '"\\u004cambda"')
    with tf.keras.utils.custom_object_scope({"own>Registered": Weighing}):
        with pytest.raises(fp.UserError, match=f"{message}.*give load_run the model itself"):
            read_model({**about, "keras": text})
    assert "this" not in sys.modules and not list(tmp_path.iterdir())


def test_a_loss_with_code_and_what_keras_does_not_write_are_not_read(keras_run):
    from fedpersonal.model.files import read_model

    about = json.loads((keras_run[0] / "model.json").read_text())["model"]
    own = {"class_name": "Own", "config": {}, "module": "this", "registered_name": None}
    for name, value in (("loss", own), ("metrics", [own])):
        with pytest.raises(fp.UserError, match="part 'this.Own' is not read from a file"):
            read_model({**about, name: value})
    described = {**json.loads(about["keras"]), "compile_config": {"optimizer": own}}
    with pytest.raises(fp.UserError, match="has entries that Keras does not write"):
        read_model({**about, "keras": json.dumps(described)})
    with pytest.raises(fp.UserError, match="the model 'Own' is not read"):
        read_model({**about, "keras": json.dumps({**described, "class_name": "Own"})})


def test_another_model_is_refused_by_name(keras_run):
    def load(model, algorithm=FURL):
        return fp.load_run(keras_run[0], model=model, algorithm=algorithm).trained

    nobodys = fp.PartitionedModel(build(), lookups={"items": "item"})
    with pytest.raises(
        fp.UserError, match=r"local variables are \['own/kernel', 'own/bias'\], not"
    ):
        load(nobodys)
    with pytest.raises(fp.UserError, match="local_state.sqlite holds the local variables of anot"):
        load(partitioned(build(units=2)))

    with pytest.raises(fp.UserError, match="global variable 'weighing/vector' .* is missing there"):
        load(partitioned(build(own=True)))
    with pytest.raises(fp.UserError, match="run with method = 'furl', not 'fed_per'"):
        load(partitioned(build()), fp.fed_per(client_optimizer=SGD))


def test_what_is_missing_is_named(keras_run, tmp_path):
    folder, _ = keras_run
    with pytest.raises(fp.UserError, match="program of one's own: give load_run its alg.*, furl"):
        _ = fp.load_run(folder).trained
    with pytest.raises(fp.UserError, match="finetuning_phases = 0, not 1"):
        phase = fp.GradientPhase("all", "all", SGD)
        _ = fp.load_run(folder, algorithm=FURL, finetuning=[phase]).trained
    with pytest.raises(fp.UserError, match="not the folder of a run"):
        fp.load_run(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(fp.UserError, match="the run has not ended"):
        _ = fp.load_run(tmp_path, algorithm=FURL).trained
    for name in ("model.json", "model.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(fp.UserError, match="has no local_state.sqlite"):
        _ = fp.load_run(tmp_path, algorithm=FURL).trained
    (tmp_path / "model.npz").write_bytes((folder / "model.npz").read_bytes()[:99])
    with pytest.raises(fp.UserError, match="model.npz is damaged or was changed"):
        _ = fp.load_run(tmp_path, algorithm=FURL).trained


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
def test_other_values_with_a_right_digest_are_one_line(keras_run, tmp_path, file, change, message):
    for name in ("config.json", "model.json", "model.npz"):
        (tmp_path / name).write_bytes((keras_run[0] / name).read_bytes())
    value = json.loads((tmp_path / file).read_text())
    del value["digest"]
    (value["options"] if file == "config.json" else value).update(change)
    write_json(tmp_path / file, value, checked=True)
    algorithm = None if "task" in change else FURL
    with pytest.raises(fp.UserError, match=message) as caught:
        _ = fp.load_run(tmp_path, algorithm=algorithm).trained
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
def test_other_arrays_with_a_right_digest_are_one_line(keras_run, tmp_path, change, message):
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
        run = fp.load_run(tmp_path, algorithm=FURL)
        if said is None:
            assert run.trained.kept_by(["b", "c"])[0].tolist() == [True, False]
        else:
            with pytest.raises(fp.UserError, match=said):
                _ = run.trained
