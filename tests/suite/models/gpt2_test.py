"""A folder with a GPT-2: written, read, and what is said of one that is not in order."""

from __future__ import annotations

import json
import os
import shutil

import h5py
import huggingface_hub
import numpy as np
import pytest
import requests
import tensorflow as tf
from huggingface_hub.errors import RevisionNotFoundError
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel, TFGPT2MainLayer
from transformers.models.gpt2.tokenization_gpt2_fast import GPT2TokenizerFast

from fedpersonal.errors import UserError
from fedpersonal.suite.models.gpt2 import (
    check_is_free,
    load_base_model,
    save_base_model,
    train_tokenizer,
)

IDS = np.array([[259, 5, 9, 2], [259, 7, 7, 1]])
TEXTS = ["the cat sat on the mat .", "the dog sat on the log !", "a cat and a dog"] * 5
ODD = "  How you doin' , Jo\u00e9y ?\n\n\U0001f600 \x00 the  cat ."


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return train_tokenizer(TEXTS, vocab_size=260)


@pytest.fixture(scope="module", name="model")
def _model():
    config = GPT2Config(vocab_size=260, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    model = TFGPT2LMHeadModel(config)
    model.build_in_name_scope()
    return model


@pytest.fixture(scope="module", name="saved")
def _saved(tmp_path_factory, model, tokenizer):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_base_model(folder, model, tokenizer, notes={"notes.json": {"seed": 1}})
    return folder


@pytest.fixture(name="folder")
def _folder(saved, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(saved, tmp_path / "tiny")


def complaint(source, **options):
    with pytest.raises(UserError) as caught:
        load_base_model(source, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    assert str(source) in message
    return message


def logits_of(base):
    """Computes logits from the weights alone, each under its name."""
    layer = TFGPT2MainLayer(base.config, name="transformer")
    created = []

    def create(make, **options):
        created.append(make(**options))
        return created[-1]

    with tf.variable_creator_scope(create):
        layer.build(None)
    weights = {id(variable) for variable in layer.weights}
    created = [variable for variable in created if id(variable) in weights]
    assert [variable.name.split(":")[0] for variable in created] == list(base.weights)
    for variable, value in zip(created, base.weights.values()):
        assert value.dtype == np.float32
        variable.assign(value)
    return layer(IDS).last_hidden_state @ tf.transpose(base.weights["wte/embeddings"])


def test_a_saved_model_is_loaded_and_is_as_huggingface_has_it(saved, model, tokenizer):
    names = {path.name for path in saved.iterdir()}
    assert names >= {
        "config.json", "tf_model.h5", "tokenizer.json", "vocab.json", "merges.txt",
        "tokenizer_config.json", "notes.json",
    }  # fmt: skip
    assert json.loads((saved / "notes.json").read_text()) == {"seed": 1}
    assert [path.name for path in saved.parent.iterdir()] == ["tiny"]
    base = load_base_model(saved)
    assert base.name == "tiny" and base.config.n_layer == 2
    assert base.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert list(base.weights)[:4] == ["wte/embeddings", "wpe/embeddings", "ln_f/gamma", "ln_f/beta"]
    np.testing.assert_allclose(logits_of(base), model(IDS).logits, atol=1e-6)
    again = TFGPT2LMHeadModel.from_pretrained(saved)
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("source", ["tensorflow", "pytorch"])
def test_safetensors_serve_where_there_is_no_h5(folder, model, source):
    """PyTorch's names differ, and there is no PyTorch here."""
    from safetensors.numpy import save_file

    (folder / "tf_model.h5").unlink()
    (folder / "tokenizer.json").unlink()  # The files of GPT-2 itself serve in its place.
    if source == "tensorflow":
        model.save_pretrained(folder, safe_serialization=True)
    else:
        tensors = {}
        for variable in model.weights:
            name = variable.name.split("/transformer/")[1].split(":")[0].replace("h_._", "h.")
            name = name.replace("/", ".").replace("embeddings", "weight")
            name = name.replace("gamma", "weight").replace("beta", "bias")
            value = variable.numpy()
            tensors[name] = value.reshape(-1) if name.endswith("bias") else value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    np.testing.assert_allclose(logits_of(load_base_model(folder)), model(IDS).logits, atol=1e-6)


@pytest.mark.parametrize("name", ["no_such/model", "no/such/model", "distilgpt2"])
def test_without_a_folder_or_a_hub(name, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *args, **options: download(*args, **options, cache_dir=tmp_path),
    )
    message = complaint(name)
    assert message.startswith(name) and "hub" in message
    assert "local folder" in message and "fedpersonal pretrain" in message


def test_the_hubs_files_and_revisions_are_asked_for(saved, monkeypatch, tmp_path):
    calls = []
    (tmp_path / "config.json").touch()  # What comes first has no weights.

    def download(name, *, revision, allow_patterns):
        calls.append((name, revision, allow_patterns))
        if revision == "v9":
            raise RevisionNotFoundError("404", response=requests.Response())
        return str(saved if len(calls) > 2 else tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert "there is no" in str(pytest.raises(UserError, load_base_model, "a/b", revision="v1"))
    (_, revision, files), second = calls
    assert revision == "v1" and {"config.json", "tf_model.h5", "merges.txt"} <= set(files)
    assert second == ("a/b", "v1", ["model.safetensors"])
    base = load_base_model("a/b")
    assert base.name == "a/b" and calls[2][1] is None
    np.testing.assert_array_equal(base.weights["ln_f/gamma"], np.ones(16))
    assert "a/b: the hub has no revision 'v9' of it; give a" in complaint("a/b", revision="v9")


def test_what_is_no_folder_of_a_model(folder):
    assert "is a folder, which has no revision 'v1'" in complaint(folder, revision="v1")
    assert "a base model is a folder, this is a file" in complaint(folder / "config.json")


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (["config.json"], "there is no config.json"),
        (["tf_model.h5"], "there is no tf_model.h5, nor model.safetensors"),
        (["tokenizer.json", "vocab.json"], "there is no tokenizer.json, nor vocab.json"),
    ],
)
def test_missing_files(folder, removed, message):
    for name in removed:
        (folder / name).unlink()
    serves = "give a local folder, such as `fedpersonal pretrain` makes"
    assert complaint(folder) == f"{folder}: {message}; {serves}"


@pytest.mark.parametrize("kept", [0.02, 0.99])
@pytest.mark.parametrize("name", ["tf_model.h5", "model.safetensors"])
def test_truncated_weights(folder, model, name, kept):
    if name == "model.safetensors":
        (folder / "tf_model.h5").unlink()
        model.save_pretrained(folder, safe_serialization=True)
    os.truncate(folder / name, int(kept * (folder / name).stat().st_size))
    message = "the weights cannot be read: " if kept > 0.1 else "it is too small for the sizes "
    assert f"{folder / name}: {message}" in complaint(folder)


def test_weights_without_one_of_them(folder):
    with h5py.File(folder / "tf_model.h5", "a") as file:
        attributes = file["transformer"].attrs
        names = [name for name in attributes["weight_names"] if "ln_f" not in str(name)]
        attributes["weight_names"] = names
    assert "tf_model.h5: 2 of the weights are missing, such as " in complaint(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type must be 'gpt2', got 'bert'"),
        ({"model_type": "x" * 9000}, "model_type must be 'gpt2', got 'xxx"),
        ({"vocab_size": 261}, "the tokenizer has 260 tokens, but config.json has vocab_size=261"),
        ({"n_layer": 0}, "n_layer must be a whole number >= 1, got 0"),
        ({"n_layer": ["x\n"] * 9000}, "n_layer must be"),
        ({"n_head": 3}, "n_embd=16 is not a multiple of n_head=3"),
        ({"add_cross_attention": True}, "add_cross_attention=true is not supported"),
        ({"n_embd": 32}, "tf_model.h5: the weights cannot be read: "),
        ({"n_layer": 3}, "of the weights are missing, such as "),
        ({"n_layer": 10**6}, "too small for the sizes in config.json"),
        ({"n_positions": 10**9}, "too small for the sizes in config.json"),
        ({"activation_function": ["relu"]}, "activation_function must be like 'gelu_new', got ["),
        ({"activation_function": "none"}, "tf_model.h5: the weights cannot be read: "),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon must be like 1e-05, got 'x'"),
        ({"eos_token_id": [1]}, "eos_token_id must be a token, got [1]"),
        ({"id2label": 7}, "config.json: cannot be read: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_configs_that_do_not_fit(folder, changes, message):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    assert message in complaint(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "/config.json is damaged or was changed"),
        ("config.json", "[]", "/config.json is damaged or was changed"),
        ("tokenizer.json", "{", ": the tokenizer cannot be read: "),
        ("tokenizer.json", '{"version": "1.0"}', ": the tokenizer cannot be read: "),
    ],
)
def test_unreadable_files(folder, name, content, message):
    (folder / name).write_text(content)
    assert f"{folder}{message}" in complaint(folder)


def test_a_folder_is_made_whole_and_nothing_is_overwritten(tmp_path, model, tokenizer, monkeypatch):
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        save_base_model(folder, model, tokenizer)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="b exists already; remove it or name another folder"):
        save_base_model(folder, model, tokenizer)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(UserError, match="cannot be written: .*config.json is not a folder"):
        check_is_free(folder / "config.json" / "model")
    other = train_tokenizer(["ab"], vocab_size=258)
    with pytest.raises(UserError, match="the tokenizer has 258 tokens, .* vocab_size=260"):
        save_base_model(tmp_path / "a" / "model", model, other)

    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(GPT2TokenizerFast, "save_pretrained", fail)
    with pytest.raises(UserError, match="model: cannot be written: No space left on device"):
        save_base_model(tmp_path / "a" / "model", model, tokenizer)
    assert list((tmp_path / "a").iterdir()) == [folder]


def test_any_text_comes_back_unchanged(tmp_path):
    tokenizer = train_tokenizer(TEXTS, vocab_size=275)
    for text in [*TEXTS[:3], ODD]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("the cat")["input_ids"]) < len("the cat")
    assert len(tokenizer) == tokenizer.vocab_size == 275
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.unk_token_id == 274
    assert tokenizer("a<|endoftext|>")["input_ids"][-1] == 274
    assert tokenizer.decode([274], skip_special_tokens=True) == ""
    again = train_tokenizer(TEXTS[::-1], vocab_size=275)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    # A pair that no text has is no token.
    assert len(train_tokenizer(["ab ab"], vocab_size=5000)) == 256 + 3 + 1 - 1


@pytest.mark.parametrize(
    ("texts", "vocab_size", "message"),
    [
        (TEXTS, 256, "vocab_size must be a whole number >= 257, got 256"),
        (["", ""], 300, "there is no text to train a tokenizer on"),
    ],
)
def test_tokenizers_that_are_refused(texts, vocab_size, message):
    with pytest.raises(UserError, match=message):
        train_tokenizer(texts, vocab_size=vocab_size)
