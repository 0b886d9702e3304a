import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel

TABLE = np.arange(15.0, dtype=np.float32).reshape(5, 3) + 1


def model_of(looked_up, **embedding):
    def build():
        ids = tf.keras.Input([2], dtype=tf.int32, name="ids")
        table = tf.keras.layers.Embedding(5, 3, name="table", **embedding)
        return tf.keras.Model({"ids": ids}, tf.reduce_sum(table(looked_up(ids)), [1, 2]))

    return PartitionedModel(build, lookups={"table": "ids"})


def graph_of(model, rows_in_order):
    @tf.function(autograph=False)
    def predict(rows):
        values, features = {"table/embeddings": rows}, {"ids": tf.reshape(tf.range(4), [2, 2])}
        output, _ = model.predict(values, features, training=True, rows_in_order=rows_in_order)
        return output, tf.gradients(tf.square(output), rows)

    return predict.get_concrete_function(tf.TensorSpec([4, 3]))


def has_gather(function):
    return any("Gather" in op.type for op in function.graph.get_operations())


def both_ways(model):
    return [tf.nest.flatten(graph_of(model, way)(tf.constant(TABLE[:4]))) for way in (False, True)]


def test_embeddings_of_an_input_return_their_rows_without_a_lookup():
    model = model_of(lambda ids: ids)
    assert has_gather(graph_of(model, False))
    assert not has_gather(graph_of(model, True))
    for usual, skipped in zip(*both_ways(model)):
        np.testing.assert_array_equal(tf.convert_to_tensor(usual), skipped)


@pytest.mark.parametrize(
    ("looked_up", "embedding"),
    [(lambda ids: ids[:, ::-1], {}), (lambda ids: ids, {"mask_zero": True})],
    ids=["ids of another order", "a mask"],
)
def test_what_sees_more_than_the_rows_looks_them_up(looked_up, embedding):
    assert has_gather(graph_of(model_of(looked_up, **embedding), True))


def test_a_layer_used_twice_looks_up_what_each_use_asks_for():
    def build():
        ids = tf.keras.Input([2], dtype=tf.int32, name="ids")
        table = tf.keras.layers.Embedding(5, 3, name="table")
        return tf.keras.Model({"ids": ids}, tf.reduce_sum(table(ids) * table(ids[:, ::-1]), [1, 2]))

    model = PartitionedModel(build, lookups={"table": "ids"})
    for usual, skipped in zip(*both_ways(model)):
        np.testing.assert_array_equal(*map(tf.convert_to_tensor, (usual, skipped)))
