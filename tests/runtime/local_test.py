"""The runtime in this process gives what TFF's worker gives."""

from __future__ import annotations

import collections
import concurrent.futures
import gc
import logging
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context

from fedpersonal.runtime.local import LocalContext
from fedpersonal.runtime.worker import worker_context

FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


class Pair(NamedTuple):
    first: object
    second: object


@pytest.fixture(name="worker", scope="module")
def _worker():
    return worker_context()


@pytest.fixture(name="in_both")
def _in_both(worker):
    """Runs a computation here and in the worker, and compares values, dtypes and containers."""

    def run(computation, *arguments, exactly=True):
        local = LocalContext(pytest.fail)
        found, expected = (_call(c, computation, arguments) for c in (local, worker))
        _assert_same(found, expected, exactly)
        return found

    return run


def _call(context, computation, arguments):
    with tff.framework.get_context_stack().install(context):
        return computation(*arguments)


def _assert_same(found, expected, exactly):
    if hasattr(expected, "__attrs_attrs__"):
        assert type(found) is type(expected)
        for field in expected.__attrs_attrs__:
            parts = (getattr(value, field.name) for value in (found, expected))
            _assert_same(*parts, exactly)
    elif isinstance(expected, (list, tuple, dict)):
        assert type(found) is type(expected) and len(found) == len(expected)
        if isinstance(expected, dict):
            assert list(found) == list(expected)
            found, expected = found.values(), expected.values()
        for one, other in zip(found, expected):
            _assert_same(one, other, exactly)
    else:
        assert type(found) is type(expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        if exactly:
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_structures_come_back_in_their_containers(in_both):
    @tff.tensorflow.computation(
        tff.to_type(collections.OrderedDict(b=np.float32, a=(np.int32, [2]))), np.str_, np.bool_
    )
    def computation(numbers, text, flag):
        inner = collections.OrderedDict(z=numbers["a"], y=(numbers["b"], [flag]))
        return Pair(first=inner, second=tf.strings.join([text, "!"])), tf.zeros([2, 0], tf.int64)

    numbers = collections.OrderedDict(b=0.1, a=[1, 2])
    pair, empty = in_both(computation, numbers, "hello", True)
    assert isinstance(pair, Pair) and pair.second == b"hello!" and empty.shape == (2, 0)


def test_aggregations(in_both):
    structure = tff.to_type(collections.OrderedDict(x=(np.float32, [3]), n=np.int32))
    at_clients = tff.FederatedType(structure, tff.CLIENTS)

    @tff.tensorflow.computation(np.float32, structure)
    def accumulate(total, value):
        return total * 0.5 + tf.reduce_sum(value["x"])

    @tff.tensorflow.computation(np.float32, np.float32)
    def merge(one, other):
        return one + other

    @tff.federated_computation(at_clients, FLOATS)
    def computation(values, weights):
        pairs = tff.federated_zip(
            (weights, tff.federated_broadcast(tff.federated_value(2.0, tff.SERVER)))
        )
        return (
            tff.federated_sum(values),
            tff.federated_mean(weights),
            tff.federated_mean(weights, weights),
            tff.federated_max(weights),
            tff.federated_min(values),
            tff.federated_aggregate(values, np.float32(3), accumulate, merge, _double),
            pairs,
            tff.federated_map(_double, weights),
            tff.federated_eval(_one, tff.CLIENTS),
            tff.federated_eval(_one, tff.SERVER),
            tff.federated_value(3, tff.CLIENTS),
        )

    random = np.random.default_rng(0)
    values = [{"x": random.normal(size=3).astype(np.float32), "n": i} for i in range(5)]
    weights = list(random.uniform(0.1, 1.0, 5).astype(np.float32))
    in_both(computation, values, weights)
    in_both(computation, values[:1], weights[:1])


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2.0 * x


@tff.tensorflow.computation
def _one():
    return tf.constant([1, 2])


def test_sums_over_nobody_are_zero(in_both):
    total = tff.federated_computation(tff.federated_sum, FLOATS)
    assert in_both(total, []) == 0


def test_datasets_and_variables(in_both):
    element = collections.OrderedDict(y=tff.TensorType(np.int32, [None]), x=np.float32)

    @tff.tensorflow.computation(tff.SequenceType(tff.to_type(element)))
    def work(dataset):
        count = tf.Variable(10)
        with tf.control_dependencies([count.assign_add(1)]):
            total = dataset.reduce(0.0, lambda s, e: s + e["x"] * tf.cast(e["y"][0], tf.float32))
            return total + tf.cast(count.read_value(), tf.float32)

    computation = tff.federated_computation(
        lambda d: tff.federated_map(work, d),
        tff.FederatedType(work.type_signature.parameter, tff.CLIENTS),
    )
    # The last batch of a list is smaller; a data set's elements come sorted by name.
    batches = [{"y": [1, 2], "x": 3.0}, {"y": [4, 5], "x": 6.0}, {"y": [7], "x": 8.0}]
    dataset = tf.data.Dataset.range(3, output_type=tf.int32).map(
        lambda n: collections.OrderedDict(y=n[tf.newaxis], x=1.5)
    )
    assert in_both(computation, [batches, dataset, []]) == [3 + 24 + 56 + 11, 4.5 + 11, 11]
    # Nothing of a call is left for the next one.
    assert in_both(computation, [batches] * 3) == [94] * 3


@pytest.mark.parametrize(
    "factory",
    [
        tff.aggregators.MeanFactory(),
        tff.aggregators.UnweightedMeanFactory(),
        tff.aggregators.clipping_factory(0.5, tff.aggregators.MeanFactory()),
        tff.learning.robust_aggregator(),
        tff.learning.compression_aggregator(zeroing=False, clipping=True),
    ],
    ids=lambda factory: type(factory).__name__,
)
def test_aggregators(in_both, factory):
    value_type = tff.to_type((np.float32, [4]))
    weighted = isinstance(factory, tff.aggregators.WeightedAggregationFactory)
    own = (tff.TensorType(np.float32),) if weighted else ()
    process = factory.create(value_type, *own)
    state = in_both(process.initialize)
    values = list(np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32))
    weights = ([1.0, 2.0, 3.0],) if weighted else ()
    for _ in range(2):
        state = in_both(process.next, state, values, *weights).state


def test_what_is_random_differs_from_call_to_call_and_keeps_its_size():
    factory = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(2.0, 10.0, 1.0)
    process = factory.create(tff.to_type((np.float32, [1000])))
    local = LocalContext(pytest.fail)
    with tff.framework.get_context_stack().install(local):
        state = process.initialize()
        one, other = (process.next(state, [np.zeros(1000, np.float32)] * 10).result for _ in "ab")
    assert (one != other).any()
    assert np.std(one) == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tf.random.uniform([], seed=3), "RandomUniform counts its draws from a seed"),
        (
            lambda: tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0
            ).lookup(tf.constant(1)),
            "HashTableV2 keeps state under a name",
        ),
    ],
    ids=["seed", "table"],
)
def test_what_may_go_wrong_here_is_handed_to_the_worker_and_said_once(worker, caplog, make, reason):
    computation = tff.tensorflow.computation(make)
    local = LocalContext(lambda: worker)
    with caplog.at_level(logging.WARNING):
        results = [_call(local, computation, ()) for _ in range(2)]
    assert all(type(result) is np.float32 for result in results)
    assert [reason in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (np.zeros(3, np.float32), r"int32\[2\], not float32\[3\]"),
        (np.zeros(3, np.int32), r"int32\[2\], not int32\[3\]"),
        ([0.5, 1.0], "int32"),
        ([2**40, 0], "int32"),
    ],
    ids=["dtype", "shape", "fraction", "range"],
)
def test_arguments_of_another_type_are_refused(worker, value, complaint):
    computation = tff.tensorflow.computation(lambda x: x + 1, tff.TensorType(np.int32, [2]))
    local = LocalContext(pytest.fail)
    with pytest.raises(TypeError, match=complaint):
        _call(local, computation, (value,))
    with pytest.raises(Exception):  # noqa: B017  Whatever TFF says.
        _call(worker, computation, (value,))


def test_clients_that_do_not_match_are_refused():
    computation = tff.federated_computation(
        lambda x, y: tff.federated_sum(tff.federated_map(_add, (x, y))), FLOATS, FLOATS
    )
    with pytest.raises(ValueError, match=r"equally many clients, not \[1, 2\]"):
        _call(LocalContext(pytest.fail), computation, ([1.0], [1.0, 2.0]))


@tff.tensorflow.computation(np.float32, np.float32)
def _add(x, y):
    return x + y


def test_several_threads_may_call():
    @tff.federated_computation(FLOATS)
    def computation(x):
        return tff.federated_sum(tff.federated_map(_double, x))

    local = LocalContext(pytest.fail)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(local.invoke, computation, [float(i)] * 3) for i in range(40)]
    assert [call.result() for call in calls] == [6.0 * i for i in range(40)]


def test_an_error_of_tensorflow_is_raised_here():
    @tff.tensorflow.computation(np.int32)
    def computation(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 3, "too many")]):
            return tf.identity(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="too many"):
        _call(LocalContext(pytest.fail), computation, (5,))
    assert _call(LocalContext(pytest.fail), computation, (2,)) == 2


def test_what_was_prepared_ends_with_its_computation():
    local = LocalContext(pytest.fail)
    computation = tff.tensorflow.computation(lambda: tf.constant(1))
    assert [_call(local, computation, ()) for _ in range(2)] == [1, 1]
    assert len(local._interpreters) == 1
    del computation
    gc.collect()
    assert not local._interpreters


def test_what_was_prepared_ends_with_its_context():
    local = LocalContext(pytest.fail)
    computation = tff.tensorflow.computation(lambda: tf.constant(1))
    assert _call(local, computation, ()) == 1
    (interpreter,) = map(weakref.ref, local._interpreters.values())
    del local
    gc.collect()
    assert interpreter() is None
    assert _call(LocalContext(pytest.fail), computation, ()) == 1


def test_functions_of_a_graph_end_with_it_and_datasets_that_it_has_made_live_on():
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def doubled(values):
        return values.map(lambda x: 2.0 * x)

    before = set(context.context().list_function_names())
    local = LocalContext(pytest.fail)
    dataset = _call(local, doubled, (tf.data.Dataset.from_tensor_slices([1.0, 2.5]),))
    assert any("_graph_" in str(n) for n in {*context.context().list_function_names()} - before)
    del local, doubled
    gc.collect()
    left = {*context.context().list_function_names()} - before
    assert not [name for name in left if "_graph_" in str(name)]
    assert list(dataset) == [2.0, 5.0]
    assert list(dataset.map(lambda x: x + 1.0)) == [3.0, 6.0]
