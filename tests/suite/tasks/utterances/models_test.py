"""Base models that are pretrained where none is named, and adapted ones."""

from __future__ import annotations

import concurrent.futures
import time

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.models.gpt2 import load_base_model
from fedpersonal.suite.models.pretraining import ModelSizes, pretrain_into
from fedpersonal.suite.tasks.utterances import models as base_model
from fedpersonal.suite.tasks.utterances.task import TASK

_SIZES = ModelSizes(vocab_size=270, num_layers=1, num_heads=2, dim=8, positions=12)


@pytest.fixture(name="dialogues")
def _dialogues(monkeypatch):
    monkeypatch.setattr(base_model, "_PRETRAINING", {"generated": (_SIZES, 3)})
    monkeypatch.setattr(base_model, "_ADAPTING_STEPS", 2)
    return TASK.read(TASK.options())


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_test_users_on_whose_texts_the_base_was_pretrained_are_named(tmp_path):
    """A base that has seen some users of the table, and one that has seen all but these."""
    spoken = {
        f"u{user}": [f"user {user} has said {n} words" for n in range(9)] for user in range(8)
    }
    table = tmp_path / "table.csv"
    lines = [f"{user},{text},a" for user, texts in spoken.items() for text in texts]
    table.write_text("\n".join(["user,text,context", *lines]))
    work = {"steps": 1, "batch_size": 2, "learning_rate": 0.01, "seed": 0, "progress": False}
    some = {"u0", "u1", "u2"}
    for name, users in (("seen", some), ("others", spoken.keys() - some)):
        texts = [text for user in sorted(users) for text in spoken[user]]
        pretrain_into(tmp_path / name, texts, settings={}, start=_SIZES, **work)
    further = load_base_model(tmp_path / "seen")
    pretrain_into(
        tmp_path / "further", ["one text", "a second"], settings={}, start=further, **work
    )

    warned = {}
    for name in ("seen", "others", "further"):
        options = TASK.options(
            text_file=str(table), base_model=str(tmp_path / name), evaluate_on="unseen",
            text_length=8, method="fed_avg_finetuning", base_model_dir=str(tmp_path / "dir"),
        )  # fmt: skip
        source = TASK.read(options)
        data = TASK.split(source, options)
        tested = set(data.test.query.client_ids)
        wanted = tested & some if name != "others" else tested - some
        found = base_model.find_pretrained_users(data.base, source.utterances, sorted(tested))
        assert {*found} == wanted
        (warned[name],) = TASK.split_warnings(source, data) or [""]
        assert bool(warned[name]) == bool(wanted)
    assert any(warned.values())
    assert f"{len(tested)} test users, whose results are too good" in "".join(warned.values())


def test_a_base_that_is_named_is_not_adapted(dialogues, tmp_path):
    with pytest.raises(UserError, match="without --base_model=distilgpt2"):
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
