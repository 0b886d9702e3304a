"""Each public method of a loaded run, as the first thing that a process does with TensorFlow."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.model.frozen import FrozenVariables

HERE = pathlib.Path(__file__).parent


def build_model():
    x = tf.keras.Input([2], name="x")
    item = tf.keras.Input([], dtype=tf.int32, name="item")
    both = tf.keras.layers.Concatenate()([x, tf.keras.layers.Embedding(5, 2, name="items")(item)])
    wide = tf.keras.layers.Dense(3, activation="tanh", name="fixed", trainable=False)(both)
    return tf.keras.Model({"x": x, "item": item}, tf.keras.layers.Dense(1, name="own")(wide))


def make_pieces():
    """Returns what `load_run` takes: every optimizer is one of Keras'."""
    values = {"fixed/kernel": np.full([4, 3], 0.5, np.float32), "fixed/bias": np.ones(3, "float32")}
    model = fp.PartitionedModel(
        build_model,
        local_layers=["own"],
        frozen_layers=["fixed"],
        frozen=FrozenVariables.of(values),
        loss=tf.keras.losses.Huber(),
        metrics=[tf.keras.metrics.RootMeanSquaredError()],
        lookups={"items": "item"},
    )
    sgd, legacy = tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.legacy.SGD(0.05)
    falling = fp.ScheduledOptimizer(sgd, fp.LinearDecay(9))
    finetuning = [fp.GradientPhase("all", "all", sgd, optimizers={"own": legacy})]
    return {
        "model": model,
        "algorithm": fp.fed_per(client_optimizer=falling),
        "finetuning": finetuning,
    }


def make_data():
    random = np.random.default_rng(0)
    features = {
        "x": random.normal(size=(48, 2)).astype(np.float32),
        "item": random.integers(0, 5, 48).astype(np.int32),
    }
    return fp.ClientDataset([*"abcdef"], np.arange(7) * 8, features, features["x"].sum(1))


DATA = make_data()
ROWS = {name: column[:3] for name, column in DATA.features.items()}
SEEN = DATA.subset([0, 1])
SUPPORT = {"client": "a", "support": DATA.subset([0, 5])}

# What each method is called with; a method that is missing here fails the test.
TRAINED = {
    "evaluate": lambda trained: trained.evaluate(SEEN),
    "export": lambda trained: trained.export("exported", **SUPPORT),
    "overall": lambda trained: trained.overall(SEEN, support=SEEN, start="rebuilt"),
    "pack": lambda trained: trained.pack(SEEN, SEEN, has_kept=False)(trained.weights).overall(),
    "personalization": lambda trained: len(trained.personalization(True)),
    "predict": lambda trained: trained.predict(ROWS, **SUPPORT),
    "report": lambda trained: trained.report().name,
    "results": lambda trained: trained.results(SEEN).overall(),
    "test": lambda trained: trained.test(SEEN).overall(),
    "to_keras": lambda trained: trained.to_keras(**SUPPORT).predict(ROWS, verbose=0)[:, 0],
    "values": lambda trained: trained.values(**SUPPORT, start="updated"),
    "close": lambda trained: trained.close(),
}
LOADED = {
    "boundary": lambda run: run.boundary,
    "config": lambda run: run.config["options"],
    "metrics": lambda run: run.metrics,
    "metrics_digest": lambda run: run.metrics_digest(),
    "per_client": lambda run: run.per_client,
    "per_client_digest": lambda run: run.per_client_digest,
    "summary": lambda run: run.summary["test"],
    "trained": lambda run: run.trained.round_number,
}


def call(name):
    # One process at a time holds the store of what clients keep.
    run = fp.load_run(shutil.copytree("run", f"run_{name}"), **make_pieces())
    return name, TRAINED[name](run.trained) if name in TRAINED else LOADED[name](run)


def call_all(names):
    """Calls each in a process that has imported TensorFlow and run nothing: a fork."""
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        return dict(pool.imap_unordered(call, names))


def public(kind):
    hidden = {field.name for field in dataclasses.fields(kind)} if kind is fp.TrainedModel else ()
    return {name for name in dir(kind) if name[0] != "_" and name not in hidden}


def test_each_public_method_is_called():
    assert public(fp.TrainedModel) == set(TRAINED)
    assert public(fp.LoadedRun) == set(LOADED)


@pytest.mark.exhaustive
def test_each_can_be_the_first_call_of_a_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = fp.Trainer(train=DATA.subset([0, 1, 2, 3]), batch_size=4, **make_pieces())
    with trainer.fit(rounds=1, folder="run", progress=False) as trained:
        expected = trained.test(SEEN).overall()
    code = (
        "import pickle, sys; import first_calls_test as here;"
        "pickle.dump(here.call_all([*here.TRAINED, *here.LOADED]), open('made', 'wb'))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = pickle.loads((tmp_path / "made").read_bytes())
    assert made["test"] == made["results"] == expected
    assert made["summary"]["loss"] == expected["loss"]
    np.testing.assert_allclose(made["predict"], made["to_keras"], rtol=1e-5)
    tested = made["per_client"]
    pd.testing.assert_frame_equal(made["evaluate"][[*tested]], tested, check_dtype=False)
