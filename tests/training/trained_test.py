"""`TrainedModel`: what it says of clients, and that all ways to ask it agree."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp

NUM_CLIENTS, SEEN, EXAMPLES = 8, 6, 12
KERNEL = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)


def functional():
    """Two inputs, a global lookup and a nested model."""
    x = tf.keras.Input([2], name="x")
    item = tf.keras.Input([], dtype=tf.int32, name="item")
    inner = tf.keras.Sequential(
        [tf.keras.layers.Dense(4, activation="tanh"), tf.keras.layers.Dense(3, name="head")],
        name="nested",
    )
    vector = tf.keras.layers.Embedding(9, 3, name="items")(item)
    product = tf.reduce_sum(inner(x) * vector, -1, keepdims=True)
    return tf.keras.Model({"x": x, "item": item}, product)


def sequential():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Dense(3, activation="tanh", input_shape=[2]),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(1, name="own"),
        ]
    )


def frozen(folder):
    def build():
        x = tf.keras.Input([2], name="x")
        wide = tf.keras.layers.Dense(4, activation="tanh", name="base", trainable=False)(x)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(wide))

    values = {"base/kernel": KERNEL, "base/bias": np.ones(4, np.float32)}
    return build, fp_frozen(folder, values)


def fp_frozen(folder, values):
    from fedpersonal.model.frozen import FrozenVariables

    return FrozenVariables.write(folder, values)


def make_data(model):
    random = np.random.default_rng(2)
    count = NUM_CLIENTS * EXAMPLES
    columns = {
        "x": random.normal(size=(count, 2)).astype(np.float32),
        "item": random.integers(0, 9, count).astype(np.int32),
    }
    name = "x" if "x" in model.input_spec else next(iter(model.input_spec))
    columns[name] = columns["x"]
    return fp.ClientDataset(
        client_ids=[f"c{i}" for i in range(NUM_CLIENTS)],
        offsets=np.arange(NUM_CLIENTS + 1) * EXAMPLES,
        features={n: columns[n] for n in model.input_spec},
        labels=random.normal(size=count).astype(np.float32),
    )


SGD = tf.keras.optimizers.SGD(0.1)
KINDS = ["functional", "sequential", "frozen"]


@pytest.fixture(name="models", scope="module")
def _models(tmp_path_factory):
    build, values = frozen(tmp_path_factory.mktemp("frozen"))
    common = {"metrics": ["RootMeanSquaredError"]}
    return {
        "functional": fp.PartitionedModel(
            functional, local_layers=["nested/head"], lookups={"items": "item"}, **common
        ),
        "sequential": fp.PartitionedModel(sequential, local_layers=["own"], **common),
        "frozen": fp.PartitionedModel(
            build,
            local_layers=["own/bias"],
            frozen_layers=["base"],
            frozen=values,
            **common,
        ),
    }


@pytest.fixture(name="trained_of", scope="module")
def _trained_of(models):
    """Trains each model once, with what the first clients keep or with nothing kept."""
    made = {}
    algorithms = {
        "kept": fp.furl(client_optimizer=SGD),
        "rebuilt": fp.fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD),
    }

    def trained_of(kind, local_state):
        if (kind, local_state) not in made:
            model = models[kind]
            data = make_data(model)
            seen = data.subset(np.arange(SEEN))
            trainer = fp.Trainer(model, algorithms[local_state], seen, batch_size=4)
            made[kind, local_state] = trainer.fit(rounds=2, progress=False), data
        return made[kind, local_state]

    yield trained_of
    for trained, _ in made.values():
        trained.close()


def split(data):
    return fp.split_support_query(data, batch_size=4)


def squared_error(predictions, labels):
    return float(np.mean((predictions - labels) ** 2))


@pytest.mark.exhaustive(but=("frozen-kept",))
@pytest.mark.parametrize(
    ("kind", "local_state"),
    [
        ("functional", "kept"),
        ("functional", "rebuilt"),
        ("sequential", "rebuilt"),
        ("frozen", "kept"),
    ],
)
def test_a_client_is_asked_as_it_is_evaluated(trained_of, kind, local_state):
    trained, data = trained_of(kind, local_state)
    support, query = split(data)
    table = trained.evaluate(query, support=support)
    assert list(table["client"]) == list(data.client_ids)
    keeps = local_state == "kept"
    assert list(table["has_kept"]) == [keeps and i < SEEN for i in range(NUM_CLIENTS)]
    for i in (0, 3, NUM_CLIENTS - 1):
        client = f"c{i}"
        features, labels = query.client(i)
        found = trained.predict(features, client=client, support=support)
        assert found.shape == labels.shape
        assert squared_error(found, labels) == pytest.approx(table["loss_after"][i], rel=1e-4)


@pytest.mark.parametrize("start", ["kept", "rebuilt", "updated"])
def test_what_is_kept_may_be_rebuilt_or_brought_up_to_date(trained_of, start):
    """By gradient descent of NumPy on the support set, the shared part as it is."""
    trained, data = trained_of("frozen", "kept")
    support, query = split(data)
    table = trained.evaluate(query, support=support, start=start)
    assert list(table["has_kept"]) == [i < SEEN for i in range(NUM_CLIENTS)]
    kernel = trained.weights["own/kernel"]
    for i in range(NUM_CLIENTS):
        has_kept = i < SEEN and start != "rebuilt"
        bias = float(trained.values(f"c{i}" if has_kept else None)["own/bias"][0])

        def outputs(features, bias):
            return (np.tanh(features["x"] @ KERNEL + 1) @ kernel)[:, 0] + bias

        if i >= SEEN or start != "kept":
            features, labels = support.client(i)
            for first in range(0, len(labels), 4):
                error = outputs(features, bias) - labels
                bias -= 0.1 * 2 * error[first : first + 4].mean()
        features, labels = query.client(i)
        expected = outputs(features, bias)
        assert table["loss_after"][i] == pytest.approx(squared_error(expected, labels), rel=1e-4)
        found = trained.predict(features, client=f"c{i}", support=support, start=start)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive(but=("c0-functional", "None-frozen", "None-sequential"))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", ["c0", None])
def test_keras_and_a_saved_model_predict_the_same(trained_of, kind, client, tmp_path):
    trained, data = trained_of(kind, "kept")
    features, _ = data.client(0)
    expected = trained.predict(features, client=client)
    model = trained.model
    inputs = model.arrange({n: tf.constant(features[n]) for n in model.input_spec})
    own = trained.to_keras(client)
    np.testing.assert_allclose(own(inputs)[:, 0], expected, rtol=1e-5, atol=1e-6)
    trained.export(tmp_path, client)
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(loaded(inputs)[:, 0], expected, rtol=1e-5, atol=1e-6)
    # A client's local variables are for nobody else.
    files = [path for path in tmp_path.rglob("*")]
    is_hidden = [not path.stat().st_mode & 0o077 for path in files]
    assert len(files) > 3 and set(is_hidden) == {client is not None}
    other = trained.predict(features, client="c1")
    assert not np.allclose(expected, other)


def test_an_exported_model_trains_and_saves_as_any_other(trained_of, tmp_path):
    trained, data = trained_of("sequential", "kept")
    features, labels = data.client(0)
    (x,) = features.values()
    model = trained.to_keras("c0")
    model.compile("sgd", "mse")
    before = model.evaluate(x, labels, verbose=0)
    model.fit(x, labels, epochs=20, verbose=0)
    assert model.evaluate(x, labels, verbose=0) < before
    model.save(tmp_path / "own.keras")
    again = tf.keras.models.load_model(tmp_path / "own.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)


def test_overall_counts_examples_not_clients(trained_of):
    """A root of a mean is no mean of roots."""
    trained, data = trained_of("functional", "kept")
    uneven = data.filter_examples(data.example_positions < 2 + data.example_clients)
    support, _ = split(data)
    table = trained.evaluate(uneven, support=support)
    assert list(table["num_examples"]) == [2 + i for i in range(NUM_CLIENTS)]
    overall = trained.overall(uneven, support=support)
    loss = np.average(table["loss_after"], weights=table["num_examples"])
    assert overall["loss"] == pytest.approx(loss, rel=1e-5)
    assert overall[trained.model.metrics[0].name] == pytest.approx(loss**0.5, rel=1e-5)
    results = trained.results(uneven, support=support)
    assert results.overall() == overall


def test_columns_are_those_that_are_documented(trained_of):
    trained, data = trained_of("functional", "rebuilt")
    table = trained.evaluate(data)
    name = trained.model.metrics[0].name
    assert list(table) == [
        *("client", "num_examples", "has_kept"),
        *(f"{name}_before", "loss_before", f"{name}_after", "loss_after", "round"),
    ]
    assert (table["num_examples"] == EXAMPLES // 3).all()  # The second of three batches.
    guessed = trained.evaluate(data, baseline={name: range(NUM_CLIENTS)})
    assert {*guessed} == {*table, f"{name}_guess"}
    assert list(guessed[f"{name}_guess"]) == list(range(NUM_CLIENTS))
    with pytest.raises(
        fp.UserError, match=f"baseline has 'auc', which is no metric .*: loss, {name}"
    ):
        trained.evaluate(data, baseline={"auc": [0.5] * NUM_CLIENTS})
    with pytest.raises(fp.UserError, match=rf"baseline\['{name}'\] must have the shape \[8\], got"):
        trained.evaluate(data, baseline={name: 0.5})


def test_clients_that_have_kept_need_no_support_set(trained_of):
    trained, data = trained_of("functional", "kept")
    table = trained.evaluate(data)
    expected = [EXAMPLES if i < SEEN else EXAMPLES // 3 for i in range(NUM_CLIENTS)]
    assert list(table["num_examples"]) == expected


def test_clients_may_come_in_any_order(trained_of):
    trained, data = trained_of("functional", "kept")
    support, query = split(data)
    order = np.array([7, 2, 6, 0])
    table = trained.evaluate(query, support=support).set_index("client")
    mixed = trained.evaluate(query.subset(order), support=support).set_index("client")
    assert list(mixed.index) == [f"c{i}" for i in order]
    for column in table:
        np.testing.assert_allclose(
            mixed[column].astype(float), table.loc[mixed.index, column].astype(float), rtol=1e-5
        )


@pytest.mark.exhaustive(but=("rebuilt",))
@pytest.mark.parametrize("local_state", ["kept", "rebuilt"])
def test_finetuning_moves_a_copy_of_the_whole_model(trained_of, local_state):
    trained, data = trained_of("functional", local_state)
    phase = fp.GradientPhase("all", "support", SGD, epochs=3)
    tuned = dataclasses.replace(trained, finetuning=(phase,))
    support, query = split(data)
    table = tuned.evaluate(query, support=support)
    without = trained.evaluate(query, support=support)
    assert (table["loss_after"] != without["loss_after"]).all()
    for i in (0, NUM_CLIENTS - 1):
        features, labels = query.client(i)
        found = tuned.predict(features, client=f"c{i}", support=support)
        assert squared_error(found, labels) == pytest.approx(table["loss_after"][i], rel=1e-4)
        values = tuned.values(f"c{i}", support=support)
        before = trained.values(f"c{i}", support=support)
        assert values.keys() == before.keys() == {v.name for v in trained.model.variables}
        for name in values:
            assert (values[name] != before[name]).any()
    # Of the table, a client moves the rows that its examples look up, and no others.
    name = "items/embeddings"
    looked_up = np.isin(np.arange(9), support.client(NUM_CLIENTS - 1)[0]["item"])
    moved = (values[name] != trained.weights[name]).any(1)
    np.testing.assert_array_equal(moved, looked_up)
    assert not looked_up.all()
    with pytest.raises(fp.UserError, match="client 'c0' .*; give support"):
        tuned.predict(features, client="c0")


def test_mistakes_are_named(trained_of):
    trained, data = trained_of("functional", "kept")
    features, _ = data.client(0)
    with pytest.raises(fp.UserError, match="client 'c7' has kept no local variables; give support"):
        trained.predict(features, client="c7")
    with pytest.raises(fp.UserError, match="client 'c0' trains its model first; give support"):
        trained.predict(features, client="c0", start="updated")
    with pytest.raises(fp.UserError, match="start is 'fresh'; it must be one of kept, rebuilt"):
        trained.evaluate(data, start="fresh")
    with pytest.raises(fp.UserError, match="support has no client 'c2'; its 2 clients are 'c0'"):
        trained.evaluate(data, support=data.subset([0, 1]))
    with pytest.raises(fp.UserError, match="support has 8 clients; choose one"):
        trained.predict(features, support=data)
    with pytest.raises(fp.UserError, match="lack the model's input 'item'; got .'x'."):
        trained.predict({"x": features["x"]})
    with pytest.raises(fp.UserError, match="no client has anything to predict: .* below 4"):
        trained.evaluate(data.subset([7]).head(4))
