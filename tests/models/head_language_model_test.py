"""How the heads of Split-Learning and Meta-Learning start, and what their logits are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.tasks.utterances.models import HEAD

NUM_CONTEXTS = 3
HEADS = {
    "split_learning": ["language_model/personal_head/kernel"]
    + ["language_model/context_head/embeddings"],
    "meta_learning": ["language_model/head/kernel"],
}


def draw(model, *, seed):
    values = model.initial_values(model.variables, tf.constant([seed, 0]))
    return {name: value.numpy() for name, value in values.items()}


@pytest.mark.parametrize("name", HEADS)
def test_heads_start_as_the_base_models(name, tiny_base, build_method):
    values = draw(build_method(name, num_contexts=NUM_CONTEXTS), seed=0)
    matrix = tiny_base.weights[HEAD].T
    assert sorted(values) == sorted(HEADS[name])
    for value in values.values():
        for one in value.reshape([-1, *matrix.shape]):
            np.testing.assert_array_equal(one, matrix)


@pytest.mark.parametrize("name", HEADS)
def test_fresh_heads_differ_and_depend_on_the_seed(name, tiny_base, build_method):
    model = build_method(f"{name}_fresh", num_contexts=NUM_CONTEXTS)
    values, again, other = (draw(model, seed=seed) for seed in (0, 0, 1))
    size = tiny_base.weights[HEAD].size
    heads = np.concatenate([values[variable].reshape([-1, size]) for variable in HEADS[name]])
    assert len(heads) == (1 + NUM_CONTEXTS if name == "split_learning" else 1)
    np.testing.assert_allclose(heads.std(axis=1), tiny_base.config.initializer_range, rtol=0.1)
    correlations = np.corrcoef(heads) if len(heads) > 1 else np.eye(1)
    assert np.abs(correlations - np.eye(len(heads))).max() < 0.1
    for variable, value in values.items():
        np.testing.assert_array_equal(value, again[variable])
        assert not np.allclose(value, other[variable])


def predict(model, values, **features):
    work = tf.function(lambda: model.predict(values, features, training=False)[0], autograph=False)
    return work().numpy()


def test_logits_are_those_of_the_mean_of_the_two_heads(build_method):
    split, shared = (build_method(f"{n}_fresh", num_contexts=NUM_CONTEXTS) for n in HEADS)
    values = draw(split, seed=0)
    own, contexts = (values[variable] for variable in HEADS["split_learning"])
    text = np.random.default_rng(0).integers(0, 300, [2, 5]).astype(np.int32)
    found = predict(split, values, text=text, context=np.array([2, 0]))
    for row, context in enumerate((2, 0)):
        mean = (own + contexts[context].reshape(own.shape)) / 2
        (variable,) = HEADS["meta_learning"]
        expected = predict(shared, {variable: mean}, text=text[row : row + 1])
        np.testing.assert_allclose(found[row], expected[0], atol=1e-5)
