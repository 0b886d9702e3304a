"""Variables chosen by the names of layers, nested layers and variables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.partition import PartitionedModel

LAYERS = tf.keras.layers


class Encoder(LAYERS.Layer):
    """A layer of two layers."""

    def __init__(self):
        super().__init__(name="encoder")
        self.body = LAYERS.Dense(2, name="body")
        self.head = LAYERS.Dense(2, name="head")

    def call(self, inputs):
        return self.head(self.body(inputs))


def layered():
    x = tf.keras.Input([3], name="x")
    return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(Encoder()(x)))


def functional():
    """The nested model's layers do not have its name in their variables' names."""
    inner = tf.keras.Input([3])
    hidden = LAYERS.Dense(2, name="body")(inner)
    encoder = tf.keras.Model(inner, LAYERS.Dense(2, name="head")(hidden), name="encoder")
    x = tf.keras.Input([3], name="x")
    return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="out")(encoder(x)))


@pytest.mark.parametrize("build_model", [layered, functional])
@pytest.mark.parametrize(
    ("local", "expected"),
    [
        (["encoder"], ["body/kernel", "body/bias", "head/kernel", "head/bias"]),
        (["encoder/head"], ["head/kernel", "head/bias"]),
        ("out/bias", ["out/bias"]),
        (["encoder/body", "out/kernel"], ["body/kernel", "body/bias", "out/kernel"]),
    ],
)
def test_local_variables_are_named(build_model, local, expected):
    model = PartitionedModel(build_model, local_layers=local)
    names = [v.name.replace("encoder/", "") for v in model.local_variables]
    assert names == expected
    assert len(model.global_variables) == 6 - len(expected)


def test_the_more_specific_name_counts(tmp_path):
    values = {
        f"encoder/{name}": np.ones(shape, np.float32)
        for name, shape in (("body/kernel", [3, 2]), ("body/bias", [2]), ("head/kernel", [2, 2]))
    }
    model = PartitionedModel(
        layered,
        frozen_layers=["encoder"],
        local_layers=["encoder/head/bias"],
        frozen=FrozenVariables.write(tmp_path, values),
    )
    assert [v.name for v in model.local_variables] == ["encoder/head/bias"]
    assert [v.name for v in model.global_variables] == ["out/kernel", "out/bias"]


def test_what_chooses_fewer_variables_is_more_specific():
    model = PartitionedModel(functional)
    assert model.variables[0].names == ("body/kernel", "encoder/body", "body", "encoder")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"local_layers": ["encoder/haed"]},
            r"local_layers: 'encoder/haed' names no variable of the model; did you mean "
            r"'encoder/head'.*It can be one of \['encoder', 'encoder/body', 'encoder/body/kernel'",
        ),
        ({"frozen_layers": ["ot"]}, "frozen_layers: 'ot' names no variable.*did you mean 'out'"),
        ({"local_layers": ["x"]}, "local_layers: 'x' names no variable"),
        (
            {"local_layers": ["encoder/head"], "frozen_layers": ["encoder/head"]},
            "'encoder/head' is named local and frozen",
        ),
        ({"lookups": {"encoder": "x"}}, "lookup layer 'encoder' must own exactly one variable"),
    ],
)
def test_names_that_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        PartitionedModel(layered, **options)
