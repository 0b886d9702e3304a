"""Experiments on sentences: words of a client's own, weights by tokens, Stack Overflow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.runs.folder import RunFolder
from fedpersonal.suite.readers.generated.corpus import generate_corpus
from fedpersonal.suite.readers.stack_overflow import StackOverflow, StackOverflowClients
from fedpersonal.suite.readers.vocabulary import Vocabulary
from fedpersonal.suite.tasks.experiment import build_experiment
from fedpersonal.suite.tasks.next_word import data as source
from fedpersonal.suite.tasks.next_word.data import sample_stack_overflow
from fedpersonal.suite.tasks.next_word.task import TASK
from fedpersonal.suite.tasks.running import run_experiment

OOV = "oov_embedding/embeddings"
METRICS = {
    "loss",
    "accuracy",
    "accuracy_among_known",
    "accuracy_without_oov",
    "accuracy_without_oov_or_eos",
}


def test_a_run_counts_tokens(tiny):
    finished = tiny.run(TASK, method="embedding_finetuning", reconstruction_learning_rate=5.0)
    summary, test, query = finished.summary, finished.test, finished.data.test.query
    assert (summary["vocab_size"], summary["num_oov_buckets"]) == (14, 3)
    assert summary["vocabulary_coverage"] == pytest.approx(finished.data.coverage)
    assert METRICS <= set(test) and set(test["before"]) == METRICS
    # Of 20 ids; two rounds are enough to be better than a guess.
    assert 1.0 < test["loss"] < np.log(20)

    assert len(finished.clients) == query.num_clients == 2
    tokens = [(query.client(i)[1] > 0).sum() for i in range(2)]
    for stage, overall in (("before", test["before"]), ("after", test)):
        losses = [float(row[f"loss_{stage}"]) for row in finished.clients]
        assert overall["loss"] == pytest.approx(np.average(losses, weights=tokens), rel=1e-5)
    assert all(float(finished.rounds[-1][f"eval/{metric}"]) >= 0 for metric in METRICS)
    assert {"known_embedding/embeddings", OOV} <= finished.crossing
    # What metrics are means of, beside them.
    chosen = finished.data.after_personal_words.query.labels
    for column, labels in (("known_words", query.labels), ("after_personal_words", chosen)):
        counted = (labels > 2) & (labels < 17)
        numbers = [int(row[f"num_{column}"]) for row in finished.clients]
        assert sum(numbers) == counted.sum() > 0
        assert numbers == [counted[query.example_clients == i].sum() for i in range(2)]
    for stage in ("before", "after"):
        name = f"personal_word_accuracy_{stage}"
        shares = [float(row[name] or 0) for row in finished.clients]
        assert test[name] == pytest.approx(np.average(shares, weights=numbers))


@pytest.mark.exhaustive
def test_what_follows_personal_words_gains_where_they_matter(tmp_path, monkeypatch):
    """On generated sentences, in which each user means something else by the same words."""
    corpus = generate_corpus(num_clients=100, seed=0, personal_share=1.0, words_per_client=8)
    monkeypatch.setattr(source, "generate_corpus", lambda seed: corpus)
    rounds = 80
    options = TASK.options(
        dataset="generated",
        method="fed_recon",
        vocab_size=168,
        num_oov_buckets=500,
        total_rounds=rounds,
        clients_per_round=20,
        client_batch_size=8,
        client_learning_rate=1.0,
        server_learning_rate=0.03,
        reconstruction_learning_rate=10.0,
        reconstruction_epochs=3,
        local_epochs=1,
        embedding_dim=16,
        lstm_units=32,
        projection_dim=16,
        rounds_per_eval=rounds,
    )
    experiment = build_experiment(TASK, TASK.read(options), options)
    folder = RunFolder.open(tmp_path, {"task": "next word", **options.values()})
    test = run_experiment(experiment, folder, progress=False)["test"]
    before, after = (test[f"personal_word_accuracy_{stage}"] for stage in ("before", "after"))
    assert before < 0.2 and after > before + 0.2
    # More than of all words.
    gain = test["accuracy_among_known"] - test["before"]["accuracy_among_known"]
    assert after - before > gain + 0.05


@pytest.mark.exhaustive
def test_padding_in_the_loss(tiny):
    """The loss is the mean over all positions, those of padding too, as Keras has it."""
    finished = tiny.run(TASK, method="fed_yogi", padding_in_loss=True, sequence_length=10)
    experiment, query = finished.experiment, finished.data.test.query
    variables = {v.name: finished.trained.weights[v.name] for v in experiment.model.variables}
    features = {name: tf.constant(column) for name, column in query.features.items()}
    logits, _ = experiment.model.predict(variables, features, training=False)
    losses = tf.keras.losses.sparse_categorical_crossentropy(query.labels, logits, from_logits=True)
    assert finished.test["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    is_token = query.labels > 0
    assert 0.1 < is_token.mean() < 0.95
    # Metrics leave it out, as ever.
    right = (np.argmax(logits, -1) == query.labels)[is_token]
    assert finished.test["accuracy"] == pytest.approx(right.mean())


@pytest.mark.exhaustive
def test_clients_of_stack_overflow_are_read_when_they_take_part(tiny, tmp_path, monkeypatch):
    tff = pytest.importorskip("tensorflow_federated")
    client_data = tff.simulation.datasets.stackoverflow.get_synthetic()
    counts = tff.simulation.datasets.stackoverflow.get_synthetic_word_counts()
    vocabulary = Vocabulary(list(counts)[:20], 4)
    train, validation, test = (
        StackOverflowClients(client_data, vocabulary, name=name, sequence_length=8)
        for name in ("train", "validation", "test")
    )
    options = tiny.options(TASK, method="fed_recon", client_batch_size=1, clients_per_round=2)
    data = sample_stack_overflow(StackOverflow(train, validation, test, vocabulary), options)
    read = []
    subset = train.subset
    monkeypatch.setattr(train, "subset", lambda indices: read.append(indices) or subset(indices))
    monkeypatch.setattr(TASK, "split", lambda source, options: data)
    experiment = build_experiment(TASK, None, options)
    read.clear()
    trained = tiny.train(experiment, tmp_path)
    assert trained.loop.rounds_run == 2 and np.isfinite(trained.weights["logits/bias"]).all()
    # The loop asks for a round's clients while the round before is under way.
    assert len(read) >= 2 and all(len(indices) == 2 for indices in read)
    assert TASK.describe(experiment)["vocabulary_coverage"] is None


def test_buckets_are_settled_by_the_method():
    def settled(name, **options):
        return TASK.with_defaults(TASK.options(method=name, **options)).num_oov_buckets

    own = {"fed_recon", "fed_recon_finetuning", "furl", "fed_sim", "fed_alt"}
    own |= {"fed_avg_finetuning", "embedding_finetuning", "fed_babu", "local_only"}
    own |= {"per_fed_avg", "pfedme", "pfedrec", "ditto", "mr_mtl", "apfl", "reptile"}
    own |= {"scaffold_finetuning", "fed_dyn_finetuning", "fed_ala", "ifca_finetuning"}
    assert {name for name in TASK.methods if settled(name) == 500} == own
    assert {settled(name) for name in TASK.methods} == {500, 1}
    assert settled("fed_avg", num_oov_buckets=7) == settled("fed_recon", num_oov_buckets=7) == 7


def test_methods_are_phases():
    """The OOV embedding alone is fine-tuned as long as FedRecon rebuilds it."""
    work = {"reconstruction_epochs": 3, "max_reconstruction_steps": 7, "local_epochs": 2}
    work |= {"finetuning_epochs": 4, "max_finetuning_steps": 9}

    def phases(name):
        options, method = TASK.options(method=name, **work), TASK.methods[name]
        trained = method.build(options, TASK.layers).phases
        finetuned = method.finetuning(options, TASK.layers)
        return tuple(
            [(p.variables, p.epochs, p.max_steps) for p in some] for some in (trained, finetuned)
        )

    average, update, rebuild = ("all", 2, 100), ("global", 2, 100), ("local", 3, 7)
    assert phases("fed_recon") == ([rebuild, update], [])
    assert phases("fed_recon_finetuning") == ([rebuild, update], [("global", 4, 9)])
    assert phases("fed_avg_finetuning") == ([average], [("all", 4, 9)])
    assert phases("embedding_finetuning") == ([average], [(("oov_embedding",), 3, 7)])
    for name in ("fed_avg", "fed_yogi", "fed_adam"):
        assert phases(name) == ([average], [])
