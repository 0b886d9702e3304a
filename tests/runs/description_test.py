"""What a program trains, described: every part of it tells, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Mapping

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp
from fedpersonal.files import to_json
from fedpersonal.methods.method import Layers, methods
from fedpersonal.model.files import list_parts
from fedpersonal.optimizers import (
    SERVER_OPTIMIZERS,
    LinearDecay,
    ScheduledOptimizer,
    build_server_optimizer,
)
from fedpersonal.runs.description import describe, flat
from fedpersonal.tff.optimizers import build_adam, build_sgdm

LAYERS = Layers(("user",), ("head",), ("body",), ("user",), ("user", "body", "head"))
RATE = 0.1


def told(value):
    """As `config.json` has it."""
    return flat(json.loads(json.dumps(to_json(describe(value)))))


def changed(value):
    """Yields a value with one of its parts changed, for each of them, and the path of it."""
    if isinstance(value, bool):
        yield "", not value
    elif isinstance(value, (int, float)):
        yield "", value + 1
    elif isinstance(value, str):
        yield "", f"{value}_other"
    elif value is None:
        yield "", 3
    elif isinstance(value, tf.keras.optimizers.Optimizer):
        for name, part in value.get_config().items():
            if isinstance(part, (int, float, np.floating)) and not isinstance(part, bool):
                yield name, type(value).from_config({**value.get_config(), name: part / 2 + 0.3})
    elif isinstance(value, (tuple, list)):
        yield "", [*value, "one more"]
        for place, part in enumerate(value):
            for path, other in changed(part):
                yield f"[{place}].{path}", [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, Mapping):
        yield "", {**value, "one": "more"}
        for name, part in value.items():
            for path, other in changed(part):
                yield f"{name}.{path}", {**value, name: other}
    elif callable(value) and not hasattr(value, "__dict__"):
        return
    else:
        fields = (
            [f.name for f in dataclasses.fields(value) if f.compare]
            if dataclasses.is_dataclass(value)
            else list(vars(value))
        )
        for name in fields:
            for path, part in changed(getattr(value, name)):
                other = copy.copy(value)
                object.__setattr__(other, name, part)
                yield f"{name}.{path}", other


def of_method(name):
    method = methods()[name]
    options = method.options()
    return {"a": method.build(options, LAYERS), "f": method.finetuning(options, LAYERS)}


def everything():
    """An algorithm in which all that a phase can have is there."""
    sgd, adam = tf.keras.optimizers.SGD(0.2, momentum=0.5), build_adam(0.1)
    phases = (
        fp.RidgePhase("support", 0.5),
        fp.GradientPhase(
            "all",
            "query",
            ScheduledOptimizer(adam, LinearDecay(9)),
            max_steps=3,
            optimizers={"local": sgd},
            ahead=fp.LookAhead(build_sgdm(0.3), data="support"),
        ),
    )
    return fp.Algorithm("own", phases, "kept", personal=fp.PersonalCopies(("a",), mixing=0.5))


def tffs():
    """TFF itself, which has more."""
    return pytest.importorskip("tensorflow_federated")


OPTIMIZERS = {
    **{name: functools.partial(build_server_optimizer, name, learning_rate=0.5)
       for name in SERVER_OPTIMIZERS},
    "decayed": lambda: build_server_optimizer("sgd", learning_rate=0.5, decay_rounds=7),
    "rmsprop": lambda: tffs().learning.optimizers.build_rmsprop(0.1),
    "adafactor": lambda: tffs().learning.optimizers.build_adafactor(learning_rate=0.1),
    "keras_adam": lambda: tf.keras.optimizers.Adam(0.1),
    "keras_adamw": lambda: tf.keras.optimizers.AdamW(0.1),
    "keras_adagrad": lambda: tf.keras.optimizers.Adagrad(0.1),
}  # fmt: skip
SUBJECTS = {
    **{name: functools.partial(of_method, name) for name in methods()},
    **OPTIMIZERS,
    "everything": everything,
    "privacy": lambda: fp.DifferentialPrivacy(0.5),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_each_part_that_is_changed_alone_is_noticed(name):
    make = SUBJECTS[name]
    subject, first = make(), told(make())
    assert told(subject) == first == told(make())
    paths = []
    for path, other in changed(subject):
        assert told(other) != first, path
        paths.append(path)
    assert paths


def aggregators():
    """Factories, each made anew; what tells some apart is in TFF's computations."""
    means, quantile = tffs().aggregators, tffs().aggregators.PrivateQuantileEstimationProcess
    for bound in (0.5, 0.6):
        yield means.clipping_factory(bound, means.UnweightedMeanFactory())
        yield means.zeroing_factory(bound, means.MeanFactory())
        yield means.clipping_factory(
            quantile.no_noise(bound, 0.9, 0.1), means.UnweightedMeanFactory()
        )
        yield means.DifferentiallyPrivateFactory.gaussian_fixed(bound, 4, clip=1.0)
    yield tffs().learning.robust_aggregator()
    yield tffs().learning.compression_aggregator()


def test_aggregators_are_compared_by_all_that_they_compute():
    texts, again = ([json.dumps(told(one)) for one in aggregators()] for _ in range(2))
    assert texts == again and len({*texts}) == len(texts)


def test_a_difference_is_named():
    sgd, faster = (fp.furl(client_optimizer=tf.keras.optimizers.SGD(r)) for r in (0.1, 0.2))
    ours, theirs = told({"algorithm": sgd}), told({"algorithm": faster})
    assert {n: (ours[n], theirs[n]) for n in ours if ours[n] != theirs[n]} == {
        "algorithm.phases[0].optimizer.numbers.learning_rate": (0.1, 0.2)
    }
    adam = told(fp.furl(client_optimizer=build_adam(0.1)))
    assert adam["phases[0].optimizer.step"].endswith("adam_step")
    assert adam["phases[0].optimizer.numbers.beta_1"] == 0.9


def scaled(rate):
    return lambda labels, predictions: rate * tf.abs(labels - predictions)


def helper(x):
    return x * RATE


def of_helper(labels, predictions):
    """The loss.

    Texts of a function are no part of it.
    """
    return helper(labels - predictions)


class Loss:
    """A loss with an option."""

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, labels, predictions):
        return self.rate * tf.abs(labels - predictions)


def another_class():
    class Loss:
        def __init__(self, rate):
            self.rate = rate

        def __call__(self, labels, predictions):
            return self.rate * tf.square(labels - predictions)

    return Loss(2)


FUNCTIONS = {
    "lambda": lambda: lambda x: x + 1,
    "another number": lambda: lambda x: x + 2,
    "another operation": lambda: lambda x: x - 1,
    "another name": lambda: lambda x: abs(x),
    "default": lambda: lambda x, y=1: x + y,
    "another default": lambda: lambda x, y=2: x + y,
    "nested": lambda: lambda x: (lambda y: y + 1)(x),
    "nested otherwise": lambda: lambda x: (lambda y: y + 2)(x),
    "set": lambda: lambda x: x in {"a", "b", "c"},
    "closure": lambda: scaled(0.5),
    "another closure": lambda: scaled(0.25),
    "array": lambda: scaled(np.arange(3)),
    "another array": lambda: scaled(np.arange(3)[::-1]),
    "tensor": lambda: scaled(tf.constant([1.0, 2.0])),
    "another tensor": lambda: scaled(tf.constant([1.0, 3.0])),
    "partial": lambda: functools.partial(tf.keras.losses.huber, delta=2),
    "another partial": lambda: functools.partial(tf.keras.losses.huber, delta=3),
    "keras": lambda: tf.keras.losses.mae,
    "keras loss": lambda: tf.keras.losses.Huber(2.0),
    "another keras loss": lambda: tf.keras.losses.Huber(3.0),
    "keras name": lambda: "mse",
    "global": lambda: of_helper,
    "object": lambda: Loss(2),
    "another object": lambda: Loss(3),
    "another class": another_class,
    "method": lambda: Loss(2).__call__,
    "tf.function": lambda: tf.function(scaled(2)),
    "metric": lambda: fp.Metric("rmse", scaled(1)),
    "another metric": lambda: fp.Metric("rmse", scaled(1), lambda m: m**0.5),
}


def test_functions_are_compared_by_what_they_do():
    texts = {name: json.dumps(told(make()), sort_keys=True) for name, make in FUNCTIONS.items()}
    assert texts == {n: json.dumps(told(m()), sort_keys=True) for n, m in FUNCTIONS.items()}
    same = [names for t in texts.values() if len(names := [n for n in texts if texts[n] == t]) > 1]
    assert not same
    assert "compared by its code" in texts["lambda"]
    assert told(scaled(0.5))["rate"] == 0.5


def test_what_a_function_names_is_a_part_of_it(monkeypatch):
    first = told(of_helper)
    assert first["helper.RATE"] == 0.1
    monkeypatch.setitem(globals(), "RATE", 0.2)
    assert told(of_helper)["helper.RATE"] == 0.2
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert told(of_helper) != first


def test_other_processes_describe_alike(run_program, tmp_path):
    """Sets have another order there, and objects another place."""
    (tmp_path / "own.py").write_text(_OWN)
    lines = (
        "import json, own\n"
        "from fedpersonal.runs.description import describe, flat\n"
        "print(json.dumps(flat(describe(own.value))))"
    )
    (first, _, status), (second, *_) = (run_program("-c", lines, cwd=tmp_path) for _ in range(2))
    assert status == 0 and first == second and "compared by its code" in first
    (tmp_path / "own.py").write_text(f"\n\n# Moved.\n{_OWN}")
    assert run_program("-c", lines, cwd=tmp_path)[0] == first
    (tmp_path / "own.py").write_text(_OWN.replace("x + len", "x - len"))
    assert run_program("-c", lines, cwd=tmp_path)[0] != first


_OWN = """
import numpy as np

class Own:
    def __init__(self):
        self.names, self.of = {"a", "b", "c"}, np.arange(3.0)

    def __call__(self, x):
        return {one: x + len(one) for one in self.names} if x in {"d", "e"} else helper(x)

helper = lambda x: (x, sorted({"a", "b"}))
value = {"own": Own(), "lambda": lambda x: helper(x), "class": Own}
"""


class Scaled(tf.keras.layers.Layer):
    """A layer that does not say how it was made."""

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor
        self.many = object()

    def call(self, x):
        return self.factor * x

    def get_config(self):
        raise NotImplementedError


class Subclassed(tf.keras.Model):
    """A model whose code connects its layers."""

    def __init__(self, units=3, factor=1.0):
        super().__init__(name="own")
        self.factor = factor
        self.hidden, self.out = tf.keras.layers.Dense(units), tf.keras.layers.Dense(1)

    def call(self, x):
        return self.factor * self.out(self.hidden(x))


def functional(units=3, activation="tanh", factor=2.0, rate=0.5, begin=1, twice=None, l2=None):
    layers = tf.keras.layers
    x = tf.keras.Input([3], name="x")
    hidden = layers.Dense(units, activation=activation, kernel_regularizer=l2, name="h")(x)
    inner = tf.keras.Sequential([layers.Dense(4, name="deep")], name="inner")
    hidden = Scaled(factor, name="s")(layers.Lambda(lambda h: rate * h, name="by")(inner(hidden)))
    hidden = hidden + inner(twice(hidden)[:, :3]) if twice else hidden
    return tf.keras.Model({"x": x}, layers.Dense(1, name="out")(hidden[:, begin:]))


MODELS = {
    "plain": ({}, {}),
    "units": ({"units": 5}, {}),
    "activation": ({"activation": "relu"}, {}),
    "lambda as activation": ({"activation": lambda x: x}, {}),
    "another lambda": ({"activation": lambda x: 2 * x}, {}),
    "own layer": ({"factor": 3.0}, {}),
    "lambda layer": ({"rate": 0.25}, {}),
    "operation": ({"begin": 2}, {}),
    "connections": ({"twice": tf.tanh}, {}),
    "another operation": ({"twice": tf.sin}, {}),
    "regularizer": ({"l2": tf.keras.regularizers.L2(0.5)}, {}),
    "loss": ({}, {"loss": "mae"}),
    "metrics": ({}, {"metrics": ["mae"]}),
    "local": ({}, {"local_layers": ["out"]}),
    "weight": ({}, {"example_weight": tf.abs}),
    "unit": ({}, {"unit": "tokens"}),
    "labels": ({}, {"label_spec": tf.TensorSpec([None], tf.int32)}),
}


def test_models_are_compared_by_all_that_makes_them():
    texts = {}
    for name, (given, options) in MODELS.items():
        model = fp.PartitionedModel(functools.partial(functional, **given), **options)
        texts[name] = json.dumps(told(list_parts(model)))
    subclassed = {f"subclassed {f}": functools.partial(Subclassed, factor=f) for f in (1.0, 2.0)}
    for name, build in subclassed.items():
        model = fp.PartitionedModel(build, input_spec=tf.TensorSpec([None, 3]))
        texts[name] = json.dumps(told(list_parts(model)))
        assert texts[name] == json.dumps(told(list_parts(model)))
    assert len({*texts.values()}) == len(texts)
    again = fp.PartitionedModel(lambda: functional())  # Another function, which builds the same.
    assert json.dumps(told(list_parts(again))) == texts["plain"]
