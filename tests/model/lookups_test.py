"""Tables reduced to the rows in use, and the models for which that would be something else."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.model.lookups import check_lookups, count_ids, fetch_rows
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization

LAYERS = tf.keras.layers


def words(*, twice=False, **options):
    """Four words an example."""

    def build_model():
        word = tf.keras.Input([4], dtype=tf.int32, name="word")
        table = LAYERS.Embedding(9, 3, name="table", **options)
        vectors = LAYERS.GlobalAveragePooling1D()(table(word))
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
    (rows,) = fetch_rows(model, {"table/embeddings": table}, {}, {"word": ids}, {}).values()
    np.testing.assert_array_equal(rows, [[[8, 9], [0, 1], [8, 9], [16, 17]]])
    own = {"table/embeddings": table[tf.newaxis, :3] + 100}
    positions = {"table/embeddings": tf.constant([[[1, 0], [1, 2]]])}
    (rows,) = fetch_rows(model, {}, own, {"word": ids}, positions).values()
    np.testing.assert_array_equal(rows, [[[102, 103], [100, 101], [102, 103], [104, 105]]])


def test_ids_are_counted():
    counted = count_ids(words(), {"word": tf.constant([[[4, 0], [4, 8]], [[1, 1], [1, 1]]])})
    np.testing.assert_array_equal(counted["word"], [[[0, 1], [2, 3]]])


def test_models_that_only_look_up_are_taken():
    check_lookups(words())
    check_lookups(factorization("item_embedding", "item_bias", "user_embedding", "user_bias"))


@pytest.mark.parametrize(
    "options",
    [
        {"mask_zero": True},
        {"twice": True},
        {"embeddings_regularizer": tf.keras.regularizers.L2(0.1)},
    ],
    ids=["mask", "second use", "regularizer"],
)
def test_models_that_see_more_are_refused(options):
    with pytest.raises(ValueError, match="'table': 'word'.*change the model's output"):
        check_lookups(words(**options))


@pytest.mark.parametrize("forgotten", ["user_bias", "item_bias"])
def test_all_tables_of_an_input_are_lookups(forgotten):
    tables = {"item_embedding", "item_bias", "user_embedding", "user_bias"} - {forgotten}
    with pytest.raises(ValueError, match="change the model's output.*a second use of the input"):
        check_lookups(factorization(*tables))


def test_training_refuses_at_once():
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    with pytest.raises(ValueError, match="lookups.*mask_zero"):
        build_process(
            words(mask_zero=True),
            fed_avg(client_optimizer=sgd),
            execution=Execution(batch_size=1),
            server_optimizer=sgd,
        )
