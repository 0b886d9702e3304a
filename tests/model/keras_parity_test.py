"""One client's round of federated averaging is Keras' own `fit`, or the model is refused.

The table is in `keras_parity_losses` and `keras_parity_layers`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import numpy as np
import pytest

import fedpersonal as fp
from tests.model import keras_parity_layers, keras_parity_losses
from tests.model.keras_parity import (
    EVALUATED,
    check,
    compile_model,
    join,
    make_trainer,
    train_in_keras,
)

CASES = [*keras_parity_losses.CASES, *keras_parity_layers.CASES]

pytestmark = pytest.mark.usefixtures("not_compiled")


def groups():
    """Returns cases of layers that can stand in one model: of the same data and rate."""
    found = collections.defaultdict(list)
    for case in CASES:
        if case.part is not None:
            found[id(case.features), float(case.optimizer().learning_rate)].append(case)
    return [group for group in found.values() if len(group) > 1]


GROUPS = {case.name: i for i, group in enumerate(groups()) for case in group}
# One case of each way to compute losses, masks, metrics, weights and constraints; layers that stand
# side by side, and refusals, run as well.
USUAL = {
    *(
        "reduction sum",
        "mask_zero",
        "ignore_class",
        "sparse labels (batch, 1)",
        "function of a batch",
    ),
    *("captured variable in a loss", "custom gradient", "metrics of two classes", "momentum"),
    *("weighted_metrics", "set_weights in a builder", "tied weights", "constraint, pooled"),
    *("bias constraint", "loss added by a layer", "regularizers", "frozen batch normalization"),
    *("function that compares examples", "operations", "BinaryFocalCrossentropy"),
    *("compiled without a loss", "inputs of a dict", "pretrained part in a builder"),
}


def row(case):
    """Returns the row of a case, which is marked where it is none of the usual ones."""
    is_usual = case.refused is not None or case.name in {*GROUPS} | USUAL
    return pytest.param(case, marks=[] if is_usual else pytest.mark.exhaustive, id=case.name)


@functools.cache
def failure(number):
    """Returns what the joined case of a group fails with, or None."""
    try:
        check(join(groups()[number]))
    except Exception as error:  # Each layer is then checked alone.
        return error
    return None


@pytest.mark.parametrize("case", map(row, CASES))
def test_round_equals_fit_or_model_is_refused(case):
    """Layers are trained side by side; alone where one of them fails."""
    if case.name not in GROUPS or failure(GROUPS[case.name]):
        check(case)


@pytest.mark.parametrize("number", {*GROUPS.values()})
def test_layers_side_by_side_equal_fit(number):
    if error := failure(number):
        raise error


def test_names_are_distinct_and_known():
    names = {case.name for case in CASES}
    assert len(names) == len(CASES) and names >= EVALUATED | USUAL


@pytest.mark.exhaustive(but=("reduction sum",))
@pytest.mark.parametrize("name", ["mask_zero", "reduction sum"])
def test_clients_of_different_sizes_average_what_each_fits(name):
    """A stack has padding, which is in no batch's loss; an audit agrees."""
    (case,) = (case for case in CASES if case.name == name)
    keras_model, counts = compile_model(case), np.array([8, 4, 1])
    features, labels = (np.tile(c, (2, *[1] * (c.ndim - 1))) for c in (case.features, case.labels))
    offsets = np.cumsum([0, *counts])
    clients = fp.ClientDataset(
        [*"abc"], offsets, {keras_model.input_names[0]: features[: offsets[-1]]}, labels[:13]
    )
    start, fitted, evaluated = keras_model.get_weights(), [], []
    trainer = make_trainer(case, keras_model, clients, clients_per_round=3)
    for first, end in zip(offsets, offsets[1:]):
        one = dataclasses.replace(case, features=features[first:end], labels=labels[first:end])
        keras_model.set_weights(start)
        fitted.append(train_in_keras(one, keras_model).weights)
    with trainer.fit(rounds=1, progress=False) as trained:
        for found, each in zip(trained.to_keras().get_weights(), zip(*fitted)):
            expected = np.average(each, axis=0, weights=counts)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        losses = trained.results(clients).per_client()["loss_after"]
        keras_model.set_weights(trained.to_keras().get_weights())
    for first, end in zip(offsets, offsets[1:]):
        pair = features[first:end], labels[first:end]
        evaluated.append(
            keras_model.test_on_batch(*pair, return_dict=True, reset_metrics=True)["loss"]
        )
    np.testing.assert_allclose(losses, evaluated, rtol=1e-5)
    assert name != "mask_zero" or trainer.audit(rounds=1).holds
