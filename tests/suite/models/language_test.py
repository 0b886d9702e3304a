"""Models around a frozen GPT-2, their loss and their metric, against NumPy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.metrics import finalize
from fedpersonal.suite.models.adapters import _FROZEN_SEED
from fedpersonal.suite.models.language import (
    NO_TOKEN,
    count_utterance_tokens,
    perplexity,
    sum_utterance_losses,
)
from fedpersonal.suite.tasks.utterances.methods import FEDERATED

PARTS = {method.name: method.parts for method in FEDERATED if method.parts}
# Which method, and the matrices that LoRA's factors are beside.
ADAPTED = [
    *((name, "qkv") for name in PARTS),
    *((name, "all") for name, parts in PARTS.items() if "lora_b" in parts),
]
OTHERS = [
    (name, "qkv") for name in ("fedperc", "fedperc_projected", "split_learning", "meta_learning")
]
GENERATED = ("fedperc_generated", "qkv")
BATCH, TIME, LENGTH, RANK, NUM_CONTEXTS, HISTORY, NUMBERS = 3, 6, 4, 2, 2, 5, 3
CONTEXTS = np.array([1, 0, 1])


@pytest.fixture(name="build", scope="module")
def _build(build_method):
    def build(name, matrices="qkv", length=LENGTH):
        sizes = {"lora_matrices": matrices, "lora_rank": RANK, "prefix_length": length}
        sizes["vector_size"] = NUMBERS
        return build_method(name, num_contexts=NUM_CONTEXTS, history_length=HISTORY, **sizes)

    return build


@pytest.fixture(name="features", scope="module")
def _features(tiny_base):
    random, ids = np.random.default_rng(5), tiny_base.config.vocab_size
    drawn = {"text": random.integers(0, ids, (BATCH, TIME))}
    drawn["history"] = random.integers(0, ids, (BATCH, HISTORY))
    vectors = random.normal(size=(BATCH, NUMBERS)).astype(np.float32)
    return {**drawn, "user": np.arange(BATCH), "context": CONTEXTS, "vector": vectors}


def draw(model, *, rows=BATCH):
    """Draws values of a model's variables; a client's own tables have so many rows."""
    random = np.random.default_rng(1)
    tables = {v.name for v in model.local_variables if "head" not in v.name}
    values = {}
    for v in model.variables:
        shape = (rows, *v.shape[1:]) if v.name in tables else v.shape
        values[v.name] = random.normal(scale=0.5, size=shape).astype(np.float32)
    return values


@functools.cache
def _step(model):
    @tf.function(autograph=False)
    def run(values, features):
        with tf.GradientTape() as tape:
            tape.watch(values)
            logits, _ = model.predict(values, features, training=True)
            loss = tf.reduce_sum(model.example_losses(features["text"], logits))
        return logits, tape.gradient(loss, values)

    return run


@pytest.fixture(scope="module", autouse=True)
def _steps_are_freed():
    yield
    _step.cache_clear()


def apply(model, values, features):
    """Returns logits as in training, and the gradients of the loss."""
    features = {n: tf.constant(features[n], spec.dtype) for n, spec in model.input_spec.items()}
    values = {name: tf.constant(value) for name, value in values.items()}
    logits, gradients = _step(model)(values, features)
    return logits.numpy(), {name: tf.convert_to_tensor(g) for name, g in gradients.items()}


def initial_values(model, seed=0):
    run = tf.function(lambda: model.initial_values(model.variables, tf.constant([seed, 1])))
    return {name: value.numpy() for name, value in run().items()}


def named(values, part, kind=""):
    (value,) = (v for name, v in values.items() if f"/{part}/{kind}" in name)
    return value


def close(actual, desired):
    np.testing.assert_allclose(actual, desired, rtol=1e-3, atol=1e-3)


class Reference:
    """GPT-2 of one example in NumPy (Radford et al., 2019), with parts by their kind."""

    def __init__(self, base):
        self.weights, self.config = base.weights, base.config

    def logits(self, text, parts):
        dim, table = self.config.n_embd, self.weights["wte/embeddings"]
        start = table[[self.config.bos_token_id]]
        if "prefix" in parts:
            start = start + parts["prefix"].reshape(-1, dim)
        if "embedding" in parts:
            start = parts["embedding"].reshape(-1, dim)
        x = np.concatenate([start, table[text[:-1]]])
        x = x + self.weights["wpe/embeddings"][: len(x)]
        for block in range(self.config.n_layer):
            x = x + self.attend(self.norm(x, f"h_._{block}/ln_1"), block, parts)
            inner = self.linear(self.norm(x, f"h_._{block}/ln_2"), block, "mlp/c_fc", parts)
            cubic = np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)
            inner = 0.5 * inner * (1 + np.tanh(cubic))
            x = x + self.linear(inner, block, "mlp/c_proj", parts)
        x = self.norm(x, "ln_f")[len(start) - 1 :]
        head = parts["whole_head"] if "whole_head" in parts else table.T
        if "head" in parts:
            head = head + parts["head"].reshape(head.shape)
        return x @ head + parts.get("bias", np.zeros(1)).reshape(-1)

    def norm(self, x, name):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return scaled * self.weights[f"{name}/gamma"] + self.weights[f"{name}/beta"]

    def linear(self, x, block, name, parts):
        """Applies a matrix of a block, and the factors that stand beside it."""
        weight, bias = (self.weights[f"h_._{block}/{name}/{kind}"] for kind in ("weight", "bias"))
        made = x @ weight + bias.reshape(-1)
        if "lora_b" not in parts:
            return made
        added = self.low_rank(x, block, name, weight, parts["lora_a"], parts["lora_b"])
        if "own_lora_b" in parts:
            own = parts["own_lora_a"], parts["own_lora_b"]
            added = added + self.low_rank(x, block, name, weight, *own)
        return made + added

    def low_rank(self, x, block, name, weight, a, b):
        """The product of the factors that stand beside a matrix."""
        blocks, dim = self.config.n_layer, self.config.n_embd
        a, b = a.reshape(blocks, -1, RANK)[block], b.reshape(blocks, RANK, -1)[block]
        # Factors of a block stand one after the other, in the order in which it uses them.
        places = {"attn/c_attn": (0, 0), "attn/c_proj": (1, 3)}
        places.update({"mlp/c_fc": (2, 4), "mlp/c_proj": (3, 8)})
        first_in, first_out = (dim * place for place in places[name])
        a = a[first_in : first_in + weight.shape[0]]
        b = b[:, first_out : first_out + weight.shape[1]]
        return x @ a @ b if a.size else 0.0

    def attend(self, x, block, parts):
        blocks, dim, heads = (getattr(self.config, n) for n in ("n_layer", "n_embd", "n_head"))
        made = self.linear(x, block, "attn/c_attn", parts)
        query, key, value = (m.reshape(len(x), heads, -1) for m in np.split(made, 3, axis=1))
        found = np.empty(query.shape)
        for place in range(len(x)):
            for head in range(heads):
                one = query[place, head] / np.sqrt(dim // heads)
                found[place, head] = self.read(one, key[: place + 1, head], value[:, head])
                if "layer_prefix" in parts:
                    both = parts["layer_prefix"].reshape(2, blocks, LENGTH, heads, dim // heads)
                    found[place, head] += self.read(one, *both[:, block, :, head])
        return self.linear(found.reshape(len(x), dim), block, "attn/c_proj", parts)

    def read(self, query, keys, values):
        weights = np.exp(keys @ query)
        return weights @ values[: len(keys)] / weights.sum()


def parts_of(base, name, matrices, values, row, vectors):
    """Returns the parts that the reference takes for an example."""
    if name == "fedperc_projected":
        kernel, bias = (named(values, "personal_projection", kind) for kind in ("kernel", "bias"))
        personal, context = vectors[row] @ kernel + bias, named(values, "context_embedding")
        return {"embedding": personal * context[CONTEXTS[row]]}
    if name == "fedperc":
        personal, context = (named(values, f"{kind}_embedding") for kind in ("personal", "context"))
        return {"embedding": personal[row] * context[CONTEXTS[row]]}
    if name == "meta_learning":
        return {"whole_head": named(values, "head")}
    if name == "split_learning":
        personal, context = named(values, "personal_head"), named(values, "context_head")
        return {"whole_head": (personal + context[CONTEXTS[row]].reshape(personal.shape)) / 2}
    parts = {}
    for kind, whose in PARTS[name].items():
        value = named(values, f"{whose}_{kind}")
        parts[kind] = value[row] if whose == "personal" else value
    if "lora_b" in parts and "lora_a" not in parts:
        dim = base.config.n_embd
        shape = [1, base.config.n_layer, dim * (7 if matrices == "all" else 1), RANK]
        parts["lora_a"] = tf.random.stateless_normal(shape, _FROZEN_SEED).numpy() / np.sqrt(dim)
    return parts


@pytest.mark.exhaustive(
    but=(
        "rolora-all",
        "personal_layer_prefix-qkv",
        "feddpa-qkv",
        "fedperc-qkv",
        "split_learning-qkv",
        "ffa_lora-all",
    )
)
@pytest.mark.parametrize(("name", "matrices"), [*ADAPTED, *OTHERS])
def test_logits_are_those_of_numpy_and_all_parts_learn(tiny_base, build, features, name, matrices):
    model = build(name, matrices)
    values = draw(model)
    logits, gradients = apply(model, values, features)
    reference = Reference(tiny_base)
    for row in range(BATCH):
        parts = parts_of(tiny_base, name, matrices, values, row, features["vector"])
        expected = reference.logits(features["text"][row], parts)
        close(logits[row], expected)
        # The parts do change something.
        assert np.abs(expected - reference.logits(features["text"][row], {})).max() > 0.02
    assert all(np.abs(gradient).max() > 1e-4 for gradient in gradients.values())


@pytest.mark.exhaustive(but=("lora_bias-all", "fedperc_generated-qkv"))
@pytest.mark.parametrize(("name", "matrices"), [*ADAPTED, *OTHERS, GENERATED])
def test_untrained_the_logits_are_the_bases(tiny_base, build, features, name, matrices):
    model = build(name, matrices, length=1)
    inputs = {**features, "user": np.zeros(BATCH)}
    logits, _ = apply(model, initial_values(model), inputs)
    expected = np.stack([Reference(tiny_base).logits(text, {}) for text in features["text"]])
    if name.startswith("fedperc"):  # Nearly: their embeddings start at a draw.
        assert 0.0 < (logits - expected).std() < 0.1 * expected.std()
    else:
        close(logits, expected)


def test_a_projection_that_is_the_identity_makes_of_a_vector_the_personal_embedding(
    tiny_base, build_method, features
):
    size = tiny_base.config.n_embd
    kept, projected = (
        build_method(name, num_contexts=NUM_CONTEXTS, vector_size=size)
        for name in ("fedperc", "fedperc_projected")
    )
    values = draw(kept)
    vectors = named(values, "personal_embedding")
    shared = {n: v for n, v in values.items() if "/context_embedding/" in n}
    identity = {
        v.name: np.eye(*v.shape) if v.name.endswith("kernel") else np.zeros(v.shape)
        for v in projected.variables
    }
    given = {n: v.astype(np.float32) for n, v in {**identity, **shared}.items()}
    expected, _ = apply(kept, values, features)
    found, _ = apply(projected, given, {**features, "vector": vectors})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.1


def test_personal_embeddings_start_around_one(build):
    model = build("fedperc")
    drawn = [named(initial_values(model, seed), "personal_embedding") for seed in range(15)]
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.005)
    assert np.std(drawn) == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("name", ["split_learning", "meta_learning"])
def test_fresh_heads_differ_and_depend_on_the_seed(name, tiny_base, build):
    model = build(f"{name}_fresh")
    assert [v.name for v in model.variables] == [v.name for v in build(name).variables]
    values, again, other = (initial_values(model, seed) for seed in (0, 0, 1))
    size = tiny_base.weights["wte/embeddings"].size
    heads = np.concatenate([value.reshape([-1, size]) for value in values.values()])
    assert len(heads) == (1 + NUM_CONTEXTS if name == "split_learning" else 1)
    np.testing.assert_allclose(heads.std(axis=1), tiny_base.config.initializer_range, rtol=0.1)
    correlations = np.corrcoef(heads) if len(heads) > 1 else np.eye(1)
    assert np.abs(correlations - np.eye(len(heads))).max() < 0.1
    for variable, value in values.items():
        np.testing.assert_array_equal(value, again[variable])
        assert not np.allclose(value, other[variable])


def test_generated_embeddings_follow_the_history(build, features):
    """Whatever its order, whatever stands at places without a token, or without any at all."""
    model = build(*GENERATED)
    values = draw(model, rows=1)
    same = {"text": np.repeat(features["text"][:1], BATCH, axis=0), "user": np.zeros(BATCH)}

    def logits(history):
        return apply(model, values, {**features, **same, "history": history})[0]

    history = features["history"].copy()
    history[:, 3:] = -1
    expected = logits(history)
    close(logits(history[:, [4, 2, 0, 3, 1]]), expected)
    history[:, 3:] = -9
    close(logits(history), expected)
    history[0, 0] += 1
    changed = np.abs(logits(history) - expected).max(axis=(1, 2))
    assert changed[0] > 1e-2 and (changed[1:] < 1e-4).all()
    # Examples of one context differ by their histories, unless they have none.
    assert np.abs(expected[0] - expected[2]).max() > 1e-2
    nothing = logits(np.full([BATCH, HISTORY], -1))
    assert np.isfinite(nothing).all()
    close(nothing[0], nothing[2])


def test_who_has_which_variables(build):
    layers = {}
    for name, _ in (*OTHERS, GENERATED):
        model = build(name)
        ours = (model.local_variables, model.global_variables)
        layers[name] = tuple({v.layer for v in variables} for variables in ours)
    generators = {"context_embedding", "personal_generator", "context_generator"}
    assert layers == {
        "fedperc": ({"personal_embedding"}, {"context_embedding"}),
        "fedperc_projected": (set(), {"personal_projection", "context_embedding"}),
        "fedperc_generated": ({"personal_embedding"}, generators),
        "split_learning": ({"personal_head"}, {"context_head"}),
        "meta_learning": (set(), {"head"}),
    }


IDS = 7
# Of 6, 4, 3 and no tokens; an id of 0 is a token as any other.
LENGTHS = (6, 4, 3, 0)


def draw_utterances():
    """Returns labels, logits, and each token's loss, NaN where there is none."""
    random = np.random.default_rng(1)
    labels = random.integers(0, IDS, [4, 6]).astype(np.int32)
    labels[0, 4] = 0
    for row, length in zip(labels, LENGTHS):
        row[length:] = NO_TOKEN
    logits = 2 * random.normal(size=[4, 6, IDS]).astype(np.float32)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_probabilities, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return labels, logits, np.where(labels >= 0, losses, np.nan)


def test_the_loss_is_the_sum_over_tokens():
    labels, logits, losses = draw_utterances()
    found = sum_utterance_losses(tf.constant(labels), tf.constant(logits))
    np.testing.assert_allclose(found, np.nansum(losses, axis=1), rtol=1e-5)
    counts = count_utterance_tokens(tf.constant(labels))
    assert counts.dtype == tf.float32 and counts.numpy().tolist() == list(LENGTHS)


@pytest.mark.parametrize("options", [{}, {"prompt_tokens": 1}])
def test_perplexity_is_of_what_follows_the_first_tokens(options):
    labels, logits, losses = draw_utterances()
    first = options.get("prompt_tokens", 3)
    metric = perplexity(**options)
    logits[:, :first] = 100 * np.arange(IDS)  # What is given does not count.
    values = metric.example_value(tf.constant(labels), tf.constant(logits)).numpy()
    weights = metric.example_weight(tf.constant(labels)).numpy()
    assert weights.tolist() == [max(0, length - first) for length in LENGTHS]
    found = finalize([metric], {"perplexity": [values.sum(), weights.sum()]})
    assert found["perplexity"] == pytest.approx(np.exp(np.nanmean(losses[:, first:])), rel=1e-5)
