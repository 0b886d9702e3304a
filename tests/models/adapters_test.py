"""Parts beside a frozen GPT-2, against a forward computation in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.models.adapters import _FROZEN_SEED
from fedpersonal.tasks.utterances.methods import FEDERATED

ADAPTED = {method.name: method for method in FEDERATED if method.parts}
LORA = [name for name, method in ADAPTED.items() if "lora_b" in method.parts]
# Which method, and the matrices that LoRA's factors are beside.
CASES = [*((name, "qkv") for name in ADAPTED), *((name, "all") for name in LORA)]
BATCH, TIME, LENGTH, RANK = 3, 6, 4, 2


@pytest.fixture(name="models", scope="module")
def _models(build_method):
    sizes = {"num_contexts": 2, "prefix_length": LENGTH, "lora_rank": RANK}
    return {
        (name, matrices): build_method(name, lora_matrices=matrices, **sizes)
        for name, matrices in (*CASES, ("fedperc", "qkv"))
    }


@pytest.fixture(name="text", scope="module")
def _text(tiny_base):
    ids = tiny_base.config.vocab_size
    return np.random.default_rng(5).integers(0, ids, (BATCH, TIME)).astype(np.int32)


def drawn(model, seed=1):
    """Returns values of a model's variables, own ones for each example of a batch."""
    random = np.random.default_rng(seed)
    local = {v.name for v in model.local_variables}
    return {
        v.name: random.normal(
            scale=0.5, size=(BATCH, *v.shape[1:]) if v.name in local else v.shape
        ).astype(np.float32)
        for v in model.variables
    }


def predict(model, values, text, users=None):
    """Applies a model whose tables have a row for each example."""
    inputs = {"text": text, "user": np.arange(BATCH) if users is None else users}
    inputs["context"] = np.zeros(BATCH)
    features = {name: tf.constant(inputs[name], tf.int32) for name in model.input_spec}
    values = {name: tf.constant(value) for name, value in values.items()}
    run = tf.function(lambda: model.predict(values, features, training=True)[0], autograph=False)
    return run().numpy()


class Reference:
    """GPT-2 of one example in NumPy (Radford et al., 2019), with parts by their kind."""

    def __init__(self, base):
        self.weights, self.config = base.weights, base.config

    def logits(self, text, parts):
        config, weights = self.config, self.weights
        dim = config.n_embd
        table = weights["wte/embeddings"]
        start = table[[config.bos_token_id]]
        if "prefix" in parts:
            start = start + parts["prefix"].reshape(-1, dim)
        if "embedding" in parts:
            start = parts["embedding"].reshape(-1, dim)
        x = np.concatenate([start, table[text[:-1]]])
        x = x + weights["wpe/embeddings"][: len(x)]
        for block in range(config.n_layer):
            x = x + self.attend(self.norm(x, f"h_._{block}/ln_1"), block, parts)
            inner = self.linear(self.norm(x, f"h_._{block}/ln_2"), block, "mlp/c_fc", parts)
            cubic = np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)
            inner = 0.5 * inner * (1 + np.tanh(cubic))
            x = x + self.linear(inner, block, "mlp/c_proj", parts)
        x = self.norm(x, "ln_f")[len(start) - 1 :]
        head = table.T
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
        blocks, dim = self.config.n_layer, self.config.n_embd
        a = parts["lora_a"].reshape(blocks, -1, RANK)[block]
        b = parts["lora_b"].reshape(blocks, RANK, -1)[block]
        # Factors of a block stand one after the other, in the order in which it uses them.
        places = {"attn/c_attn": (0, 0), "attn/c_proj": (1, 3)}
        places.update({"mlp/c_fc": (2, 4), "mlp/c_proj": (3, 8)})
        first_in, first_out = (dim * place for place in places[name])
        a = a[first_in : first_in + weight.shape[0]]
        b = b[:, first_out : first_out + weight.shape[1]]
        return made + x @ a @ b if a.size else made

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


@pytest.mark.parametrize(("name", "matrices"), CASES)
def test_logits_are_those_of_numpy(tiny_base, models, text, name, matrices):
    model, method = models[name, matrices], ADAPTED[name]
    rows = tiny_base.config.n_embd * (7 if matrices == "all" else 1)
    values, frozen_a = drawn(model), [tiny_base.config.n_layer, rows, RANK]
    found = predict(model, values, text)
    for row in range(BATCH):
        parts = {"lora_a": None}
        for kind, whose in method.parts.items():
            (own,) = (v for n, v in values.items() if f"/{whose}_{kind}/" in n)
            parts[kind] = own[row] if whose == "personal" else own
        if parts["lora_a"] is None:
            a = tf.random.stateless_normal([1, *frozen_a], _FROZEN_SEED).numpy()
            parts["lora_a"] = a / np.sqrt(tiny_base.config.n_embd)
        expected = Reference(tiny_base).logits(text[row], parts)
        np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-3)
        # The parts do change something.
        assert np.abs(expected - Reference(tiny_base).logits(text[row], {})).max() > 0.02


def test_longer_embeddings_of_fedperc_are_several_vectors(tiny_base, models, text):
    model = models["fedperc", "qkv"]
    values = drawn(model)
    found = predict(model, values, text)
    for row in range(BATCH):
        personal, context = (v[row if "personal" in n else 0] for n, v in values.items())
        assert personal.shape == (LENGTH * tiny_base.config.n_embd,)
        expected = Reference(tiny_base).logits(text[row], {"embedding": personal * context})
        np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "matrices"), CASES)
def test_untrained_parts_leave_the_bases_logits(tiny_base, build_method, text, name, matrices):
    sizes = {"prefix_length": 1, "lora_rank": RANK, "lora_matrices": matrices}
    model = build_method(name, num_contexts=2, **sizes)
    values = model.initial_values(model.variables, tf.constant([3, 0]))
    found = predict(model, values, text, users=np.zeros(BATCH))
    for row in range(BATCH):
        expected = Reference(tiny_base).logits(text[row], {})
        np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("name", "matrices"), CASES)
def test_all_parts_learn(models, text, name, matrices):
    """A gradient reaches each, if not from where they start then from anywhere else."""
    model = models[name, matrices]
    values = drawn(model)
    inputs = {"text": text, "user": np.arange(BATCH)}
    features = {name: tf.constant(inputs[name], tf.int32) for name in model.input_spec}

    @tf.function(autograph=False)
    def gradients(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            logits = model.predict(values, features, training=True)[0]
            loss = tf.reduce_sum(model.example_losses(text, logits))
        return tape.gradient(loss, values)

    for gradient in gradients({k: tf.constant(v) for k, v in values.items()}).values():
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 1e-4
