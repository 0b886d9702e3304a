"""Runs on utterances around one tiny base model, and what is measured of them."""

from __future__ import annotations

import json
import math
import pickle

import numpy as np
import pytest
from experiments.papers.fedperc.embedding_runs import (
    compare_embeddings,
    embedding_run,
    read_trained,
)
from experiments.papers.fedperc.runs import (
    RunOptions,
    UntrainedOptions,
    UtteranceSource,
    complete,
    evaluate_untrained,
    run_options,
    train,
)
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.tasks.utterances.choice import UtteranceChoice
from fedpersonal.tasks.utterances.experiment import UtteranceOptions

from experiments.papers.fedperc.pass_times import PassOptions, time_passes
from fedpersonal.data.generated.dialogues import generate_dialogues
from fedpersonal.errors import UserError
from fedpersonal.tasks.utterances import experiment as utterance_experiment
from fedpersonal.tasks.utterances.data import finetuning_sets
from fedpersonal.tasks.utterances.methods import METHODS

OPTIONS = UtteranceOptions(
    total_rounds=2,
    local_steps=2,
    client_batch_size=4,
    client_learning_rate=0.3,
    finetuning_steps=1,
    history_length=6,
    seed=1,
)
LENGTH = 16


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("utterances")
    named = generate_dialogues(
        users_per_context=(3, 2),
        num_utterances=80,
        others_per_context=(1, 1),
        num_other_utterances=6,
        seed=0,
    ).named
    lines = [
        json.dumps(
            {
                "user": named.client_ids[user],
                "text": text,
                "context": named.label_names[context],
            }
        )
        for user, (start, end) in enumerate(zip(named.offsets, named.offsets[1:]))
        for text, context in zip(named.texts[start:end], named.labels[start:end])
    ]
    (folder / "utterances.jsonl").write_text("\n".join(lines))
    choice = UtteranceChoice("file", str(folder / "utterances.jsonl"))
    return UtteranceSource(choice, tiny_base.source, str(folder / "frozen"), text_length=LENGTH)


@pytest.fixture(name="runs", scope="module")
def _runs(tmp_path_factory, source):
    """A trained run, tested on fewer numbers of samples, the base model's and the embeddings'."""
    folder = tmp_path_factory.mktemp("runs")
    trained = SummarizedRun("trained", folder / "trained", run_options(OPTIONS, split="known"))
    untrained = SummarizedRun("untrained", folder / "untrained", UntrainedOptions("known", 1))
    embeddings = embedding_run(trained)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utterance_experiment, "SAMPLES", (1, None))
        complete([trained], source, train, isolated=False)
    complete([untrained], source, evaluate_untrained, isolated=False)
    complete([embeddings], source, compare_embeddings, isolated=False)
    return trained, untrained, embeddings


def test_the_base_model_alone_is_gpt2(source, runs, tiny_base):
    """Perplexity of the query sets by transformers' own model, behind its first token."""
    from transformers import TFGPT2LMHeadModel

    data = source.load_data(tiny_base, split="known", seed=1)
    _, query = finetuning_sets(data.test, num_samples=None, seed=1)
    gpt2 = TFGPT2LMHeadModel.from_pretrained(tiny_base.source)
    first = np.full([query.num_examples, 1], tiny_base.config.bos_token_id)
    logits = gpt2(np.concatenate([first, query.features["text"][:, :-1]], axis=1)).logits.numpy()
    logits = logits.astype(np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(
        logits, np.maximum(query.labels, 0)[..., np.newaxis], axis=-1
    ).squeeze(-1)
    counted = (query.labels >= 0) & (np.arange(LENGTH) >= 3)
    results = runs[1].summary()["by_samples"]["0"]
    assert results["perplexity"] == pytest.approx(math.exp(losses[counted].mean()), rel=1e-4)
    assert results["num_clients"] == 5 and results["num_examples"] == query.num_examples


def test_a_trained_run_has_all_that_tables_read(source, runs):
    trained, untrained, _ = runs
    summary = trained.summary()
    assert list(summary["by_samples"]) == ["0", "1", "all"]
    assert summary["split"] == "known" and summary["kept_bytes_per_client"] == 4 * 8
    # Training has moved it.
    own = summary["by_samples"]["0"]
    assert own["loss"] < untrained.summary()["by_samples"]["0"]["loss"]
    flags = json.loads((trained.path / "config.json").read_text())["options"]
    assert (flags["split"], flags["base_model"], flags["text_length"]) == ("known", "tiny", LENGTH)
    assert flags["num_users"] == 5


def test_embeddings_are_those_that_were_trained(source, runs, tiny_base):
    """Own losses are those of the run's test without fine-tuning."""
    trained, _, embeddings = runs
    found = embeddings.summary()
    spread = trained.summary()["by_samples"]["0"]["percentiles"]["loss"]
    for percentile in (5, 50, 95):
        assert np.percentile(found["own_loss"], percentile) == pytest.approx(
            spread[f"p{percentile}"], rel=1e-5
        )
    # 3 users of the one context, 2 of the other.
    assert (found["num_users"], found["num_pairs"]) == (5, 3 * 2 + 2)
    assert np.shape(found["others_losses"]) == (5, 2)
    assert 0.0 <= found["pairs_won"] <= 1.0

    names = source.load_data(tiny_base, split="known", seed=1).train.client_ids
    weights, (known, values) = read_trained(trained.path, names)
    _, (_, turned) = read_trained(trained.path, names[::-1])
    (name,) = values
    assert known.all() and values[name].shape == (5, 1, 8)
    np.testing.assert_array_equal(turned[name], values[name][::-1])
    assert [value.shape for value in weights.values()] == [(2, 8)]


def test_complete_runs_are_left_alone(source, runs, tmp_path, capsys):
    trained, untrained, _ = runs
    complete([trained], source, train, isolated=False)
    assert capsys.readouterr().out == "run 1 of 1: trained: done before\n"
    longer = UtteranceSource(source.choice, source.base_model, source.frozen_folder, LENGTH + 1)
    with pytest.raises(UserError, match="text_length was 16 and is now 17"):
        complete([untrained], longer, evaluate_untrained, isolated=False)

    done = []
    new = SummarizedRun("new", tmp_path / "new", run_options(OPTIONS, split="withheld"))
    complete([trained, new], source, lambda run, *_: done.append(run.options.split), isolated=False)
    assert done == ["withheld"]
    assert capsys.readouterr().out == "run 1 of 2: trained: done before\nrun 2 of 2: new\n"


def test_a_run_can_be_handed_to_another_process(source, tmp_path):
    run = SummarizedRun("a", tmp_path, run_options(OPTIONS, split="withheld"))
    work, (copy, same) = pickle.loads(pickle.dumps((train, (run, source))))
    assert (work, copy, same) == (train, run, source)
    assert isinstance(copy.options, RunOptions) and copy.options.local_steps == 2


def test_passes_of_all_methods_are_timed(source, tmp_path):
    run = SummarizedRun("passes", tmp_path / "passes", PassOptions(repeats=2, history_length=6))
    complete([run], source, time_passes, isolated=False)
    times = run.summary()
    assert list(times) == [name for name, method in METHODS.items() if not method.fresh_heads]
    for own in times.values():
        assert list(own) == ["train", "test"]
        assert all(0 < own[what]["median"] < 60_000 and own[what]["sd"] >= 0 for what in own)
