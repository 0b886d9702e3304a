"""The files of a base model after damage: it is read, or one line names what is wrong.

So many cases a test are tried as the environment says, FEDPERSONAL_FUZZ_CASES=20000, or a sixteenth
of that where a whole model is built.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
from damage import BYTES, change_bytes, few, other_json, outcome
from hypothesis import given
from hypothesis import strategies as st

from fedpersonal.language_models import base_model
from fedpersonal.language_models.base_model import load_base_model

TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]


@pytest.fixture(name="folder", scope="module")
def _folder(tiny_base, tmp_path_factory):
    return shutil.copytree(tiny_base.source, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(name="damage", scope="module")
def _damage(tiny_base, folder):
    whole = {path.name: path.read_bytes() for path in pathlib.Path(tiny_base.source).iterdir()}

    def damage(name, content=None, changes=()):
        for other, known in whole.items():
            if other != "tf_model.h5" or name == other:
                (folder / other).write_bytes(known)
        content = change_bytes(whole[name], changes) if content is None else content
        (folder / name).write_bytes(content)
        return folder / name

    damage.whole = whole
    return damage


@given(BYTES)
def test_bytes_of_the_config(damage, changes):
    path = damage("config.json", changes=changes)
    _check_config(outcome(lambda: base_model._read_config(path), path))


@given(st.data())
def test_values_of_the_config(damage, data):
    value = data.draw(other_json(json.loads(damage.whole["config.json"])))
    path = damage("config.json", json.dumps(value).encode())
    _check_config(outcome(lambda: base_model._read_config(path), path))


def _check_config(config):
    if config is not None:
        assert min(config.vocab_size, config.n_positions, config.n_layer) >= 1
        assert config.n_embd % config.n_head == 0


@pytest.mark.parametrize("name", TOKENIZER)
@few
@given(BYTES)
def test_bytes_of_the_tokenizer(damage, folder, name, changes):
    damage(name, changes=changes)
    outcome(lambda: base_model._read_tokenizer(folder), folder)


@pytest.mark.parametrize("name", TOKENIZER)
@few
@given(st.data())
def test_values_of_the_tokenizer(damage, folder, name, data):
    value = data.draw(other_json(json.loads(damage.whole[name])))
    damage(name, json.dumps(value).encode())
    outcome(lambda: base_model._read_tokenizer(folder), folder)


@few
@given(st.data())
def test_a_model_of_another_config(damage, folder, tiny_base, data):
    value = data.draw(other_json(json.loads(damage.whole["config.json"])))
    damage("config.json", json.dumps(value).encode())
    found = outcome(lambda: load_base_model(folder), folder)
    if found is not None:
        assert list(found.weights) == list(tiny_base.weights)
        for name, weight in tiny_base.weights.items():
            np.testing.assert_array_equal(found.weights[name], weight)


@few
@given(BYTES)
def test_bytes_of_the_weights(damage, folder, changes):
    damage("tf_model.h5", changes=changes)
    outcome(lambda: load_base_model(folder), folder)
