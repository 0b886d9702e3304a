"""Clients' data, and what a model predicts, against the model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import evaluate_clients
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.model.examples import check_data, check_features
from fedpersonal.model.partition import PartitionedModel

LAYERS = tf.keras.layers
AVERAGE = fp.fed_avg(client_optimizer=tf.keras.optimizers.SGD(0.1))
PACKED = Execution(batch_size=2, clients_per_shard=2)


def one_input():
    return tf.keras.Sequential([LAYERS.Dense(1, input_shape=(3,))])


def two_inputs():
    x, word = tf.keras.Input([3], name="x"), tf.keras.Input([2], name="word", dtype=tf.int32)
    table = LAYERS.Flatten()(LAYERS.Embedding(5, 2)(word))
    return tf.keras.Model({"x": x, "word": word}, LAYERS.Dense(1)(tf.concat([x, table], 1)))


TWO = PartitionedModel(two_inputs)
X, WORD = np.ones([4, 3], np.float32), np.ones([4, 2], np.int32)
LABELS = np.arange(4, dtype=np.float32)


def test_a_single_feature_is_the_single_input(make_dataset):
    dataset = make_dataset([({"pixels": X[:3]}, LABELS[:3]), ({"pixels": X[3:]}, LABELS[3:])])
    model = PartitionedModel(one_input)
    matched = check_data(model, dataset)
    assert list(matched.features) == ["dense_input"] and matched is check_data(model, dataset)
    (shard,) = make_cohort(model, dataset, [0, 1], execution=PACKED).examples
    assert shard["features"]["dense_input"].shape == (2, 2, 2, 3)
    weights = model.initial_global_values()
    results = evaluate_clients(model, (), weights, dataset, dataset, batch_size=2)
    kernel, _ = weights.values()
    expected = np.square(kernel.sum() - LABELS).mean()
    assert results.overall()["loss"] == pytest.approx(expected, rel=1e-5)


def test_data_that_fits_is_itself(make_dataset):
    dataset = make_dataset([({"x": X, "word": WORD, "time": LABELS}, LABELS.astype(np.int64))])
    assert check_data(PartitionedModel(two_inputs), dataset) is dataset


OF_CLASSES = {"label_spec": tf.TensorSpec([None], tf.int32)}


@pytest.mark.parametrize(
    ("features", "labels", "options", "message"),
    [
        (
            {"x": X, "wrod": WORD},
            LABELS,
            {},
            r"no feature for the model's input 'word': its features are \['wrod', 'x'\], the "
            r"model's inputs \['word', 'x'\]",
        ),
        ({"x": X[:, :2]}, LABELS, {}, r"'x' has shape \(2,\) per example.*has \(3,\)"),
        ({"x": X[:, 0]}, LABELS, {}, r"'x' has shape \(\) per example.*has \(3,\)"),
        ({"word": WORD.astype(str)}, LABELS, {}, "'word' has dtype <U.*is int32. Make numbers"),
        ({"word": WORD * 1.5}, LABELS, {}, "'word' has dtype float64.*fractions would be lost"),
        ({}, X, {}, r"labels has shape \(3,\) per example; the model's label_spec has \(\). Give"),
        ({}, LABELS.astype(str), {}, "labels has dtype <U.*label_spec is float32"),
        ({}, LABELS, OF_CLASSES, "labels has dtype float32.*or give.*another label_spec"),
        (
            *(
                {},
                LABELS.astype(int) + 9,
                {**OF_CLASSES, "loss": "sparse_categorical_crossentropy"},
            ),
            r"labels must be 0 to 0, .*; client '\w+' has \d+",
        ),
        ({}, -1 - LABELS, {"loss": tf.keras.losses.BinaryCrossentropy()}, "be 0 to 1.*has -"),
        ({"sample_weight": LABELS}, LABELS, {}, "sample_weight is a feature.*would be ignored"),
    ],
)
def test_data_that_is_refused(make_dataset, features, labels, options, message):
    if "wrod" not in features:
        features = {"x": X, "word": WORD, **features}
    dataset = make_dataset([(features, labels)])
    model = PartitionedModel(two_inputs, **options)
    with pytest.raises(UserError, match=message):
        make_cohort(model, dataset, [0], execution=PACKED)


class Table(LAYERS.Layer):
    """A table of four rows that is no `Embedding`."""

    def build(self, shape):
        self.rows = self.add_weight("rows", [4, 2], initializer="ones")

    def call(self, ids):
        return tf.gather(self.rows, ids)


class InnerTable(Table):
    """Its rows are selected within a function, in a loop and in a branch."""

    @tf.function
    def call(self, ids):
        return tf.map_fn(self.one, ids, fn_output_signature=tf.float32)

    def one(self, at):
        return tf.cond(at > 0, lambda: tf.gather(self.rows, at), lambda: self.rows[0])


def many_tables():
    """Selects rows by ids as they come, computed, in two dimensions and within functions."""
    kinds = {"item": "int32", "day": "float32", "pair": "int64", "next": "int64", "flag": "bool"}
    kinds |= {"place": "int32", "inner": "int32", "word": "int32"}
    shapes = {"pair": [2], "place": [2], "word": [1]}
    ins = {n: tf.keras.Input(shapes.get(n, []), name=n, dtype=kind) for n, kind in kinds.items()}
    vectors = [
        LAYERS.Embedding(4, 2, name="items")(ins["item"]),
        LAYERS.Embedding(4, 2, name="days")(ins["day"]),
        Table(name="pairs")(LAYERS.Reshape([2])(ins["pair"]))[:, 0],
        LAYERS.Embedding(4, 2, name="nexts")(ins["next"] + ins["pair"][:, 1]),
        LAYERS.Lambda(lambda ids: tf.gather_nd(tf.zeros([4, 2, 2]), ids))(ins["place"]),
        InnerTable()(ins["inner"]),
        LAYERS.CategoryEncoding(4, output_mode="one_hot")(ins["word"]),
    ]
    both = tf.concat([*vectors, tf.cast(ins["flag"], tf.float32)[:, None]], 1)
    return tf.keras.Model(ins, LAYERS.Dense(3)(both))


TABLES = PartitionedModel(
    many_tables,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    lookups={"items": "item"},
)
GOOD = {
    "item": np.array([0, 3, 1]),
    "day": np.array([0, 3.5, 1]),
    "pair": np.array([[0, 0], [3, 3], [1, 0]]),
    "next": np.array([3, 0, 1], np.uint64),
    "flag": np.array([True, False, True]),
    "place": np.array([[0, 0], [3, 1], [1, 1]]),
    "inner": np.array([0, 3, 1]),
    "word": np.array([[0], [3], [1]]),
}
CLASSES = np.array([0, 2, 1])


def test_values_that_fit_are_taken(make_dataset):
    dataset = make_dataset([(GOOD, CLASSES)])
    assert check_data(TABLES, dataset) is dataset
    features = check_features(TABLES, {**GOOD, "time": CLASSES})
    assert {n: v.dtype.name for n, v in features.items()} == {
        n: spec.dtype.name for n, spec in TABLES.input_spec.items()
    }
    for name, column in features.items():
        np.testing.assert_array_equal(column, GOOD[name])
    # A single array is the only input's, and so is one of another name.
    one = PartitionedModel(one_input)
    for given in (X, X.tolist(), {"pixels": X}, tf.constant(X)):
        np.testing.assert_array_equal(check_features(one, given)["dense_input"], X)
    frame = pd.DataFrame({n: [*v] for n, v in GOOD.items()})
    np.testing.assert_array_equal(check_features(TABLES, frame)["pair"], GOOD["pair"])


NUMBERS = [
    ({"item": np.array([0, 4, 1])}, r"must be 0 to 3, as 'items/embeddings' has 4 rows; WHO has 4"),
    ({"item": np.array([0, -1, 1])}, r"'item'\]? must be 0 to 3, .* WHO has -1"),
    ({"item": np.array([0, 2**32 + 1, 1])}, "to 2147483647, as int32 holds; WHO has 4294967297"),
    ({"item": np.array([0, 1.9, 1])}, "float64.*is int32, and fractions would be lost"),
    ({"item": np.array(["0", "1", "2"])}, "has dtype <U1; .*is int32. Make numbers of it"),
    ({"item": np.array([[0], [1], [1]])}, r"has shape \(1,\) per example"),
    ({"day": np.array([0, 4.0, 1])}, "must be 0 to 3, as 'days/embeddings' .* WHO has 4.0"),
    ({"day": np.array([0, np.nan, 1])}, "must be 0 to 3, as 'days/embeddings' .* WHO has nan"),
    ({"day": np.array([0, 1e300, 1])}, "at most 3.4e.38, as float32 holds; WHO has 1e.300"),
    ({"pair": GOOD["pair"] + [[0, 0], [1, 0], [0, 0]]}, "as 'pairs/rows' has 4 rows; WHO has 4"),
    ({"place": GOOD["place"] + [[0, 0], [0, 1], [0, 0]]}, "of WHO selects row 2 of .*rows 0 to 1"),
    ({"next": np.array([3, 1, 1])}, "next.* of WHO selects row 4 of 'nexts/embeddings', which has"),
    ({"next": np.array([3, -4, 1])}, "next.* of WHO selects row -1 of 'nexts/embeddings'"),
    ({"next": np.array([3, 2**63, 1], np.uint64)}, "as int64 holds; WHO has 9223372036854775808"),
    ({"inner": np.array([0, 4, 1])}, r"inner.* of WHO is refused .*: .*4 is not in \[0, 4\)"),
    ({"inner": np.array([-1, 4, 1])}, r"inner.* of WHO is refused .*: .*4 is not in \[0, 4\)"),
    (
        {"word": np.array([[0], [4], [1]])},
        "word.* of WHO is refused.*: assert.* range 0 <= values < ",
    ),
    ({"flag": np.array([0, 2, 1])}, "must be 0 to 1, as bool holds; WHO has 2"),
]


@pytest.mark.parametrize(("changes", "message"), NUMBERS)
def test_a_number_that_the_model_would_change_is_refused(make_dataset, changes, message):
    columns = {**GOOD, **changes}
    clients = [({n: v[i : i + 1] for n, v in columns.items()}, CLASSES[i : i + 1]) for i in (0, 1)]
    with pytest.raises(UserError, match=message.replace("WHO", "client 'client1'")) as caught:
        check_data(TABLES, make_dataset(clients))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=message.replace("WHO", "row 1")):
        check_features(TABLES, columns)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [0, 3, 1],
            "labels must be 0 to 2, as required by the model's loss.*; client 'client0' has 3.0",
        ),
        ([0, 1.5, 1], "labels must be whole numbers, as classes are; client 'client0' has 1.5"),
        ([0, np.nan, 1], "labels must be whole numbers, .* has nan"),
    ],
)
def test_a_class_that_is_none_is_refused(make_dataset, labels, message):
    with pytest.raises(UserError, match=message):
        check_data(TABLES, make_dataset([(GOOD, np.array(labels, float))]))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (X, "features must map the model's inputs, word, x, to arrays .*, not be ndarray"),
        (None, "features must map .*, not be NoneType"),
        (pd.DataFrame({"x": [1.0]}), "features is a DataFrame without columns word, x; give arr"),
        ({"time": X}, r"features lack the model's input 'word', 'x'; got \['time'\]"),
        ({"x": X, "word": WORD[:2]}, r"one row per example: .*has 2 rows, .*has 4 rows"),
        ({"x": X[0, 0], "word": WORD}, r"features\['x'\] is one value"),
        ({"x": [[1], [2, 3]], "word": WORD}, r"features\['x'\] must have rows of one shape"),
    ],
)
def test_features_that_are_refused(features, message):
    with pytest.raises(UserError, match=message) as caught:
        check_features(TWO, features)
    assert "\n" not in str(caught.value)


def test_numbers_that_are_not_finite_are_said_once(make_dataset, caplog):
    dataset = make_dataset([({"x": X, "word": WORD}, LABELS)])
    dataset.features["x"][2, 1] = np.inf
    for _ in range(2):
        check_data(TWO, dataset.subset([0]))
    (record,) = caplog.records
    assert "feature 'x' has NaN or infinite values in 1 example, first of client 'client0'" in (
        record.getMessage()
    )


def of_texts():
    text = tf.keras.Input([1], dtype=tf.string, name="text")
    ids = LAYERS.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")(text)
    return tf.keras.Model({"text": text}, LAYERS.Dense(1)(ids))


def mixed():
    x = tf.keras.Input([3], name="x")
    return tf.keras.Model(x, LAYERS.Dense(1, dtype="mixed_float16", name="half")(x))


BATCHES = tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(2)


def trainer(**parts):
    usual = {"model": PartitionedModel(one_input), "algorithm": AVERAGE, "train": None}
    return fp.Trainer(**{**usual, **parts})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PartitionedModel(of_texts), "input 'text' is string; .* Encode them first"),
        (lambda: PartitionedModel(of_texts()), "input 'text' is string; .* Encode them first"),
        (
            lambda: PartitionedModel(one_input, label_spec=tf.TensorSpec([None], tf.string)),
            "label_spec is string; .* must be numbers",
        ),
        (lambda: PartitionedModel(mixed), "layer 'half' computes in float16: mixed precision"),
        (lambda: PartitionedModel(3), "build_model must be a function.*or a built.*, not int."),
        (
            lambda: PartitionedModel(one_input, local_layer=[]),
            "'local_layer'; did you mean local_l",
        ),
        (lambda: trainer(model=one_input), "model must be a Part.*, not the function one_input"),
        (lambda: trainer(model=one_input()), "model must be a PartitionedModel.*, not Sequential"),
        (lambda: trainer(algorithm=fp.fed_avg), "algorithm must be .*, not the function fed_avg"),
        (lambda: trainer(train=BATCHES), "train must be a .*clients_from_da.*, not .*BatchDataset"),
        (
            lambda: trainer(client_per_round=3),
            "'client_per_round'; did you mean clients_per_round?",
        ),
        (
            lambda: fp.clients_from_datasets(BATCHES),
            "takes a dataset for each client, .* single",
        ),
        (lambda: fp.clients_from_datasets([[(X, LABELS, LABELS)]]), "'sample_weight'.*be ignored"),
        (lambda: fp.clients_from_datasets([[{"x": X, "y": X, "w": X}]]), "it has .'x', 'y', 'w'."),
        (lambda: fp.fed_avg(client_optimiser=None), "'client_optimiser'; did you mean client_opt"),
        (lambda: fp.fedavg, "no attribute 'fedavg'; did you mean fed_avg?"),
    ],
)
def test_mistakes_are_refused_in_a_line_before_anything_is_built(make, message):
    with pytest.raises((UserError, TypeError, AttributeError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
