"""A program of a user's own that trains FURL, stops, goes on, and evaluates what clients keep."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.tff.optimizers import build_sgdm


def build_model():
    x = tf.keras.Input([2], name="x")
    user = tf.keras.Input([], dtype=tf.int32, name="user")
    taste = tf.keras.layers.Embedding(1, 2, name="taste")(user)
    return tf.keras.Model({"x": x, "user": user}, tf.keras.layers.Dot(axes=1)([x, taste]))


def train(folder, model, dataset, *, total_rounds):
    """What the program does: returns the clients' results after the last round."""
    sgd, execution = build_sgdm, fp.Execution(batch_size=5)
    algorithm = fp.furl(client_optimizer=sgd(0.1))
    process = fp.build_process(model, algorithm, execution=execution, server_optimizer=sgd(1.0))
    sampler = fp.ClientSampler(num_clients=4, clients_per_round=3, seed=0)
    with contextlib.closing(fp.LocalStateStore.open(folder / "s", model.local_variables)) as store:
        state = fp.run_rounds(
            process=fp.Rounds(process, store),
            cohort_fn=lambda number: fp.make_cohort(
                model, dataset, sampler.sample(number), execution=execution
            ),
            run_folder=fp.RunFolder.open(folder, {}),
            total_rounds=total_rounds,
            saved_in=fp.StoreCheckpoints(store),
        ).state
        nothing = dataset.filter_examples(np.zeros(dataset.num_examples, bool))
        evaluate = fp.build_evaluation(model, (), nothing, dataset, batch_size=5, with_kept=True)
        kept = fp.read_kept(store, state, dataset.client_ids.tolist())
        return kept, evaluate(state.global_model_weights.trainable, kept)


@pytest.mark.exhaustive
def test_furl_by_public_pieces(tmp_path, make_dataset):
    """Each client has a taste of its own, which nobody else can tell."""
    random = np.random.default_rng(3)
    tastes = random.normal(size=(4, 2)).astype(np.float32)
    xs = random.normal(size=(4, 20, 2)).astype(np.float32)
    dataset = make_dataset(
        [({"x": x, "user": np.zeros(20, np.int32)}, x @ taste) for x, taste in zip(xs, tastes)]
    )

    def add_shared():
        base = build_model()
        shared = tf.keras.layers.Dense(1, name="shared", kernel_initializer="ones")
        return tf.keras.Model(base.input, shared(base.output))

    model = fp.PartitionedModel(add_shared, local_layers=["taste"], lookups={"taste": "user"})
    train(tmp_path, model, dataset, total_rounds=10)
    (known, _), results = train(tmp_path, model, dataset, total_rounds=40)
    assert known.all()
    loss = {stage: results.per_client()[f"loss_{stage}"] for stage in ("before", "after")}
    assert (loss["after"] < 0.1 * loss["before"]).all() and loss["after"].max() < 0.02
