"""Graphs, normal form and optimizers of our own give what TFF's give, to the bit."""

from __future__ import annotations

import collections
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.runtime.context import LocalContext
from fedpersonal.tff import optimizers

tffs = pytest.importorskip("tensorflow_federated")


class Pair(NamedTuple):
    first: object
    second: object


def _numbers(**options):
    return [options, {**options, "learning_rate": np.float32(0.03)}]


OPTIMIZERS = {
    "sgdm": [{}, {"momentum": 0.8}],
    "adam": _numbers(beta_1=0.7, epsilon=1e-3),
    "adamw": _numbers(weight_decay=0.2),
    "yogi": _numbers(initial_preconditioner_value=1e-2),
    "adagrad": _numbers(initial_preconditioner_value=0.3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_the_same_steps(name):
    random = np.random.default_rng(0)
    specs = collections.OrderedDict(a=tf.TensorSpec([3, 2]), b=tf.TensorSpec([]))
    for options in OPTIMIZERS[name]:
        options = {"learning_rate": 0.1, **options}
        own, theirs = (
            getattr(of, f"build_{name}")(**options) for of in (optimizers, tffs.learning.optimizers)
        )
        states = [own.initialize(specs), theirs.initialize(specs)]
        values = [
            collections.OrderedDict(
                (k, tf.constant(np.float32(random.normal(size=s.shape)))) for k, s in specs.items()
            )
        ] * 2
        for _ in range(5):
            slopes = collections.OrderedDict(
                (k, tf.constant(np.float32(random.normal(size=s.shape)))) for k, s in specs.items()
            )
            for place, of in enumerate((own, theirs)):
                states[place], values[place] = of.next(states[place], values[place], slopes)
            _assert_equal(*values)
            _assert_equal(*states)


def test_a_schedule_gives_the_same_rates():
    def schedule(number):
        return 0.1 / tf.cast(number + 1, tf.float32)

    specs, moved = tf.TensorSpec([2]), []
    for of, scheduling in (
        (optimizers, optimizers.schedule_learning_rate),
        (tffs.learning.optimizers, tffs.learning.optimizers.schedule_learning_rate),
    ):
        optimizer, value = scheduling(of.build_sgdm(1.0, 0.5), schedule), tf.zeros([2])
        state = optimizer.initialize(specs)
        for _ in range(4):
            state, value = optimizer.next(state, value, tf.ones([2]))
        moved.append((state, value))
    _assert_equal(*moved)


def _assert_equal(found, expected):
    """Asserts that two structures have the same names, and values of the same bits."""
    tf.nest.assert_same_structure(found, expected, check_types=False)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


NESTED = collections.OrderedDict(z=np.int32, a=collections.OrderedDict(s=np.str_))
EXAMPLES = tff.SequenceType(collections.OrderedDict(x=(np.float32, [None, 2])))
CODE = {
    "no argument": ((), lambda: (tf.constant(1), {"b": tf.constant("x"), "a": tf.zeros([2])})),
    "one": ((np.float32,), lambda x: [x, x * 2]),
    "several, in containers": ((NESTED, np.bool_), lambda a, b: Pair(a["z"], (b, a))),
    "a dataset": (
        (EXAMPLES,),
        lambda data: data.reduce(0.0, lambda total, batch: total + tf.reduce_sum(batch["x"])),
    ),
    "makes a dataset": ((np.int64,), lambda n: tf.data.Dataset.range(n).map(lambda i: (i, -i))),
    "open shapes": ((tff.TensorType(np.int32, [None]),), lambda x: tf.concat([x, x], 0)),
}


@pytest.mark.parametrize("name", CODE)
def test_code_becomes_a_computation_of_the_same_type(name):
    types, code = CODE[name]
    own, theirs = tff.tf_computation(*types)(code), tffs.tensorflow.computation(code, *types)
    own_type, expected = own.type_signature, theirs.type_signature
    assert own_type.result == expected.result
    if len(types) > 1:  # Ours go by their place, TFF's by their names, too.
        assert [*own_type.parameter] == [*expected.parameter]
    else:
        assert own_type.parameter == expected.parameter
    made, given = (tff.to_proto(c.to_building_block()) for c in (own, theirs))
    assert made.tensorflow.parameter.WhichOneof("binding") == (
        given.tensorflow.parameter.WhichOneof("binding")
    )


def test_code_that_makes_variables_is_refused():
    with pytest.raises(ValueError, match="makes no variables"):
        tff.tf_computation()(lambda: tf.Variable(1.0) + 1.0)


def test_the_normal_form_is_tffs_but_for_names():
    """It has as many calls, of the same functions, in an order that computes the same."""
    add = tff.tf_computation(np.float32, np.float32)(tf.add)
    unused = tff.tf_computation(np.float32)(lambda x: x * 3)

    @tff.federated_computation(np.float32)
    def doubled(x):
        unused(x)
        return add(x, x), x

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS), np.float32)
    def whole(xs, y):
        twice, same = doubled(y)
        mapped = tff.federated_map(
            tff.federated_computation(lambda x: doubled(x)[0], np.float32), xs
        )
        return collections.OrderedDict(sum=tff.federated_sum(mapped), y=add(twice, same))

    own = tff.to_call_dominant(whole.to_building_block())
    theirs = tffs.framework.to_call_dominant(whole.to_building_block())
    for found in (own, theirs):
        assert found.type_signature.is_equivalent_to(whole.type_signature)
    assert _calls(own) == _calls(theirs)
    assert len(own.result.locals) == len(theirs.result.locals) == 4
    with tff.get_context_stack().install(LocalContext(compile=False)):
        assert whole([1.0, 2.0], 5.0) == collections.OrderedDict(sum=6.0, y=15.0)


def _calls(block):
    """How often each kind of function is called."""
    found = collections.Counter()

    def count(inner):
        if isinstance(inner, tff.Call):
            found[type(inner.function).__name__, getattr(inner.function, "uri", "")] += 1
        return inner, False

    tff.transform_postorder(block, count)
    return found
