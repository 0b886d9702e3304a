"""Tables reduced to the rows in use, and the models for which that would be something else."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.model.lookups import check_lookups, count_ids, fetch_rows
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.tff.optimizers import build_sgdm

LAYERS = tf.keras.layers
TABLE = "table/embeddings"


def words(*, twice=False, use=lambda table, word: table(word), **options):
    """Four words an example."""

    def build_model():
        word = tf.keras.Input([4], dtype=tf.int32, name="word")
        table = LAYERS.Embedding(9, 3, name="table", **options)
        vectors = LAYERS.GlobalAveragePooling1D()(use(table, word))
        if twice:
            position = tf.reduce_sum(tf.cast(word, tf.float32), axis=1, keepdims=True)
            vectors = LAYERS.Concatenate()([vectors, position])
        return tf.keras.Model({"word": word}, LAYERS.Dense(1, name="head")(vectors))

    return PartitionedModel(build_model, lookups={"table": "word"})


def factorization(*tables):
    return PartitionedModel(
        matrix_factorization(num_items=4, num_users=2, embedding_dim=2, use_biases=True, l2=1.0),
        lookups={table: table.split("_")[0] for table in tables},
    )


def test_rows_are_each_clients_own_where_it_has_some():
    model = words()
    table = tf.reshape(tf.range(18.0), [9, 2])
    ids = tf.constant([[[4, 0], [4, 8]]])
    (rows,) = fetch_rows(model, {TABLE: table}, {}, {"word": ids}, {}).values()
    np.testing.assert_array_equal(rows, [[[8, 9], [0, 1], [8, 9], [16, 17]]])
    own = {TABLE: table[tf.newaxis, :3] + 100}
    positions = {TABLE: tf.constant([[[1, 0], [1, 2]]])}
    (rows,) = fetch_rows(model, {}, own, {"word": ids}, positions).values()
    np.testing.assert_array_equal(rows, [[[102, 103], [100, 101], [102, 103], [104, 105]]])
    counted = count_ids(model, {"word": tf.constant([[[4, 0], [4, 8]], [[1, 1], [1, 1]]])})
    np.testing.assert_array_equal(counted["word"], [[[0, 1], [2, 3]]])


TABLES = {"item_embedding", "item_bias", "user_embedding", "user_bias"}


def test_models_that_only_look_up_are_taken():
    check_lookups(words())
    check_lookups(factorization(*TABLES))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: words(mask_zero=True), "'table': 'word'.*change the model's output"),
        (lambda: words(twice=True), "'table': 'word'.*change the model's output"),
        (
            lambda: words(embeddings_regularizer=tf.keras.regularizers.L2(0.1)),
            "'table': 'word'.*change the model's output",
        ),
        (lambda: factorization(*TABLES - {"user_bias"}), "a second use of the input"),
        (lambda: factorization(*TABLES - {"item_bias"}), "a second use of the input"),
    ],
    ids=["mask", "second use", "regularizer", "a table of users", "a table of items"],
)
def test_models_that_see_more_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        check_lookups(make())


def test_training_refuses_at_once():
    sgd = build_sgdm(0.1)
    with pytest.raises(ValueError, match="lookups.*mask_zero"):
        build_process(
            words(mask_zero=True),
            fed_avg(client_optimizer=sgd),
            execution=Execution(batch_size=1),
            server_optimizer=sgd,
        )


def reversed_use(table, word):
    return table(word[:, ::-1])


def second_use(table, word):
    return table(word) * table(word[:, ::-1])


@pytest.mark.parametrize(
    ("options", "looks_up"),
    [({}, False), ({"use": reversed_use}, True), ({"mask_zero": True}, True),
     ({"use": second_use}, True)],
    ids=["the input", "ids of another order", "a mask", "two uses"],
)  # fmt: skip
def test_embeddings_of_an_input_return_their_rows_without_a_lookup(options, looks_up):
    """With a row for each id, in order; unless the layer sees more than these."""
    model, random = words(**options), np.random.default_rng(0)
    shapes = {v.name: v.shape for v in model.variables if v.name != TABLE}
    others = {k: tf.constant(random.normal(size=s), tf.float32) for k, s in shapes.items()}

    def trace(rows_in_order):
        @tf.function(autograph=False)
        def predict(rows):
            features = {"word": tf.reshape(tf.range(8), [2, 4])}
            values, given = {**others, TABLE: rows}, {"rows_in_order": rows_in_order}
            output, _ = model.predict(values, features, training=True, **given)
            return output, tf.convert_to_tensor(tf.gradients(tf.square(output), rows)[0])

        return predict.get_concrete_function(tf.TensorSpec([8, 3]))

    usual, in_order = (trace(way) for way in (False, True))
    kinds = [op.type for op in in_order.graph.get_operations()]
    assert any("Gather" in kind for kind in kinds) == looks_up
    rows = tf.constant(random.normal(size=[8, 3]), tf.float32)
    for one, other in zip(usual(rows), in_order(rows)):
        np.testing.assert_array_equal(one, other)
