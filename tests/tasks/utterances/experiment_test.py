"""Whole experiments on generated dialogues: every method, withheld users, a run that goes on."""

from __future__ import annotations

import csv
import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from fedpersonal.tasks.training_run import STORE
from fedpersonal.tasks.utterances.experiment import (
    WEIGHTS,
    UtteranceOptions,
    build_experiment,
    encode_with,
    run_experiment,
)
from transformers import TFGPT2LMHeadModel

from fedpersonal.data.generated.dialogues import generate_dialogues
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks import training_run
from fedpersonal.tasks.utterances import experiment as utterance_experiment
from fedpersonal.tasks.utterances.data import finetuning_sets, split_known, split_withheld
from fedpersonal.tasks.utterances.methods import METHODS

SMALL = {
    "total_rounds": 2,
    "clients_per_round": 4,
    "local_steps": 2,
    "client_batch_size": 4,
    "client_learning_rate": 0.02,
    "finetuning_steps": 2,
    "finetuning_learning_rate": 0.02,
    "history_length": 12,
    "clip_norm": 1e6,
    "noise_multiplier": 0.0,
    "rounds_per_eval": 2,
    "rounds_per_checkpoint": 1,
}
LENGTH = 14
# Of the counts of samples as many as show which phases a test runs.
SAMPLES = (1, None)
PERSONAL = "language_model/personal_embedding/embeddings"
CONTEXT = "language_model/context_embedding/embeddings"
# What is each client's own, and what is sent, by its variable's name.
OWN = {"fedperc": {PERSONAL}, "split_learning": {"language_model/personal_head/kernel"}}
SENT = {
    "fedperc": {CONTEXT},
    "fedperc_generated": {CONTEXT},
    "split_learning": {"language_model/context_head/embeddings"},
    "meta_learning": {"language_model/head/kernel"},
}


@pytest.fixture(name="data_of", scope="module")
def _data_of(tiny_base):
    """Dialogues whose first two tokens tell them from all others."""
    utterances = generate_dialogues(users_per_context=(4, 4), num_utterances=240, seed=4).named

    def encode(texts):
        encoded = encode_with(tiny_base)(texts)
        return [[*divmod(number, 250), *ids] for number, ids in enumerate(encoded)]

    end = tiny_base.config.eos_token_id
    options = {"length": LENGTH, "padding": 0, "end": end, "seed": 0}
    return {
        "known": split_known(utterances, encode, **options),
        "withheld": split_withheld(utterances, encode, **options),
    }


def numbers_of(dataset):
    """Returns which utterances a data set has."""
    return {tuple(row) for row in dataset.labels[:, :2].tolist()}


def read_rounds(path):
    """All metrics that do not depend on the machine's speed."""
    with open(path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def read_weights(path):
    with np.load(path / WEIGHTS) as file:
        return dict(file)


def with_ctrl_c(experiment, round_number):
    def cohort_fn(number):
        if number == round_number:
            raise KeyboardInterrupt
        return experiment.training.cohort_fn(number)

    training = dataclasses.replace(experiment.training, cohort_fn=cohort_fn)
    return dataclasses.replace(experiment, training=training)


class Finished:
    """An experiment, what it has written, and what it was evaluated on."""

    def __init__(self, experiment, path, evaluated):
        self.experiment, self.data, self.path = experiment, experiment.data, path
        self.evaluated = evaluated
        self.summary = json.loads((path / "summary.json").read_text())
        self.boundary = json.loads((path / "boundary.json").read_text())
        self.rounds, self.weights = read_rounds(path), read_weights(path)


@pytest.fixture(name="finished_run", scope="module")
def _finished_run(tiny_base, data_of, tmp_path_factory):
    """Runs a method once; FedPerC on withheld users is interrupted and goes on."""
    finished, frozen_folder = {}, tmp_path_factory.mktemp("frozen")

    def finished_run(name, split):
        if (name, split) in finished:
            return finished[name, split]
        evaluated, pack_evaluation = [], utterance_experiment.pack_evaluation

        def record(model, support, query, **options):
            evaluated.append((support, query))
            return pack_evaluation(model, support, query, **options)

        path = tmp_path_factory.mktemp(name)
        options = UtteranceOptions(algorithm=name, **SMALL)
        experiment = build_experiment(
            data_of[split], tiny_base, options, frozen_folder=frozen_folder
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(utterance_experiment, "SAMPLES", SAMPLES)
            patch.setattr(utterance_experiment, "pack_evaluation", record)
            if (name, split) == ("fedperc", "withheld"):
                with pytest.raises(KeyboardInterrupt):
                    run_experiment(
                        with_ctrl_c(experiment, 2), RunFolder.open(path, {}), progress=False
                    )
                assert len(read_rounds(path)) == 1
                evaluated.clear()
            run_experiment(experiment, RunFolder.open(path, {}), progress=False)
        finished[name, split] = Finished(experiment, path, evaluated)
        return finished[name, split]

    return finished_run


# The methods differ in nothing but their start on withheld users, and that is FedPerC's alone.
# Fresh heads differ in what `head_language_model_test` looks at.
ALL = [
    *((name, "known") for name, method in METHODS.items() if not method.fresh_heads),
    ("fedperc", "withheld"),
]


@pytest.mark.parametrize(("name", "split"), ALL)
def test_every_method_runs_and_writes_it_down(finished_run, tiny_base, name, split):
    finished = finished_run(name, split)
    summary = finished.summary
    expected = {"algorithm": name, "split": split, "rounds": 2, "base_model": tiny_base.source}
    assert {key: summary[key] for key in expected} == expected
    assert list(summary["by_samples"]) == (["0"] if METHODS[name].fine_tunes else []) + ["1", "all"]
    assert summary["test"]["perplexity"] == summary["by_samples"]["all"]["perplexity"]
    _, query = finetuning_sets(finished.data.test, num_samples=None, seed=0)
    found = [own["perplexity"] for own in summary["by_samples"].values()]
    assert len(set(found)) == len(found) and 1.0 < min(found) and max(found) < 1000.0
    for own in summary["by_samples"].values():
        assert own["num_clients"] == finished.data.test.num_clients
        assert own["num_examples"] == query.num_examples
    assert [row["eval/perplexity"] != "" for row in finished.rounds] == [False, True]
    assert summary["frozen_bytes"] == 4 * sum(v.size for v in tiny_base.weights.values())

    once = [row for row in finished.boundary if row["direction"] == "once"]
    assert [row["num_bytes"] for row in once] == [summary["frozen_bytes"]]
    sent = {row["name"] for row in finished.boundary}
    assert not any("/base/" in other for other in sent)
    last_parts = {other.split(".")[-1] for other in sent if not other.startswith("clipped.")}
    assert not OWN.get(name, set()) & last_parts and SENT[name] <= last_parts
    generated = any("/personal_generator/" in other for other in sent)
    assert generated == (name == "fedperc_generated")
    means = {other for other in sent if other.startswith("clipped.")}
    assert means == ({f"clipped.{PERSONAL}"} if (name, split) == ("fedperc", "withheld") else set())
    assert (finished.path / STORE).exists() == METHODS[name].keeps


@pytest.mark.parametrize(("name", "split"), ALL)
def test_query_sets_are_trained_on_by_nothing(finished_run, name, split):
    finished = finished_run(name, split)
    data = finished.data
    trained = numbers_of(data.train)
    held_out = {"validation": numbers_of(data.validation), "test": numbers_of(data.test)}
    assert len(trained | set.union(*held_out.values())) == 240
    parts = [
        next(part for part, numbers in held_out.items() if numbers_of(query) <= numbers)
        for _, query in finished.evaluated
    ]
    assert parts == ["validation"] + ["test"] * len(finished.summary["by_samples"])
    for part, (support, query) in zip(parts, finished.evaluated):
        asked, seen = numbers_of(query), numbers_of(support)
        assert asked and not asked & (trained | seen) and seen <= held_out[part]
        if "history" in query.features:
            tokens = query.features["history"]
            own = {tuple(row) for row in tokens[:, :2].tolist()}
            assert own <= seen | {(-1, -1)} and own & seen
    # All tests ask the same.
    assert len({frozenset(numbers_of(query)) for _, query in finished.evaluated[1:]}) == 1
    sizes = [support.counts.max() for support, _ in finished.evaluated[1:]]
    assert sizes[-2:] == [1, max(sizes)] and max(sizes) > 1


def reference_perplexity(base, query, personal, context):
    """Returns the perplexity of tokens from the fourth on, by transformers' model and NumPy."""
    model = TFGPT2LMHeadModel.from_pretrained(base.source)
    prefix = (personal[query.example_clients] * context[query.features["context"]])[:, np.newaxis]
    words = model.transformer.wte(query.features["text"][:, :-1])
    logits = model(None, inputs_embeds=tf.concat([prefix, words], axis=1)).logits.numpy()
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, query.labels.clip(0)[..., None], -1)[..., 0]
    return math.exp(-chosen[:, 3:][query.labels[:, 3:] >= 0].mean())


@pytest.mark.parametrize("split", ["known", "withheld"])
def test_results_are_those_of_transformers_own_model(finished_run, tiny_base, split):
    """Known users have what they have kept; others the mean of that, as no noise is asked for."""
    finished = finished_run("fedperc", split)
    weights = finished.weights
    known, kept = weights["known"], weights[f"local/{PERSONAL}"][:, 0]
    assert 4 <= known.sum() and weights["clients"].tolist() == list(finished.data.train.client_ids)
    support, query = finetuning_sets(finished.data.test, num_samples=None, seed=0)
    context = weights[f"global/{CONTEXT}"]
    if split == "known":
        # Others start from what depends on their own utterances.
        support, query = (part.subset(np.flatnonzero(known)) for part in (support, query))
        evaluate = finished.experiment.evaluation(support, query, (), with_kept=True)
        own = (np.ones(known.sum(), bool), {PERSONAL: weights[f"local/{PERSONAL}"][known]})
        found = evaluate({CONTEXT: context}, own).overall()["perplexity"]
        personal = kept[known]
    else:
        found = finished.summary["by_samples"]["0"]["perplexity"]
        personal = np.tile(kept[known].mean(0), [finished.data.test.num_clients, 1])
    expected = reference_perplexity(tiny_base, query, personal, context)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_run_that_is_gone_on_with_is_the_same_to_the_bit(finished_run, tmp_path):
    twice = finished_run("fedperc", "withheld")
    options = dataclasses.replace(twice.experiment.options, total_rounds=2, rounds_per_checkpoint=2)
    trained = training_run.train(
        twice.experiment.training,
        RunFolder.open(tmp_path, {}),
        options,
        clients=twice.data.train.client_ids,
        progress=False,
    )
    weights, (known, kept) = trained.seen
    assert trained.loop.rounds_run == 2
    np.testing.assert_array_equal(known, twice.weights["known"])
    np.testing.assert_array_equal(kept[PERSONAL], twice.weights[f"local/{PERSONAL}"])
    np.testing.assert_array_equal(weights[CONTEXT], twice.weights[f"global/{CONTEXT}"])
    for once, again in zip(read_rounds(tmp_path), twice.rounds):
        assert {k: v for k, v in once.items() if "eval" not in k} == {
            k: v for k, v in again.items() if "eval" not in k
        }


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("algorithm", "fed_avg"),
        ("new_users", "average"),
        ("execution", "stacked"),
        ("server_optimizer", "lion"),
    ],
)
def test_options_that_are_refused(option, value):
    with pytest.raises(ValueError, match=f"UtteranceOptions: {option} must be one of .*{value!r}"):
        UtteranceOptions(**{option: value})
