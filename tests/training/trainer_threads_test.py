"""Trainers in threads, beside each other, and after a fork."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp

LAYERS = tf.keras.layers


@pytest.fixture(name="data", scope="module")
def _data():
    random = np.random.default_rng(0)
    x = random.normal(size=(48, 2)).astype(np.float32)
    clients = [f"c{i}" for i in range(6)]
    return fp.ClientDataset(clients, np.arange(7) * 8, {"x": x}, x.sum(1))


def keras_model():
    x = tf.keras.Input([2], name="x")
    hidden = LAYERS.Dropout(0.1)(LAYERS.Dense(3, activation="tanh", name="shared")(x))
    model = tf.keras.Model({"x": x}, LAYERS.Dense(1, name="own")(hidden))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def make_trainer(data, rate=0.1):
    model = fp.PartitionedModel(keras_model, local_layers=["own"])
    algorithm = fp.furl(client_optimizer=tf.keras.optimizers.SGD(rate))
    return fp.Trainer(model, algorithm, data, clients_per_round=3, batch_size=4)


@pytest.mark.exhaustive
def test_threads_train_what_one_after_another_does(data, not_compiled):
    """While a thread builds models for a trainer, others build and compile theirs."""

    def train(rate):
        with make_trainer(data, rate).fit(rounds=2, progress=False) as trained:
            return {**trained.weights, "after": trained.evaluate(data)["mae_after"]}

    begin = threading.Barrier(3)

    def train_beside(rate):
        begin.wait()
        return train(rate)

    def build_beside():
        begin.wait()
        models = [keras_model() for _ in range(4)]
        for model in models:
            fp.PartitionedModel(model, local_layers=["own"])
        return all(model._is_compiled for model in models)

    rates = (0.1, 0.2)
    expected = list(map(train, rates))
    with ThreadPoolExecutor(3) as threads:
        are_compiled = threads.submit(build_beside)
        found = list(threads.map(train_beside, rates))
        assert are_compiled.result()
    for one, other in zip(found, expected):
        for name, value in other.items():
            np.testing.assert_array_equal(one[name], value, err_msg=name)


def _train_after_fork(data, trainer, told):
    told.send([])  # It has begun.
    uses = {
        "build": lambda: make_trainer(data),
        "fit": lambda: trainer.fit(rounds=1, progress=False),
        "train": lambda: fp.Trainer(trainer.model, trainer.algorithm, data),
        "predict": lambda: trainer.untrained(),
    }
    for name, use in uses.items():
        try:
            use()
        except fp.UserError as error:
            told.send([name, str(error)])


def test_a_fork_is_refused_and_does_not_hang(data, not_compiled):
    trainer = make_trainer(data)
    trainer.fit(rounds=1, progress=False).close()
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=_train_after_fork, args=(data, trainer, there))
    child.start()
    try:
        assert here.poll(60) and here.recv() == []
        for name in ("build", "fit", "train", "predict"):
            assert here.poll(60), f"{name} hangs"
            who, message = here.recv()
            assert who == name and "this process was forked after TensorFlow had run" in message
            assert "\n" not in message
    finally:
        child.kill()
        child.join()


@pytest.mark.exhaustive
def test_fit_leaves_no_file_open(data, not_compiled, tmp_path):
    trainer = make_trainer(data)
    before = None
    for rounds in (1, 2):
        for folder in ("one", "other", None):
            folder = folder and tmp_path / folder
            trainer.fit(rounds=rounds, folder=folder, progress=False).close()
        before = before or sorted(os.listdir("/proc/self/fd"))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_folder_takes_one_fit_at_a_time(data, not_compiled, tmp_path):
    trainer = make_trainer(data)
    refused = []

    def validate(trained):
        del trained
        with ThreadPoolExecutor(1) as thread:
            job = thread.submit(trainer.fit, rounds=1, folder=tmp_path, progress=False)
            refused.append(str(job.exception()))
        return {"loss": 0.0}

    trainer.fit(rounds=1, folder=tmp_path, validate=validate, progress=False).close()
    assert refused == [f"Another run of this program is running in {tmp_path}; wait or end it."]
    with ThreadPoolExecutor(1) as thread:
        trained = thread.submit(trainer.fit, rounds=2, folder=tmp_path, progress=False).result()
    with trained:  # It is not the thread's alone.
        assert trained.kept_by(data.client_ids)[0].any()
