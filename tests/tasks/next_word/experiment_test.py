"""Whole experiments on made-up sentences: every method, what it writes, how it goes on."""

from __future__ import annotations

import csv
import dataclasses
import json
import os

import numpy as np
import pytest
import tensorflow_federated as tff
from fedpersonal.tasks.next_word.experiment import (
    NextWordOptions,
    build_experiment,
    run_experiment,
    train,
)
from fedpersonal.tasks.next_word.methods import METHODS, build_algorithm, build_personalization

from fedpersonal.data.generated.corpus import generate_corpus
from fedpersonal.data.texts.stack_overflow import StackOverflow, StackOverflowClients
from fedpersonal.data.texts.vocabulary import Vocabulary
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.tasks.next_word.data import sample_stack_overflow, split_text

SMALL = {
    "vocab_size": 30,
    "num_oov_buckets": 3,
    "sequence_length": 8,
    "total_rounds": 2,
    "rounds_per_eval": 2,
    "rounds_per_checkpoint": 2,
    "clients_per_round": 5,
    "client_batch_size": 4,
    "reconstruction_epochs": 1,
    "local_epochs": 1,
    "finetuning_epochs": 1,
    "finetuning_learning_rate": 0.5,
    "reconstruction_learning_rate": 5.0,
    "embedding_dim": 4,
    "lstm_units": 8,
    "projection_dim": 4,
}
OOV = "oov_embedding/embeddings"
METRICS = {
    "loss",
    "accuracy",
    "accuracy_among_known",
    "accuracy_without_oov",
    "accuracy_without_oov_or_eos",
}
FILES = {
    "boundary.json",
    "checkpoints",
    "config.json",
    "learning_curve.png",
    "metrics.csv",
    "per_client.csv",
    "summary.json",
}


@pytest.fixture(name="corpus", scope="module")
def _corpus():
    return generate_corpus(
        num_clients=20,
        seed=2,
        min_sentences=9,
        max_sentences=14,
        words_per_client=4,
        num_personal_words=20,
    )


def data_of(corpus, options):
    return split_text(
        corpus,
        vocab_size=options.vocab_size,
        num_oov_buckets=options.num_oov_buckets,
        sequence_length=options.sequence_length,
        batch_size=options.client_batch_size,
        split=options.split,
        seed=options.seed,
    )


class Finished:
    """What a run has written."""

    def __init__(self, path):
        self.summary = json.loads((path / "summary.json").read_text())
        self.rounds = read_table(path / "metrics.csv")
        self.clients = read_table(path / "per_client.csv")
        self.crossings = json.loads((path / "boundary.json").read_text())


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def learned(path):
    """All metrics that do not depend on the machine's speed."""
    rows = read_table(path / "metrics.csv")
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def last_arrays(path):
    """All arrays of the last checkpoint, the server optimizer's among them."""
    with np.load(max((path / "checkpoints").iterdir())) as arrays:
        return {name: arrays[name] for name in arrays.files if name != "description"}


def run(data, options, path):
    folder = RunFolder.open(path, {"name": "test"})
    summary = run_experiment(build_experiment(data, options), folder, progress=False)
    finished = Finished(path)
    assert finished.summary == json.loads(json.dumps(summary))
    return finished


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_writes_it_down(corpus, tmp_path, name):
    options = NextWordOptions(algorithm=name, **SMALL)
    data = data_of(corpus, options)
    finished = run(data, options, tmp_path)
    assert {file for file in os.listdir(tmp_path) if not file.startswith(".")} >= FILES

    summary, test = finished.summary, finished.summary["test"]
    assert {k: summary[k] for k in ("algorithm", "dataset", "rounds", "num_oov_buckets")} == {
        "algorithm": name,
        "dataset": "generated",
        "rounds": 2,
        "num_oov_buckets": 3,
    }
    assert summary["vocabulary_coverage"] == pytest.approx(data.coverage)
    assert METRICS <= set(test) and set(test["before"]) == METRICS
    personalises = METHODS[name].rebuilds or METHODS[name].fine_tunes is not None
    assert (test["loss"] != test["before"]["loss"]) == personalises
    # Of 36 ids; two rounds are enough to be better than a guess.
    assert 1.0 < test["loss"] < np.log(36)

    asked = data.test.query
    assert len(finished.clients) == asked.num_clients == 2
    assert [int(row["num_examples"]) for row in finished.clients] == asked.counts.tolist()
    tokens = [(asked.client(i)[1] > 0).sum() for i in range(2)]
    for stage, overall in (("before", test["before"]), ("after", test)):
        losses = [float(row[f"loss_{stage}"]) for row in finished.clients]
        assert overall["loss"] == pytest.approx(np.average(losses, weights=tokens), rel=1e-5)

    assert [int(row["round"]) for row in finished.rounds] == [1, 2]
    assert all(float(finished.rounds[-1][f"eval/{metric}"]) >= 0 for metric in METRICS)

    sent = {row["name"].split(".")[-1] for row in finished.crossings}
    assert "known_embedding/embeddings" in sent
    assert (OOV in sent) == (not METHODS[name].rebuilds)


def test_a_run_that_is_gone_on_with_is_the_same_to_the_bit(corpus, tmp_path):
    options = NextWordOptions(
        algorithm="fed_recon", dropout_rate=0.3, **{**SMALL, "total_rounds": 4}
    )
    data = data_of(corpus, options)
    # All is built anew for the rounds that are left.
    first, second = (build_experiment(data, options) for _ in range(2))
    half = dataclasses.replace(first, options=dataclasses.replace(first.options, total_rounds=2))
    for experiment, name in ((first, "once"), (half, "twice"), (second, "twice")):
        result = train(experiment, RunFolder.open(tmp_path / name, {}), progress=False)
    assert (result.rounds_run, result.resumed_from) == (2, 2)
    once, twice = (learned(tmp_path / name) for name in ("once", "twice"))
    assert once == twice and len(once) == 4
    weights, others = (last_arrays(tmp_path / name) for name in ("once", "twice"))
    assert weights.keys() == others.keys()
    assert sum("/trainable/" in key for key in weights) == 8
    for key, value in weights.items():
        np.testing.assert_array_equal(value, others[key])


def test_clients_of_stack_overflow_are_read_when_they_take_part(tmp_path, monkeypatch):
    client_data = tff.simulation.datasets.stackoverflow.get_synthetic()
    counts = tff.simulation.datasets.stackoverflow.get_synthetic_word_counts()
    vocabulary = Vocabulary(list(counts)[:20], 4)
    train, validation, test = (
        StackOverflowClients(client_data, vocabulary, name=name, sequence_length=8)
        for name in ("train", "validation", "test")
    )
    data = sample_stack_overflow(
        StackOverflow(train, validation, test, vocabulary),
        batch_size=1,
        split="aggregated",
        seed=0,
    )
    read = []
    subset = train.subset
    monkeypatch.setattr(train, "subset", lambda indices: read.append(indices) or subset(indices))
    options = NextWordOptions(
        **{
            **SMALL,
            "vocab_size": 20,
            "num_oov_buckets": 4,
            "client_batch_size": 1,
            "clients_per_round": 2,
        }
    )
    finished = run(data, options, tmp_path)
    assert finished.summary["dataset"] == "stack_overflow"
    assert finished.summary["test"]["num_clients"] == 3
    assert np.isfinite(float(finished.rounds[-1]["train/loss"]))
    # The loop asks for a round's clients while the round before is under way.
    assert len(read) >= 2 and all(len(indices) == 2 for indices in read)


def test_options_are_settled_by_the_method():
    def settled(name, **options):
        options = NextWordOptions(algorithm=name, **options).settled()
        return options.server_optimizer, options.server_learning_rate, options.num_oov_buckets

    assert {name: settled(name) for name in METHODS} == {
        "fed_yogi": ("yogi", 0.1, 1),
        "fed_adam": ("adam", 0.1, 1),
        "fed_avg": ("sgd", 1.0, 1),
        "fed_recon": ("yogi", 0.1, 500),
        "oov_finetuning": ("yogi", 0.1, 500),
        "full_finetuning": ("yogi", 0.1, 500),
        "fed_recon_finetuning": ("yogi", 0.1, 500),
    }
    assert settled("fed_recon", server_optimizer="sgd") == ("sgd", 1.0, 500)
    assert settled("fed_avg", server_optimizer="adam") == ("adam", 0.1, 1)
    asked = {"server_optimizer": "adagrad", "server_learning_rate": 0.5, "num_oov_buckets": 7}
    assert settled("fed_yogi", **asked) == ("adagrad", 0.5, 7)
    options = NextWordOptions(**asked)
    assert options.settled() == options == options.settled().settled()
    # What is wrong is refused where it is used, and is not taken for none given.
    assert settled("fed_recon", num_oov_buckets=0)[2] == 0


@pytest.mark.parametrize(
    ("option", "value"), [("algorithm", "fedrecon"), ("execution", "x"), ("server_optimizer", "x")]
)
def test_wrong_options_are_refused(option, value):
    with pytest.raises(ValueError, match=f"NextWordOptions: {option} must be one of .*{value!r}"):
        NextWordOptions(**{option: value})


def test_methods_are_phases():
    """The OOV embedding alone is fine-tuned as long as FedRecon rebuilds it."""

    def phases(name):
        options = NextWordOptions(
            algorithm=name,
            split="skip",
            reconstruction_epochs=3,
            local_epochs=2,
            max_reconstruction_steps=7,
            finetuning_epochs=4,
            max_finetuning_steps=9,
        ).settled()
        trained = build_algorithm(options.method, options).phases
        personal = build_personalization(options.method, options)
        return tuple(
            [(p.variables, p.epochs, p.max_steps) for p in some] for some in (trained, personal)
        )

    average, update = ("all", 2, 100), ("global", 2, 100)
    rebuild = ("local", 3, 7)
    assert {name: phases(name) for name in METHODS} == {
        "fed_yogi": ([average], []),
        "fed_adam": ([average], []),
        "fed_avg": ([average], []),
        "fed_recon": ([rebuild, update], [rebuild]),
        "oov_finetuning": ([average], [(("oov_embedding",), 3, 7)]),
        "full_finetuning": ([average], [("all", 4, 9)]),
        "fed_recon_finetuning": ([rebuild, update], [rebuild, ("global", 4, 9)]),
    }
    alike = {}
    for name, method in METHODS.items():
        alike.setdefault((method.trains_like, method.num_oov_buckets), []).append(name)
    assert ["fed_recon", "fed_recon_finetuning"] in alike.values()
    assert ["oov_finetuning", "full_finetuning"] in alike.values()
    assert len(alike) == 5
