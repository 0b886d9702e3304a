"""Compiled members give what plain ones give, and what XLA refuses runs as it is."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

import fedpersonal as fp
from fedpersonal import runtime, tff
from fedpersonal.runtime import graphs
from fedpersonal.runtime.context import LocalContext
from fedpersonal.runtime.graphs import for_xla, is_worth_compiling, set_xla_flags

VECTORS = tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS)


def mapped(function):
    """Returns the computation that maps TensorFlow code of a vector over the clients."""
    work = tff.tf_computation(VECTORS.member)(tf.function(function))
    return tff.federated_computation(lambda x: tff.federated_map(work, x), VECTORS)


def call(computation, values, compile):
    context = LocalContext(compile=compile)
    with tff.get_context_stack().install(context):
        return computation(values)


def scattered(x):
    """Adds to rows in place, in a loop, some of them twice."""
    table = tf.raw_ops.DeepCopy(x=tf.zeros([5, 2]))

    def step(i, table):
        rows = tf.stack([i % 5, (i * i) % 5])
        added = tf.raw_ops.InplaceAdd(x=table, i=rows, v=tf.ones([2, 2]) * tf.reduce_sum(x))
        return i + 1, added

    return tf.while_loop(lambda i, _: i < tf.size(x), step, (0, table))[1]


def graph_of(function):
    return tf.function(function).get_concrete_function(tf.TensorSpec([None])).graph.as_graph_def()


def test_compiled_members_give_the_same(caplog):
    computation = mapped(scattered)
    values = [np.arange(n, dtype=np.float32) / 7 for n in (3, 4, 3, 9)]
    with caplog.at_level(logging.WARNING):
        found, again = (call(computation, values, True) for _ in range(2))
    assert not caplog.records
    for one, other, plain in zip(found, again, call(computation, values, False)):
        np.testing.assert_allclose(one, plain, rtol=1e-6)
        np.testing.assert_array_equal(one, other)


def test_operations_without_a_kernel_are_replaced_everywhere():
    found = {n.op for f in for_xla(graph_of(scattered)).library.function for n in f.node_def}
    assert "TensorScatterAdd" in found and not found & {"InplaceAdd", "DeepCopy"}


def test_what_xla_refuses_runs_as_it_is_and_says_so_once(caplog):
    computation = mapped(loop(lambda v: tf.strings.to_number(tf.strings.as_string(v)) + 1.0))
    values = [np.ones(2, np.float32)] * 3
    with caplog.at_level(logging.WARNING):
        found = call(computation, values, True)
    np.testing.assert_array_equal(found, [[4.0, 4.0]] * 3)
    assert ["XLA does not compile" in record.message for record in caplog.records] == [True]


@pytest.mark.exhaustive(but=("idle0",))
@pytest.mark.parametrize("idle", [{"epochs": 0}, {"max_steps": 0}])
def test_a_phase_of_no_steps_compiles_and_moves_nothing(idle, caplog):
    sgd = tf.keras.optimizers.SGD(0.1)
    phases = [fp.GradientPhase("local", "all", sgd, **idle), fp.GradientPhase("all", "all", sgd)]
    layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1, name="line")]
    x = np.arange(12, dtype=np.float32).reshape(6, 2) / 12
    clients = fp.ClientDataset([*"ab"], [0, 3, 6], {"x": x}, x.sum(1))
    model = fp.PartitionedModel(tf.keras.Sequential(layers), local_layers=["line/bias"], loss="mse")
    weights = []
    with caplog.at_level(logging.WARNING):
        for some in (phases, phases[1:]):
            algorithm = fp.Algorithm("own", tuple(some), local_variables="rebuilt")
            trainer = fp.Trainer(model, algorithm, clients, clients_per_round=2, shards=1)
            weights.append(trainer.fit(rounds=1, progress=False).weights["line/kernel"])
    assert not caplog.records
    np.testing.assert_allclose(*weights, rtol=1e-6)


def loop(body):
    return lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, body(v)), (0, x))[1]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (loop(lambda v: v + 1.0), True),
        (lambda x: x + 1.0, False),
        (loop(lambda v: v + tf.reduce_sum(tf.boolean_mask(v, v > 0))), False),
    ],
    ids=["loop", "no loop", "sizes of data"],
)
def test_loops_are_worth_compiling_without_sizes_of_data(function, expected):
    assert is_worth_compiling(graph_of(function)) == expected


def drawn(v):
    return v + tf.random.stateless_normal(tf.shape(v), [0, 1])


@pytest.mark.parametrize(
    ("function", "compiled"),
    [(loop(drawn), False), (lambda x: (draw := drawn(x), loop(lambda v: v + draw)(x), x), True)],
    ids=["within the loop", "beside it"],
)
def test_what_draws_is_never_compiled_since_xla_draws_other_numbers(function, compiled):
    computation = mapped(function)
    assert is_worth_compiling(graph_of(function)) == compiled
    found, plain = (call(computation, [np.ones(5, np.float32)], c) for c in (True, False))
    np.testing.assert_array_equal(found, plain)


def test_a_member_that_hands_its_value_on_is_compiled():
    computation = mapped(lambda x: (x, loop(lambda v: v * 2.0)(x)))
    ((same, eightfold),) = call(computation, [np.ones(2, np.float32)], True)
    np.testing.assert_array_equal([same, eightfold], [[1.0, 1.0], [8.0, 8.0]])


def test_graphs_may_have_functions_of_the_same_names():
    """As graphs of TFF computations from another process have."""
    one, other = (graph_of(loop(lambda v, k=k: v * k)) for k in (2.0, 3.0))
    text = text_format.MessageToString(other)
    for theirs, ours in zip(other.library.function, one.library.function):
        text = text.replace(f'"{theirs.signature.name}"', f'"_{ours.signature.name}"')
    same = text_format.Parse(text.replace('"_while', '"while'), tf.compat.v1.GraphDef())
    names = [{f.signature.name for f in graph.library.function} for graph in (one, same)]
    assert names[0] == names[1] and len(names[0]) == 2
    result = f"{one.node[-1].name}:0"
    runs = [graphs._compiled(graph, ["x:0"], [result]) for graph in (one, same)]
    assert [run([np.ones(1, np.float32)])[0] for run in runs] == [[8.0], [27.0]]


_PASSES = "--xla_disable_hlo_passes=cpu-parallel-task-assigner,tree_reduction_rewriter"
_OPTIONS = (
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters,xla_cpu_disable_loop_unrolling"
)


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (None, [_PASSES, _OPTIONS]),
        ("--xla_cpu_enable_fast_math=false", [_PASSES, _OPTIONS]),
        ("--xla_disable_hlo_passes=dce", [_OPTIONS]),
        ("--xla_backend_extra_options=a --xla_disable_hlo_passes=dce", []),
    ],
)
def test_flags_of_xla_are_set_only_while_it_reads_them(monkeypatch, given, own):
    seen = []

    def function(fn, autograph, jit_compile):
        assert jit_compile
        return lambda: seen.append(os.environ["XLA_FLAGS"].split())

    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if given:
        monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setattr(tf, "function", function)
    set_xla_flags.__wrapped__()
    assert seen == [[*(given or "").split(), *own]]
    assert os.environ.get("XLA_FLAGS") == given


@pytest.mark.parametrize(("compile", "expected"), [(True, "local, compiled"), (False, "local")])
def test_what_was_chosen_can_be_told(compile, expected):
    computation = mapped(scattered)
    try:
        runtime.use_runtime("local", compile=compile)
        assert runtime.describe_runtime() == "local"
        computation([np.ones(3, np.float32)])
        assert runtime.describe_runtime() == expected
    finally:
        runtime.use_runtime("local")
