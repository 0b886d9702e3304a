"""A folder with a GPT-2: written, read, and what is said of one that is not in order."""

from __future__ import annotations

import json
import os
import shutil

import h5py
import numpy as np
import pytest
import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel, TFGPT2MainLayer

from fedpersonal.errors import UserError
from fedpersonal.models.gpt2 import check_is_free, load_base_model, save_base_model
from fedpersonal.models.gpt2_training import train_tokenizer

IDS = np.array([[259, 5, 9, 2], [259, 7, 7, 1]])


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return train_tokenizer(["the cat sat on the mat"] * 3, vocab_size=260)


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


def complaint(source):
    with pytest.raises(UserError) as caught:
        load_base_model(source)
    said = str(caught.value)
    assert "\n" not in said and len(said) < 500
    assert str(source) in said
    return said


def logits_of(base):
    """Computes logits from the weights alone, each under its name."""
    layer = TFGPT2MainLayer(base.config, name="transformer")
    created = []

    def create(make, **options):
        created.append(make(**options))
        return created[-1]

    with tf.variable_creator_scope(create):
        layer.build(None)
    own = {id(variable) for variable in layer.weights}
    created = [variable for variable in created if id(variable) in own]
    assert [variable.name.split(":")[0] for variable in created] == list(base.weights)
    for variable, value in zip(created, base.weights.values()):
        assert value.dtype == np.float32
        variable.assign(value)
    return layer(IDS).last_hidden_state @ tf.transpose(base.weights["wte/embeddings"])


def test_files_are_those_of_huggingface(saved):
    names = {path.name for path in saved.iterdir()}
    assert names >= {
        "config.json", "tf_model.h5", "tokenizer.json", "vocab.json", "merges.txt",
        "tokenizer_config.json", "notes.json",
    }  # fmt: skip
    assert json.loads((saved / "notes.json").read_text()) == {"seed": 1}
    assert [path.name for path in saved.parent.iterdir()] == ["tiny"]


def test_loaded_weights_give_the_logits_of_the_saved_model(saved, model, tokenizer):
    base = load_base_model(saved)
    assert base.name == "tiny"
    assert base.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert base.config.n_layer == 2
    assert list(base.weights)[:4] == ["wte/embeddings", "wpe/embeddings", "ln_f/gamma", "ln_f/beta"]
    np.testing.assert_allclose(logits_of(base), model(IDS).logits, atol=1e-6)
    again = TFGPT2LMHeadModel.from_pretrained(saved)
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)


def test_safetensors_serve_where_there_is_no_h5(folder, model):
    (folder / "tf_model.h5").unlink()
    model.save_pretrained(folder, safe_serialization=True)
    np.testing.assert_allclose(logits_of(load_base_model(folder)), model(IDS).logits, atol=1e-6)


def test_safetensors_of_pytorch_serve(folder, model):
    """Its names differ, and there is no PyTorch here."""
    from safetensors.numpy import save_file

    (folder / "tf_model.h5").unlink()
    tensors = {}
    for variable in model.weights:
        name = variable.name.split("/transformer/")[1].split(":")[0].replace("h_._", "h.")
        name = name.replace("/", ".").replace("embeddings", "weight")
        name = name.replace("gamma", "weight").replace("beta", "bias")
        value = variable.numpy()
        tensors[name] = value.reshape(-1) if name.endswith("bias") else value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    np.testing.assert_allclose(logits_of(load_base_model(folder)), model(IDS).logits, atol=1e-6)


def test_h5_comes_before_safetensors(folder, model):
    (folder / "model.safetensors").write_bytes(b"nothing")
    np.testing.assert_allclose(logits_of(load_base_model(folder)), model(IDS).logits, atol=1e-6)


def test_files_of_gpt2_serve_for_tokenizer_json(folder, tokenizer):
    (folder / "tokenizer.json").unlink()
    assert load_base_model(folder).tokenizer.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["no_such/model", "no/such/model", "./absent", "distilgpt2"])
def test_without_a_folder_or_a_hub(name, monkeypatch, tmp_path):
    import huggingface_hub

    # As where there is no network.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    download = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub,
        "snapshot_download",
        lambda *args, **options: download(*args, **options, cache_dir=tmp_path),
    )
    said = complaint(name)
    assert said.startswith(name) and "hub" in said
    assert "local folder" in said and "python -m experiments.pretrain" in said


def test_the_hubs_files_are_loaded_from_where_they_are_downloaded(saved, model, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, *, revision, allow_patterns):
        asked.append((name, allow_patterns))
        assert revision is None
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    base = load_base_model("someone/tiny")
    assert base.name == "someone/tiny"
    np.testing.assert_array_equal(base.weights["ln_f/gamma"], np.ones(16))
    assert [name for name, _ in asked] == ["someone/tiny"]
    assert {"config.json", "tf_model.h5", "merges.txt"} <= set(asked[0][1])


def test_a_revision_of_the_hubs_is_asked_for(saved, monkeypatch, tmp_path):
    import huggingface_hub

    asked = []
    (tmp_path / "config.json").touch()  # What comes first has no weights.

    def download(name, *, revision, allow_patterns):
        asked.append((revision, allow_patterns))
        return str(saved if len(asked) > 2 else tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match="there is no"):
        load_base_model("someone/tiny", revision="0123abc")
    assert [revision for revision, _ in asked] == ["0123abc", "0123abc"]
    assert asked[1][1] == ["model.safetensors"]
    assert load_base_model("someone/tiny", revision="v1").name == "someone/tiny"
    assert asked[2][0] == "v1"


def test_a_revision_that_the_hub_has_not_is_one_line(monkeypatch):
    import huggingface_hub
    import requests
    from huggingface_hub.errors import RevisionNotFoundError

    def download(name, **options):
        raise RevisionNotFoundError("404", response=requests.Response())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match="someone/tiny: the hub has no revision 'v9' of it; give a"):
        load_base_model("someone/tiny", revision="v9")


def test_a_folder_has_no_revisions(folder):
    with pytest.raises(UserError, match="tiny is a folder, which has no revision 'v1'"):
        load_base_model(folder, revision="v1")


def test_a_file_is_no_folder(folder):
    assert "a base model is a folder, this is a file" in complaint(folder / "config.json")


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        (["config.json"], "there is no config.json"),
        (["tf_model.h5"], "there is no tf_model.h5, nor model.safetensors"),
        (["tokenizer.json", "vocab.json"], "there is no tokenizer.json, nor vocab.json"),
        (
            ["tokenizer.json", "vocab.json", "merges.txt"],
            "there is no tokenizer.json, nor vocab.json and merges.txt",
        ),
    ],
)
def test_missing_files(folder, removed, said):
    for name in removed:
        (folder / name).unlink()
    serves = "give a local folder, such as `python -m experiments.pretrain` makes"
    assert complaint(folder) == f"{folder}: {said}; {serves}"


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.99])
@pytest.mark.parametrize("name", ["tf_model.h5", "model.safetensors"])
def test_truncated_weights(folder, model, name, kept):
    if name == "model.safetensors":
        (folder / "tf_model.h5").unlink()
        model.save_pretrained(folder, safe_serialization=True)
    os.truncate(folder / name, int(kept * (folder / name).stat().st_size))
    said = "the weights cannot be read: " if kept > 0.1 else "it is too small for the sizes that "
    assert f"{folder / name}: {said}" in complaint(folder)


def test_weights_without_one_of_them(folder):
    with h5py.File(folder / "tf_model.h5", "a") as file:
        names = [
            name for name in file["transformer"].attrs["weight_names"] if "ln_f" not in str(name)
        ]
        file["transformer"].attrs["weight_names"] = names
    assert "tf_model.h5: 2 of the weights are missing, such as " in complaint(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "bert"}, "model_type must be 'gpt2', got 'bert'"),
        ({"model_type": None}, "model_type must be 'gpt2', got None"),
        ({"vocab_size": 261}, "the tokenizer has 260 tokens, but config.json has vocab_size=261"),
        ({"n_layer": 0}, "n_layer must be a whole number >= 1, got 0"),
        ({"n_embd": "x"}, "n_embd must be a whole number >= 1, got 'x'"),
        ({"n_head": 3}, "n_embd=16 is not a multiple of n_head=3"),
        ({"add_cross_attention": True}, "add_cross_attention=true is not supported"),
        ({"n_embd": 32}, "tf_model.h5: the weights cannot be read: "),
        ({"n_layer": 3}, "of the weights are missing, such as "),
        ({"activation_function": ["relu"]}, "activation_function must be like 'gelu_new', got ["),
        ({"activation_function": "none"}, "tf_model.h5: the weights cannot be read: "),
        ({"layer_norm_epsilon": "x"}, "layer_norm_epsilon must be like 1e-05, got 'x'"),
        ({"eos_token_id": [1]}, "eos_token_id must be a token, got [1]"),
        ({"id2label": 7}, "config.json: cannot be read: "),
    ],
)
def test_configs_that_do_not_fit(folder, changes, said):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    assert said in complaint(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00", "[" * 200_000, "9" * 5000, "\udcff"])
def test_unreadable_config(folder, content):
    (folder / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert f"{folder / 'config.json'} is damaged or was changed" in complaint(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.0"}'])
def test_unreadable_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    assert f"{folder}: the tokenizer cannot be read: " in complaint(folder)


@pytest.mark.parametrize("change", [{"n_layer": 10**6}, {"n_positions": 10**9}])
def test_sizes_that_the_weights_cannot_have_are_refused_at_once(folder, change):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))
    assert "too small for the sizes that config.json says" in complaint(folder)


def test_a_long_value_is_cut(folder):
    values = json.loads((folder / "config.json").read_text())
    for change in ({"model_type": "x" * 9000}, {"n_layer": ["x\n"] * 9000}):
        (folder / "config.json").write_text(json.dumps({**values, **change}))
        complaint(folder)


def test_nothing_is_overwritten(folder, model, tokenizer):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="tiny exists already; remove it or name another folder"):
        save_base_model(folder, model, tokenizer)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_empty_folder_and_folders_above_it_are_no_hindrance(tmp_path, model, tokenizer):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a" / "b"):
        save_base_model(folder, model, tokenizer)
        assert (folder / "tf_model.h5").exists()


def test_what_fails_leaves_nothing_behind(tmp_path, model, tokenizer, monkeypatch):
    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tokenizer), "save_pretrained", fail)
    with pytest.raises(UserError, match="model: cannot be written: No space left on device"):
        save_base_model(tmp_path / "model", model, tokenizer)
    assert list(tmp_path.iterdir()) == []


def test_a_file_above_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="model: cannot be written: .*file is not a folder"):
        check_is_free(tmp_path / "file" / "model")
    with pytest.raises(UserError, match="file exists already"):
        check_is_free(tmp_path / "file")


def test_a_tokenizer_of_another_model_is_not_saved(tmp_path, model):
    other = train_tokenizer(["ab"], vocab_size=258)
    with pytest.raises(UserError, match="the tokenizer has 258 tokens, .* vocab_size=260"):
        save_base_model(tmp_path / "model", model, other)
    assert list(tmp_path.iterdir()) == []
