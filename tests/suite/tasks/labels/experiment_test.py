"""Experiments on labelled texts: users seen and unseen, and results as Keras has them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from fedpersonal.errors import UserError
from fedpersonal.evaluation.personalize import personalize
from fedpersonal.suite.models.documents import (
    CharacterEncoder,
    HashedWordEncoder,
    document_classifier,
)
from fedpersonal.suite.tasks.labels.task import TASK
from fedpersonal.training.clients import ClientSampler

TABLE = "user_embedding/embeddings"
LIKED = {"label_column": "liked", "num_labels": 0, "local_learning_rate": 1.0}
WORDS = {"text_encoder": "hashed_words", "word_buckets": 50, "word_dim": 4}
RUNS = {
    "kept": {"method": "furl", **LIKED},
    "words": {"method": "furl", "packing": "stacked", "local_learning_rate": 1.0, **WORDS},
    "linear": {
        "method": "furl",
        "client_learning_rate": 0.01,
        "local_learning_rate": 1.0,
        **WORDS,
        "word_dim": 0,
        "user_dim": 0,
        "hidden_units": (0,),
    },
    "fed_recon": {"method": "fed_recon"},
    "table": {"method": "centralized_personalized", "unseen_users": 0.0},
}


@pytest.fixture(name="run", scope="module")
def _run(tiny):
    return lambda name: tiny.run(TASK, **RUNS[name])


@pytest.mark.exhaustive(but=("kept",))
@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_says_of_users_seen_and_unseen(run, name):
    finished = run(name)
    summary, test = finished.summary, finished.test
    is_binary = name == "kept"
    assert ("auc" in test) == finished.data.is_binary == is_binary
    assert test["loss"] < 1.05 * np.log(2 if is_binary else 3)
    assert summary["local_state"] == "kept"
    assert summary["num_users"] == (20 if name == "table" else 18) == finished.data.num_users
    assert 0.0 < test["guesses"]["the most frequent label"]["accuracy"] < 1.0
    assert TABLE in finished.crossing if name == "table" else TABLE not in finished.crossing

    unseen = summary["unseen"]
    if name == "table":  # It has no row for anybody else.
        assert unseen is None and len(TASK.report(summary)) == 1
        return
    # They rebuild what they lack.
    assert unseen["num_clients"] == 2 and len(TASK.report(summary)) == 2
    assert unseen["num_examples"] == finished.data.unseen.query.num_examples
    assert unseen["loss"] != unseen["before"]["loss"]


@pytest.mark.exhaustive
def test_users_who_rebuild_nothing_are_told_one_figure(run, tiny):
    summary = run("words").summary
    assert " before and " in TASK.report(summary)[1]
    experiment = tiny.built(TASK, method="fed_avg")
    unseen = experiment.data.unseen
    summary["unseen"]["is_personalised"] = experiment.is_personalised(unseen)
    line, accuracy = TASK.report(summary)[1], summary["unseen"]["accuracy"]
    assert f": accuracy {accuracy:.4f} (each user's most frequent label: 0." in line


def scores_of(finished, part):
    """Logits of a part's texts, by a Keras model with a table of what the users have.

    Those whom no round has drawn have what they build from the texts that they would train on.
    """
    data, experiment, trained = finished.data, finished.experiment, finished.trained
    options, weights = experiment.options, dict(trained.weights)
    if trained.kept:
        support, _ = TASK.for_evaluation(experiment.model, part)
        phases, size = experiment.evaluator.rebuilding, options.client_batch_size
        weights[TABLE] = trained.kept[TABLE][:, 0].copy()
        assert 4 < trained.has_kept.sum() < 18
        for user in np.flatnonzero(~trained.has_kept):
            own = personalize(
                experiment.model,
                phases,
                trained.weights,
                support.subset([user]),
                batch_size=size,
                seed=options.seed,
            )
            weights[TABLE][user] = own[TABLE][0]
    part = part.query
    if options.is_linear:
        return linear_scores(weights, part.features)
    if options.text_encoder == "hashed_words":
        encoder = HashedWordEncoder(data.vocabulary.size, options.word_dim)
    else:
        size = data.vocabulary.size
        encoder = CharacterEncoder(size, options.character_dim, options.lstm_units)
    model = document_classifier(
        encoder,
        num_outputs=1 if data.is_binary else len(data.label_names),
        num_users=data.num_users,
        user_dim=options.user_dim,
        hidden_units=options.hidden_units,
    )()
    model.set_weights([weights[variable.name.split(":")[0]] for variable in model.weights])
    return model({name: tf.constant(part.features[name]) for name in model.input_names}).numpy()


def linear_scores(weights, features):
    """Logits by NumPy: a bag of length 1 times 10, and what user and all have of each label."""
    text, counts = features["text"], features["num_words"]
    is_word = np.arange(text.shape[1]) < counts[:, np.newaxis]
    words = (weights["words/embeddings"][text] * is_word[..., np.newaxis]).sum(axis=1)
    words *= 10.0 / np.sqrt(np.maximum(counts, 1))[:, np.newaxis]
    return words + weights[TABLE][features["user"]] + weights["logits/bias"]


def measured(scores, labels, *, is_binary):
    """Returns loss, accuracy and area by NumPy and scikit-learn."""
    labels = labels.astype(int)
    logits = np.concatenate([np.zeros_like(scores), scores], axis=1) if is_binary else scores
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    found = {
        "loss": -log_probabilities[np.arange(len(labels)), labels].mean(),
        "accuracy": np.mean(logits.argmax(axis=1) == labels),
    }
    return {**found, "auc": roc_auc_score(labels, scores[:, 0])} if is_binary else found


@pytest.mark.exhaustive(but=("kept",))
@pytest.mark.parametrize("name", ["kept", "words", "linear", "table"])
def test_results_are_those_of_a_keras_model(run, name):
    """With each user's stored embedding; users whom no round has drawn have rebuilt theirs."""
    finished = run(name)
    for part, found in (
        (finished.data.test, finished.test),
        (
            finished.data.validation,
            {key[5:]: float(v or "nan") for key, v in finished.rounds[-1].items() if "eval" in key},
        ),
    ):
        scores = scores_of(finished, part)
        expected = measured(scores, part.query.labels, is_binary=finished.data.is_binary)
        if "auc" not in found:
            expected.pop("auc", None)
        assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_store_holds_those_who_took_part(run):
    finished = run("kept")
    options = finished.experiment.options
    sampler = ClientSampler(
        num_clients=finished.data.num_users,
        clients_per_round=options.clients_per_round,
        seed=options.seed,
        dropout_rate=options.dropout_rate,
    )
    drawn = np.concatenate([sampler.sample(number) for number in (1, 2)])
    trained = finished.trained
    assert set(np.flatnonzero(trained.has_kept)) == set(drawn) and 4 < trained.has_kept.sum() < 18
    assert len(np.unique(trained.kept[TABLE][trained.has_kept], axis=0)) == trained.has_kept.sum()


@pytest.mark.exhaustive
def test_users_who_keep_nothing_rebuild_what_they_lack(tiny):
    experiment = tiny.built(TASK, method="furl", local_state="rebuilt")
    assert TABLE not in {c.name.split(".")[-1] for c in experiment.trainer.crossings}
    assert not experiment.has_kept(experiment.data.test)
    (phase,) = experiment.evaluator.personalization(False)
    assert phase.variables == "local" and not experiment.algorithm.keeps
    kept = tiny.built(TASK, **RUNS["kept"])
    assert kept.has_kept(kept.data.test) and not kept.has_kept(kept.data.unseen)


@pytest.mark.exhaustive
def test_packings_train_hashed_words_alike(tiny, run):
    """Several steps a client: stacked clients touch their own rows alone, others take turns."""
    stacked = run("words").trained.arrays()
    options = {**RUNS["words"], "packing": "pooled"}
    pooled = tiny.run(TASK, **options).trained.arrays()
    assert stacked["words/embeddings"].shape == (51, 4)
    for name, value in stacked.items():
        np.testing.assert_allclose(pooled[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.exhaustive
def test_layers_of_the_other_encoder_are_no_body(tiny):
    experiment = tiny.built(TASK, method="lg_fed_avg", **WORDS)
    assert [v.name for v in experiment.model.local_variables] == ["words/embeddings"]
    with pytest.raises(UserError, match="encoder"):
        tiny.build(TASK, method="fed_sim", local_layers=("encoder",), **WORDS)


@pytest.mark.exhaustive
def test_a_servers_table_has_a_row_a_user(run):
    finished = run("table")
    table = finished.trained.weights[TABLE]
    assert table.shape == (20, 3) and len(np.unique(table, axis=0)) == 20


def test_methods_are_phases():
    keeping = {"furl", "fed_per", "fed_rep", "fed_sim", "fed_alt", "lg_fed_avg"}
    work = {"local_epochs": 2, "local_only_epochs": 3, "max_local_steps": 7}

    def phases(name, **options):
        options = TASK.options(method=name, **work, **options)
        algorithm = TASK.methods[name].build(options, TASK.layers)
        return algorithm.keeps, [(p.variables, p.epochs, p.max_steps) for p in algorithm.phases]

    both = [("local", 3, 7), ("global", 2, 7)]
    for name in keeping:
        expected = both if name in ("fed_rep", "fed_alt") else [("all", 2, 7)]
        assert phases(name) == (True, expected)
        assert phases(name, local_state="rebuilt") == (False, expected)
    for name in ("fed_avg", "fed_prox", "fed_avg_finetuning", "embedding_finetuning"):
        assert phases(name) == (False, [("all", 2, 7)])
    for name in ("centralized", "centralized_personalized"):
        assert phases(name) == (False, [("all", 2, None)])


def test_a_linear_model_has_no_layers_between():
    with pytest.raises(UserError, match="--word_dim=0 needs --hidden_units=0 --user_dim=0"):
        TASK.options(text_encoder="hashed_words", word_dim=0, user_dim=0)
