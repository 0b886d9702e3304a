"""The runtime in this process gives what TFF's own gives, or refuses what it does not know."""

from __future__ import annotations

import collections
import concurrent.futures
import gc
import weakref
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import tensorflow as tf

from fedpersonal import runtime
from fedpersonal.errors import UserError
from fedpersonal.methods.furl import furl
from fedpersonal.runtime import interpreter
from fedpersonal.runtime.context import LocalContext, make_stock_context
from fedpersonal.training.trainer import Trainer

tff = pytest.importorskip("tensorflow_federated")

FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
KNOWN = set()  # What computations of these tests call, of TFF's intrinsics.


class Pair(NamedTuple):
    first: object
    second: object


@pytest.fixture(name="stock", scope="module")
def _stock():
    return make_stock_context()


@pytest.fixture(name="in_both")
def _in_both(stock, monkeypatch):
    """Runs a computation in both runtimes, and compares values, dtypes and containers."""
    known = {
        uri: lambda *given, uri=uri, of=of: KNOWN.add(uri) or of(*given)
        for uri, of in interpreter._INTRINSICS.items()
    }
    monkeypatch.setattr(interpreter, "_INTRINSICS", known)

    def run(computation, *arguments, exactly=True):
        found, expected = (_call(c, computation, arguments) for c in (LocalContext(), stock))
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
            tff.federated_map(_double, tff.federated_value(1.5, tff.SERVER)),
            tff.federated_map(_double, tff.federated_value(1.5, tff.CLIENTS)),
            tff.federated_zip([tff.federated_value(n, tff.SERVER) for n in (1, 2)]),
            tff.federated_zip([tff.federated_value(n, tff.CLIENTS) for n in (1, 2)]),
            tff.federated_map(_with_selections, pairs),
        )

    random = np.random.default_rng(0)
    values = [{"x": random.normal(size=3).astype(np.float32), "n": i} for i in range(5)]
    weights = list(random.uniform(0.1, 1.0, 5).astype(np.float32))
    in_both(computation, values, weights)
    in_both(computation, values[:1], weights[:1])
    assert in_both(tff.federated_computation(tff.federated_sum, FLOATS), []) == 0
    # TFF's compiler alone makes this one.
    assert {*interpreter._INTRINSICS} - KNOWN == {"federated_map_all_equal"}


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2.0 * x


@tff.federated_computation(np.float32, np.float32)
def _with_selections(x, y):
    return [_double(y), (x, 7)]


@tff.tensorflow.computation
def _one():
    return tf.constant([1, 2])


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
    local = LocalContext()
    with tff.framework.get_context_stack().install(local):
        state = process.initialize()
        one, other = (process.next(state, [np.zeros(1000, np.float32)] * 10).result for _ in "ab")
    assert (one != other).any()
    assert np.std(one) == pytest.approx(0.2, rel=0.15)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tf.random.uniform([], seed=3), "has RandomUniform with a seed"),
        (lambda: tf.Variable(1).read_value(), "has VarHandleOp, an operation that keeps state"),
        (
            lambda: tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0
            ).lookup(tf.constant(1)),
            "has HashTableV2, an operation that keeps state",
        ),
        (lambda: tf.data.Dataset.range(3), "takes or returns a tf.data.Dataset"),
    ],
    ids=["seed", "variable", "table", "dataset"],
)
def test_what_may_go_wrong_is_refused_by_name(make, reason):
    computation = tff.tensorflow.computation(make)
    for _ in range(2):
        with pytest.raises(UserError, match=f"{reason}.*--runtime=tff") as refusal:
            _call(LocalContext(), computation, ())
    assert "\n" not in str(refusal.value)


def test_intrinsics_and_arguments_that_it_does_not_know_are_refused_by_name():
    secure = tff.federated_computation(
        lambda x: tff.federated_secure_sum_bitwidth(x, 8), tff.FederatedType(np.int32, tff.CLIENTS)
    )
    with pytest.raises(UserError, match="calls tff.federated_secure_sum_bitwidth, which"):
        _call(LocalContext(), secure, ([1, 2],))
    same = tff.federated_computation(lambda x: x, tff.SequenceType(np.int32))
    with pytest.raises(UserError, match="takes a tf.data.Dataset, which"):
        _call(LocalContext(), same, ([1, 2],))


def test_a_round_of_a_trainer_leads_to_the_same(stock, dense_model, draw_numbers):
    model = dense_model(loss=tf.keras.losses.MeanSquaredError())
    algorithm = furl(client_optimizer=tf.keras.optimizers.SGD(0.1))
    trainer = Trainer(model, algorithm, draw_numbers, clients_per_round=3, batch_size=2)
    results = []
    for context in (LocalContext(compile=False), stock):
        tff.framework.get_context_stack().set_default_context(context)
        with trainer.fit(rounds=2, progress=False) as trained:
            kept, _ = trained.kept_by(draw_numbers.client_ids)
            results.append([*trained.weights.values(), kept])
    runtime.use_runtime("local")
    for found, expected in zip(*results):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(name="draw_numbers", scope="module")
def _draw_numbers(make_dataset):
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 5, 2)).astype(np.float32)
    return make_dataset([({"x": own}, own.sum(1)) for own in x])


def test_the_default_is_that_of_all_threads():
    """Also of those that were there before; one that a thread installs is its own."""
    stack = tff.framework.get_context_stack()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        before = thread.submit(lambda: stack.current).result()
        runtime.use_runtime("local")
        assert thread.submit(lambda: stack.current).result() is stack.current is not before
        with stack.install(before):
            assert stack.current is before is not thread.submit(lambda: stack.current).result()
        tff.framework.set_default_context(before)
        assert stack.current is before is thread.submit(lambda: stack.current).result()


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
def test_arguments_of_another_type_are_refused(stock, value, complaint):
    computation = tff.tensorflow.computation(lambda x: x + 1, tff.TensorType(np.int32, [2]))
    local = LocalContext()
    with pytest.raises(TypeError, match=complaint):
        _call(local, computation, (value,))
    with pytest.raises(Exception):  # noqa: B017  Whatever TFF says.
        _call(stock, computation, (value,))


def test_clients_that_do_not_match_are_refused():
    computation = tff.federated_computation(
        lambda x, y: tff.federated_sum(tff.federated_map(_add, (x, y))), FLOATS, FLOATS
    )
    with pytest.raises(ValueError, match=r"equally many clients, not \[1, 2\]"):
        _call(LocalContext(), computation, ([1.0], [1.0, 2.0]))


@tff.tensorflow.computation(np.float32, np.float32)
def _add(x, y):
    return x + y


def test_several_threads_may_call():
    @tff.federated_computation(FLOATS)
    def computation(x):
        return tff.federated_sum(tff.federated_map(_double, x))

    local = LocalContext()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(local.invoke, computation, [float(i)] * 3) for i in range(40)]
    assert [call.result() for call in calls] == [6.0 * i for i in range(40)]


def test_an_error_of_tensorflow_is_raised_here():
    @tff.tensorflow.computation(np.int32)
    def computation(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 3, "too many")]):
            return tf.identity(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="too many"):
        _call(LocalContext(), computation, (5,))
    assert _call(LocalContext(), computation, (2,)) == 2


def test_what_was_prepared_ends_with_its_computation_and_its_context():
    local = LocalContext()
    computation = tff.tensorflow.computation(lambda: tf.constant(1))
    other = tff.tensorflow.computation(lambda: tf.constant(2))
    assert [_call(local, comp, ()) for comp in (computation, computation, other)] == [1, 1, 2]
    assert len(local._interpreters) == 2
    del computation
    gc.collect()
    (interpreter,) = map(weakref.ref, local._interpreters.values())
    del local
    gc.collect()
    assert interpreter() is None
    assert _call(LocalContext(), other, ()) == 2


_PROGRAM = """
import os, sys
import numpy as np
import psutil
from fedpersonal import runtime

runtime.use_runtime("tff")
import tensorflow_federated as tff

double = tff.tensorflow.computation(lambda x: x * 2, np.int32)
assert double(4) == 8 and runtime.describe_runtime() == "tff"
(child,) = psutil.Process().children()
print(child.name(), child.pid, flush=True)
"""


@pytest.mark.exhaustive
def test_its_child_ends_with_the_program_and_a_line_tells_what_it_opens(run_program, tmp_path):
    output, errors, status = run_program("-c", _PROGRAM, cwd=tmp_path)
    name, pid = output.split()
    assert (name, status) == ("worker_binary", 0), errors
    assert not psutil.pid_exists(int(pid))
    (line,) = errors.splitlines()
    assert "listens on every network interface" in line and "run code as you" in line
