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
STARTS = ("model", "builder", "drawn")


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

    @property
    def is_evaluated(self) -> bool:
        """Whether there is more to compare than the loss in training: tracing takes a second."""
        return bool(self.metrics or self.compiled or self.loss is None)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A model's weights before and after training, and its metrics.

    Attributes:
        weights: The weights after training, in Keras' order.
        train_loss: The mean loss of both epochs, each batch before its step.
        evaluated: The loss and each metric on the same data; empty for a case without metrics.
    """

    weights: list[np.ndarray]
    train_loss: float
    evaluated: dict[str, float]


class _TrainLoss(fp.Callback):
    """Reads the loss of a round."""

    value = float("nan")

    def on_round_end(self, run: Any) -> None:
        """Takes the loss of a round."""
        self.value = float(run.metrics["train/loss"])


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
    trainer, loss = make_trainer(case, keras_model, clients), _TrainLoss()
    drawn = None
    if case.start == "drawn":
        drawn = trainer.untrained().to_keras().get_weights()
    with trainer.fit(rounds=1, progress=False, callbacks=[loss]) as trained:
        weights = trained.to_keras().get_weights()
        evaluated = trained.overall(clients) if case.is_evaluated else {}
        return drawn, Outcome(weights, loss.value, evaluated)


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
    return Outcome(keras_model.get_weights(), np.mean(history.history["loss"]), evaluated)


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
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(before, expected.weights) if a.size)
    assert len(here.weights) == len(expected.weights)
    for weights, others in zip(here.weights, expected.weights):
        np.testing.assert_allclose(weights, others, rtol=1e-5, atol=1e-5)
    assert here.train_loss == _close(expected.train_loss)
    assert here.evaluated == {k: _close(v) for k, v in expected.evaluated.items()}


def _close(value: float) -> Any:
    return pytest.approx(float(value), rel=1e-5, abs=1e-5)
