"""Base models that are pretrained where none is named, and adapted ones."""

from __future__ import annotations

import concurrent.futures
import time

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.models.pretraining import ModelSizes
from fedpersonal.tasks.utterances import models as base_model
from fedpersonal.tasks.utterances.task import TASK

_SIZES = ModelSizes(vocab_size=270, num_layers=1, num_heads=2, dim=8, positions=12)


@pytest.fixture(name="dialogues")
def _dialogues(monkeypatch):
    monkeypatch.setattr(base_model, "_WORK", {"generated": (_SIZES, 3)})
    monkeypatch.setattr(base_model, "_ADAPTING_STEPS", 2)
    return TASK.read(TASK.options())


def test_an_adapted_base_is_the_other_one_trained_on(dialogues, tmp_path, monkeypatch):
    made, pretrain_into = [], base_model.pretrain_into

    def record(folder, texts, **options):
        made.append((texts, options["start"], options["steps"]))
        return pretrain_into(folder, texts, **options)

    monkeypatch.setattr(base_model, "pretrain_into", record)
    options = {"cache_dir": str(tmp_path), "progress": False}
    adapted = base_model.find_base_model(None, dialogues, adapted=True, **options)
    base = base_model.find_base_model(None, dialogues, **options)
    again = base_model.find_base_model(None, dialogues, adapted=True, **options)
    # Both are made once, of what those who do not take part have said.
    others = dialogues.other_texts().tolist()
    (texts, start, steps), (more, first, adapting_steps) = made
    assert texts == more == others and (start, steps, adapting_steps) == (_SIZES, 3, 2)
    for name, value in base.weights.items():
        np.testing.assert_array_equal(value, first.weights[name])
        np.testing.assert_array_equal(adapted.weights[name], again.weights[name])
    assert any((adapted.weights[name] != value).any() for name, value in base.weights.items())
    assert adapted.tokenizer.get_vocab() == base.tokenizer.get_vocab()
    assert adapted.source == again.source != base.source
    assert len(list(tmp_path.iterdir())) == 2


def test_a_base_that_is_named_is_not_adapted(dialogues, tmp_path):
    with pytest.raises(UserError, match="not of --base_model=distilgpt2"):
        base_model.find_base_model("distilgpt2", dialogues, adapted=True, cache_dir=str(tmp_path))


def test_of_runs_at_once_one_pretrains_and_the_others_wait(dialogues, tmp_path, monkeypatch):
    made = []

    def make(folder, texts, **options):
        made.append(folder)
        time.sleep(0.3)
        folder.mkdir()

    monkeypatch.setattr(base_model, "pretrain_into", make)
    monkeypatch.setattr(base_model, "load_base_model", lambda folder: folder.is_dir() and folder)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        find = base_model.find_base_model
        options = {"cache_dir": str(tmp_path), "progress": False}
        runs = [pool.submit(find, None, dialogues, **options) for _ in range(3)]
    assert [run.result() for run in runs] == made * 3
    assert list(tmp_path.iterdir()) == made
