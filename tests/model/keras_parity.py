"""Cases in which a round of federated averaging and Keras' own `fit` must come to the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp

EPOCHS, BATCH = 2, 3
# Evaluation takes a second to trace; what it computes of a batch, training computes, too. These are
# evaluated: what differs between a batch and a client, or between training and evaluation.
# Keras averages batches where a metric has one number for a batch; clients are evaluated in one.
ONE_A_BATCH = {
    *("output (batch,)", "output (batch,) and labels (batch, 1)", "function of a batch"),
    "metrics of numbers",
}
EVALUATED = ONE_A_BATCH | {
    *("mask_zero", "Masking", "mask through TimeDistributed and Dropout", "weighted_metrics"),
    *("mask with own __call__", "mask with a scalar loss", "mask with ignore_class in a metric"),
    *("ignore_class", "ignore_class in a metric, pooled", "reduction sum", "own __call__"),
    *("function that compares examples", "added loss", "regularizers"),
    *("metrics of two classes", "metrics of classes", "dropout of nothing"),
    *("loss added by a layer", "frozen batch normalization", "constraint, pooled"),
}
STARTS = ("model", "builder", "drawn")
JOINED = "side by side: "


@dataclasses.dataclass(frozen=True)
class Case:
    """A Keras model with its data, loss and metrics, and the expected outcome.

    Attributes:
        name: What the case is about.
        build: Returns a new Keras model.
        features: An array, or input name to array, of one client's examples.
        labels: Their labels.
        loss: As `compile` takes it.
        metrics: As `compile` takes them.
        refused: Words of the line that refuses the model; None where results equal Keras'.
        compiled: Further options of `compile`. With any, or with `loss=None`, `PartitionedModel` is
            given a compiled model, and no loss or metrics. With `loss=None`, `build` compiles.
        optimizer: Makes the client's optimizer.
        start: `model`: the library is given a built model, and starts from its weights. `builder`:
            it is given the builder, and must start from the weights that the builder sets.
            `drawn`: it is given the builder, and draws weights, which Keras then starts from.
        packing: How clients are packed.
        options: Further options of `PartitionedModel`.
        is_eager: Whether Keras runs eagerly, which is faster for so few steps.
        part: Makes the layer that the case is about, where cases of such layers may stand side by
            side in one model.
    """

    name: str
    build: Callable[[], tf.keras.Model]
    features: np.ndarray | Mapping[str, np.ndarray]
    labels: np.ndarray
    loss: Any = "mse"
    metrics: Sequence[Any] = ()
    refused: str | None = None
    compiled: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    optimizer: Callable[[], Any] = lambda: tf.keras.optimizers.SGD(0.1)
    start: str = "model"
    packing: str = "stacked"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_eager: bool = True
    part: Callable[[], Any] | None = None

    @property
    def is_evaluated(self) -> bool:
        """Whether the trained model is evaluated, too."""
        return self.name in EVALUATED or self.name.startswith(JOINED)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A model's weights before and after training, and its metrics.

    Attributes:
        weights: The weights after training, in Keras' order.
        trained: The loss and each metric over both epochs, each batch before its step.
        evaluated: The same on the same data after training; empty for a case without evaluation.
    """

    weights: list[np.ndarray]
    trained: dict[str, float]
    evaluated: dict[str, float]


class _Metrics(fp.Callback):
    """Reads the metrics of a round."""

    def __init__(self) -> None:
        """Has none before the round."""
        self.values: dict[str, float] = {}

    def on_round_end(self, run: Any) -> None:
        """Takes the metrics of a round."""
        ways = (name.partition("/")[::2] for name in run.metrics)
        self.values = {n: float(run.metrics[f"{way}/{n}"]) for way, n in ways if way == "train"}


def make_trainer(
    case: Case,
    keras_model: tf.keras.Model,
    clients: fp.ClientDataset,
    *,
    clients_per_round: int = 1,
) -> fp.Trainer:
    """Returns what trains clients for a round."""
    is_compiled = case.loss is None or bool(case.compiled)
    judged = {} if is_compiled else {"loss": case.loss, "metrics": list(case.metrics)}
    label_spec = tf.TensorSpec([None, *case.labels.shape[1:]], case.labels.dtype)
    model = fp.PartitionedModel(
        keras_model if case.start == "model" else case.build,
        **judged,
        **{"label_spec": label_spec, **case.options},
    )
    return fp.Trainer(
        model,
        fp.fed_avg(client_optimizer=case.optimizer(), local_epochs=EPOCHS),
        clients,
        clients_per_round=clients_per_round,
        batch_size=BATCH,
        packing=case.packing,
        shuffle="never",  # As `fit` is asked to.
        shards=1,
    )


def compile_model(case: Case) -> tf.keras.Model:
    """Returns the case's Keras model, compiled where the library or Keras wants that."""
    keras_model = case.build()
    if case.loss is not None and (case.compiled or case.refused is None):
        keras_model.compile(
            optimizer=case.optimizer(),
            loss=case.loss,
            metrics=list(case.metrics),
            run_eagerly=case.is_eager,
            **case.compiled,
        )
    return keras_model


def train_here(case: Case, keras_model: tf.keras.Model) -> tuple[list[np.ndarray] | None, Outcome]:
    """Trains by a round of federated averaging.

    Returns:
        The weights that were drawn, in Keras' order, or None; and the outcome.
    """
    named = case.features if isinstance(case.features, Mapping) else None
    if named is None:
        (name,) = getattr(keras_model, "input_names", None) or ["x"]
        named = {name if case.start == "model" else _input_name(case): case.features}
    clients = fp.ClientDataset(["client"], [0, len(case.labels)], named, case.labels)
    trainer, read = make_trainer(case, keras_model, clients), _Metrics()
    drawn = None
    if case.start == "drawn":
        drawn = trainer.untrained().to_keras().get_weights()
    with trainer.fit(rounds=1, progress=False, callbacks=[read]) as trained:
        weights = trained.to_keras().get_weights()
        evaluated = trained.overall(clients) if case.is_evaluated else {}
        return drawn, Outcome(weights, read.values, evaluated)


def _input_name(case: Case) -> str:
    names = getattr(case.build(), "input_names", None)
    return names[0] if names else "x"


def train_in_keras(case: Case, keras_model: tf.keras.Model) -> Outcome:
    """Trains the compiled model by Keras' own `fit`."""
    inputs = dict(case.features) if isinstance(case.features, Mapping) else case.features
    options = {"batch_size": BATCH, "verbose": 0}
    history = keras_model.fit(inputs, case.labels, epochs=EPOCHS, shuffle=False, **options)
    evaluated = {}
    if case.is_evaluated:  # A client's examples are evaluated in one batch.
        evaluated = keras_model.evaluate(
            inputs, case.labels, batch_size=len(case.labels), verbose=0, return_dict=True
        )
    roots = {m.name for m in case.metrics if isinstance(m, tf.keras.metrics.RootMeanSquaredError)}
    trained = {
        name: np.mean(np.square(values)) ** 0.5 if name in roots else np.mean(values)
        for name, values in history.history.items()
    }
    return Outcome(keras_model.get_weights(), trained, evaluated)


def join(cases: Sequence[Case]) -> Case:
    """Returns the case of one model with the layers of several cases side by side, each its head.

    The mean of what they say is trained, at as many times the rate as there are layers: each moves
    as far as it would alone.
    """
    first = cases[0]
    assert isinstance(first.features, np.ndarray)

    def build() -> tf.keras.Model:
        x = tf.keras.Input(first.features.shape[1:], dtype=first.features.dtype.name, name="x")
        outputs = []
        for i, case in enumerate(cases):
            assert case.part is not None
            flat = tf.keras.layers.Flatten()(case.part()(x))
            outputs.append(tf.keras.layers.Dense(1, name=f"head_{i}")(flat))
        return tf.keras.Model(x, tf.keras.layers.Average()(outputs))

    def optimizer() -> Any:
        alone = first.optimizer()
        return tf.keras.optimizers.SGD(len(cases) * float(alone.learning_rate))

    names = JOINED + ", ".join(case.name for case in cases)
    return Case(names, build, first.features, first.labels, metrics=["mae"], optimizer=optimizer)


def check(case: Case) -> None:
    """Asserts that training here equals Keras' own, or is refused as the case says."""
    assert case.start in STARTS
    keras_model = compile_model(case)
    try:
        drawn, here = train_here(case, keras_model)
    except fp.UserError as error:
        message = str(error)
        assert case.refused is not None, message
        assert case.refused in message and "\n" not in message, message
        return
    assert case.refused is None, "it is not refused"
    if drawn is not None:
        if not keras_model.built:
            keras_model(case.features)
        keras_model.set_weights(drawn)
    before = keras_model.get_weights()
    expected = train_in_keras(case, keras_model)
    moved = [a.size and np.abs(a - b).max() > 1e-4 for a, b in zip(before, expected.weights)]
    if case.name.startswith(JOINED):
        heads = [i for i, v in enumerate(keras_model.weights) if v.name.startswith("head_")]
        assert heads and all(moved[i] for i in heads)
    assert any(moved)
    assert len(here.weights) == len(expected.weights)
    for weights, others in zip(here.weights, expected.weights):
        np.testing.assert_allclose(weights, others, rtol=1e-5, atol=1e-5)
    names = {"loss"} if case.name in ONE_A_BATCH else expected.trained.keys()
    found = {name: here.trained.get(name) for name in names}
    assert found == {name: _close(expected.trained[name]) for name in names}
    assert here.evaluated == {k: _close(v) for k, v in expected.evaluated.items()}


def _close(value: float) -> Any:
    return pytest.approx(float(value), rel=1e-5, abs=1e-5)
