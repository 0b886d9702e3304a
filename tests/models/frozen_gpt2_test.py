"""Models around a frozen GPT-2, against transformers' own model with the same weights."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from transformers import TFGPT2LMHeadModel

from fedpersonal.tasks.utterances.methods import METHODS
from fedpersonal.tasks.utterances.model import build_language_model, freeze

NUM_CONTEXTS, HISTORY = 3, 7
CONTEXTS = np.array([2, 0, 1, 2], np.int32)


@pytest.fixture(name="models", scope="module")
def _models(tiny_base, tmp_path_factory):
    frozen = freeze(tiny_base, tmp_path_factory.mktemp("frozen"))
    sizes = {"num_contexts": NUM_CONTEXTS, "history_length": HISTORY}
    return {
        method.name: build_language_model(
            method.model,
            tiny_base,
            frozen,
            local_layers=method.own_layers,
            is_fresh=method.is_fresh,
            **sizes,
        )
        for method in METHODS
    }


@pytest.fixture(name="reference", scope="module")
def _reference(tiny_base, models):
    # A Keras model does not survive that others are made in graphs, so those come first.
    del models
    return TFGPT2LMHeadModel.from_pretrained(tiny_base.source)


@pytest.fixture(name="features", scope="module")
def _features(tiny_base):
    random = np.random.default_rng(5)
    ids = tiny_base.config.vocab_size
    return {
        "text": random.integers(0, ids, (4, 9)).astype(np.int32),
        "user": np.zeros(4, np.int32),
        "context": CONTEXTS,
        "history": random.integers(0, ids, (4, HISTORY)).astype(np.int32),
    }


def initial_values(model, seed=0):
    draw = tf.function(lambda: model.initial_values(model.variables, tf.constant([seed, 1])))
    return {name: value.numpy() for name, value in draw().items()}


def random_values(model, seed=0):
    random = np.random.default_rng(seed)
    return {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.variables}


@functools.cache
def _predict(model):
    return tf.function(lambda *e: model.predict(*e, training=True)[0], autograph=False)


def logits_of(model, values, features):
    """Applies a partitioned model as in training, without dropout all the same."""
    run = _predict(model)
    values = {name: tf.constant(value) for name, value in values.items()}
    return run(values, {name: tf.constant(features[name]) for name in model.input_spec}).numpy()


def named(values, ending):
    (value,) = (v for name, v in values.items() if name.endswith(ending))
    return value


def base_logits(base, reference, features):
    """Logits of the base alone: it begins with its token of a text's start."""
    start = np.full([len(features["text"]), 1], base.config.bos_token_id)
    return reference(np.concatenate([start, features["text"][:, :-1]], axis=1)).logits.numpy()


def close(actual, desired, **options):
    np.testing.assert_allclose(actual, desired, **{"rtol": 1e-4, "atol": 1e-4, **options})


def test_with_the_embedding_of_a_start_it_is_the_base(tiny_base, reference, models, features):
    values = initial_values(models["fedperc"])
    named(values, "personal_embedding/embeddings")[:] = 1.0
    start = tiny_base.weights["wte/embeddings"][tiny_base.config.bos_token_id]
    np.testing.assert_array_equal(named(values, "context_embedding/embeddings"), [start] * 3)
    expected = base_logits(tiny_base, reference, features)
    close(logits_of(models["fedperc"], values, features), expected)
    # What comes first tells in all places after it.
    other = reference(features["text"]).logits.numpy()
    assert np.abs(other - expected)[:, 1:].max(axis=-1).min() > 0.01


def test_a_prefix_is_a_first_embedding(reference, models, features):
    values = random_values(models["fedperc"])
    personal = named(values, "personal_embedding/embeddings")[0]
    prefix = personal * named(values, "context_embedding/embeddings")[CONTEXTS]
    words = reference.transformer.wte(features["text"][:, :-1])
    embeddings = tf.concat([prefix[:, np.newaxis], words], axis=1)
    expected = reference(None, inputs_embeds=embeddings).logits
    close(logits_of(models["fedperc"], values, features), expected)


@pytest.mark.parametrize("name", ["fedperc", "fedperc_generated"])
def test_untrained_it_is_near_the_base(tiny_base, reference, models, features, name):
    expected = base_logits(tiny_base, reference, features)
    difference = logits_of(models[name], initial_values(models[name]), features) - expected
    assert 0.0 < np.abs(difference).max() and difference.std() < 0.1 * expected.std()


def test_personal_embeddings_start_around_one(models):
    drawn = [
        named(initial_values(models["fedperc"], seed), "personal_embedding/embeddings")
        for seed in range(60)
    ]
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.005)
    assert np.std(drawn) == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("name", ["split_learning", "meta_learning"])
def test_heads_start_as_the_base(tiny_base, reference, models, features, name):
    expected = base_logits(tiny_base, reference, features)
    close(logits_of(models[name], initial_values(models[name]), features), expected)


def test_heads_are_averaged_or_alone(tiny_base, reference, models, features):
    start = np.full([4, 1], tiny_base.config.bos_token_id)
    text = np.concatenate([start, features["text"][:, :-1]], axis=1)
    hidden = reference.transformer(text).last_hidden_state.numpy()

    values = random_values(models["meta_learning"])
    (head,) = values.values()
    close(logits_of(models["meta_learning"], values, features), hidden @ head)

    values = random_values(models["split_learning"])
    personal, of_contexts = (
        named(values, ending) for ending in ("personal_head/kernel", "context_head/embeddings")
    )
    heads = 0.5 * (personal + of_contexts.reshape(NUM_CONTEXTS, *personal.shape)[CONTEXTS])
    close(logits_of(models["split_learning"], values, features), hidden @ heads)


def test_generated_embeddings_follow_the_history(models, features):
    """Whatever its order, whatever stands at places without a token, or without any at all."""
    model = models["fedperc_generated"]
    values = random_values(model)

    def logits(history):
        return logits_of(model, values, {**features, "history": np.array(history, np.int32)})

    history = features["history"].copy()
    history[:, 4:] = -1
    expected = logits(history)
    close(logits(history[:, [4, 2, 5, 0, 6, 3, 1]]), expected)
    history[:, 4:] = -9
    close(logits(history), expected)
    history[0, 0] += 1
    changed = np.abs(logits(history) - expected).max(axis=(1, 2))
    assert changed[0] > 1e-2 and (changed[1:] < 1e-4).all()
    nothing = logits(np.full([4, HISTORY], -1))
    assert np.isfinite(nothing).all()
    # Two examples of one context, each with a history of its own, and then with none.
    model_inputs = {**features, "text": np.repeat(features["text"][:1], 4, axis=0)}
    none = {**model_inputs, "history": np.full([4, HISTORY], -1, np.int32)}
    one, other = logits_of(model, values, model_inputs)[[0, 3]]
    assert np.abs(one - other).max() > 1e-2
    one, other = logits_of(model, values, none)[[0, 3]]
    close(one, other)


def test_who_has_which_variables(models):
    variables = {name: [(v.name, v.shape) for v in m.variables] for name, m in models.items()}
    for name in ("split_learning", "meta_learning"):
        assert variables[f"{name}_fresh"] == variables[name]
    models = {name: m for name, m in models.items() if not name.endswith("_fresh")}
    local = {name: [v.layer for v in model.local_variables] for name, model in models.items()}
    assert local == {
        "fedperc": ["personal_embedding"],
        "fedperc_generated": ["personal_embedding"],
        "split_learning": ["personal_head"],
        "meta_learning": [],
    }
    layers = {name: {v.layer for v in model.global_variables} for name, model in models.items()}
    assert layers == {
        "fedperc": {"context_embedding"},
        "fedperc_generated": {"context_embedding", "personal_generator", "context_generator"},
        "split_learning": {"context_head"},
        "meta_learning": {"head"},
    }
    assert not any("base" in v.name for model in models.values() for v in model.variables)
