"""Clients' data against a model."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import evaluate_clients
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.model.examples import check_data
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
        ({"x": X[:, :2]}, LABELS, {}, r"'x' has shape \(2,\) an example.*has \(3,\)"),
        ({"x": X[:, 0]}, LABELS, {}, r"'x' has shape \(\) an example.*has \(3,\)"),
        ({"word": WORD.astype(str)}, LABELS, {}, "'word' has dtype <U.*is int32. Make numbers"),
        ({"word": WORD * 1.5}, LABELS, {}, "'word' has dtype float64.*fractions would be lost"),
        ({}, X, {}, r"labels has shape \(3,\) an example; the model's label_spec has \(\). Give"),
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
        (lambda: fp.clients_from_datasets(BATCHES), "takes a data set for each client, .* alone"),
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
