"""Whole experiments on made-up labelled texts: every method, what users keep, how it goes on."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import sqlite3

import numpy as np
import pytest
import tensorflow as tf
from fedpersonal.tasks.documents.experiment import (
    EMBEDDINGS,
    DocumentOptions,
    build_experiment,
    run_experiment,
)
from fedpersonal.tasks.documents.methods import METHODS, build_algorithm, build_model
from fedpersonal.tasks.training_run import STORE
from sklearn.metrics import roc_auc_score

from fedpersonal.data.generated.documents import generate_clicks, generate_subreddits
from fedpersonal.data.splits import split_support_query
from fedpersonal.errors import UserError
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.models.document_classifier import document_classifier
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.tasks import training_run
from fedpersonal.tasks.documents.data import split_documents

SIZES = {"user_dim": 3, "character_dim": 3, "lstm_units": 4, "hidden_units": (5,)}
SMALL = {
    **SIZES,
    "text_length": 12,
    "total_rounds": 4,
    "clients_per_round": 5,
    "client_batch_size": 4,
    "client_learning_rate": 0.5,
    "local_learning_rate": 1.0,
    "reconstruction_epochs": 1,
    "rounds_per_eval": 2,
    "rounds_per_checkpoint": 4,
}
# Who keeps something for each of these, and whose withheld users are looked at.
KEEPING = {"furl", "fed_per", "fed_rep", "lg_fed_avg"}
WITHHOLDING = {"fed_avg", "furl", "centralized_personalized"}
CLICKS = {"fed_avg", "furl"}
TABLE = "user_embedding/embeddings"
OWN = {
    "furl": [TABLE],
    "fed_per": ["logits/kernel", "logits/bias"],
    "fed_rep": ["logits/kernel", "logits/bias"],
    "lg_fed_avg": ["characters/embeddings", "encoder/forward_kernel", "encoder/backward_bias"],
}
FILES = {
    "boundary.json",
    "config.json",
    "learning_curve.png",
    "metrics.csv",
    "per_client.csv",
    "summary.json",
}


@pytest.fixture(name="data_of", scope="module")
def _data_of():
    drawn = {"num_users": 20, "texts_per_user": (10, 20), "seed": 1}
    texts = {True: generate_clicks(**drawn), False: generate_subreddits(num_labels=3, **drawn)}

    def data_of(name):
        return split_documents(
            texts[name in CLICKS],
            text_length=SMALL["text_length"],
            withheld_users=0.1 if name in WITHHOLDING else 0.0,
            seed=0,
        )

    return data_of


def read_table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def learned(path):
    """All metrics that do not depend on the machine's speed."""
    rows = read_table(path / "metrics.csv")
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


class Finished:
    """An experiment, and what it has written."""

    def __init__(self, experiment, path):
        self.experiment, self.data, self.path = experiment, experiment.data, path
        self.summary = json.loads((path / "summary.json").read_text())
        self.clients, self.rounds = read_table(path / "per_client.csv"), learned(path)
        crossings = json.loads((path / "boundary.json").read_text())
        self.crossing = {row["name"].split(".")[-1] for row in crossings}

    def seen(self):
        """The last weights, and what the users who train have kept, if they do."""
        result, seen = train(self.experiment, self.path)
        assert result.rounds_run == 0
        return seen


def train(experiment, path, *, rounds=SMALL["total_rounds"], evaluate=None):
    """Runs the rounds that are left; returns what came of them, and what an evaluation sees."""
    trained = training_run.train(
        experiment.training,
        RunFolder.open(path, {}),
        dataclasses.replace(experiment.options, total_rounds=rounds),
        clients=experiment.data.train.client_ids,
        evaluate=evaluate,
        progress=False,
    )
    return trained.loop, trained.seen


def run(experiment, path, *, stop_in=None):
    """Runs a whole experiment, which Ctrl-C may stop in a round before."""
    if stop_in is not None:
        with pytest.raises(KeyboardInterrupt):
            run(with_ctrl_c(experiment, stop_in), path)
        assert len(read_table(path / "metrics.csv")) == stop_in - 1
    summary = run_experiment(experiment, RunFolder.open(path, {}), progress=False)
    finished = Finished(experiment, path)
    assert finished.summary == json.loads(json.dumps(summary))
    return finished


def with_ctrl_c(experiment, round_number):
    def cohort_fn(number):
        if number == round_number:
            raise KeyboardInterrupt
        return experiment.training.cohort_fn(number)

    training = dataclasses.replace(experiment.training, cohort_fn=cohort_fn)
    return dataclasses.replace(experiment, training=training)


@pytest.fixture(name="finished_run", scope="module")
def _finished_run(data_of, tmp_path_factory):
    """Runs a method once, furl with an interruption, and returns what it has written."""
    finished = {}

    def finished_run(name):
        if name not in finished:
            options = DocumentOptions(algorithm=name, **SMALL)
            path = tmp_path_factory.mktemp(name)
            experiment = build_experiment(data_of(name), options)
            finished[name] = run(experiment, path, stop_in=4 if name == "furl" else None)
        return finished[name]

    return finished_run


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_writes_it_down(finished_run, name):
    finished = finished_run(name)
    data, summary, test = finished.data, finished.summary, finished.summary["test"]
    names = {file for file in os.listdir(finished.path) if not file.startswith((".", "events"))}
    saved = {STORE} if name in KEEPING else {"checkpoints"}
    pictured = {EMBEDDINGS} if METHODS[name].knows_users else set()
    assert names == FILES | saved | pictured

    assert {k: summary[k] for k in ("algorithm", "local_state", "dataset", "rounds")} == {
        "algorithm": name,
        "local_state": "kept",
        "dataset": "generated_clicks" if name in CLICKS else "generated_subreddits",
        "rounds": 4,
    }
    assert summary["num_users"] == (18 if name in WITHHOLDING else 20)
    assert 0.0 < summary["guessing"]["overall_most_frequent"] < 1.0
    assert test["num_examples"] == data.test.num_examples
    assert ("auc" in test) == (name in CLICKS)
    assert (test["loss"] != test["before"]["loss"]) == (name in KEEPING)
    assert test["loss"] < 1.05 * np.log(2 if name in CLICKS else 3)

    assert [int(row["round"]) for row in finished.rounds] == [1, 2, 3, 4]
    evaluated = [bool(row["eval/accuracy"]) for row in finished.rounds]
    assert evaluated == [False, True, False, True]
    losses = np.array([float(row["train/loss"]) for row in finished.rounds])
    assert np.isfinite(losses).all()
    counts = [int(row["num_examples"]) for row in finished.clients]
    assert counts == data.test.counts.tolist()
    means = [float(row["loss_after"] or 0.0) for row in finished.clients]
    assert test["loss"] == pytest.approx(np.average(means, weights=counts), rel=1e-5)

    local = set(OWN.get(name, []))
    everything = {"characters/embeddings", "logits/kernel", "encoder/forward_kernel"}
    assert not local & finished.crossing and everything - local <= finished.crossing


def test_withheld_users_lack_what_is_local_alone(finished_run):
    withheld = finished_run("fed_avg").summary["withheld"]
    assert withheld["num_clients"] == 2
    for metric in ("loss", "accuracy"):
        assert withheld[metric] == withheld["before"][metric]
    withheld = finished_run("furl").summary["withheld"]
    assert withheld["loss"] != withheld["before"]["loss"] and 0.0 <= withheld["share_hurt"] <= 1.0
    assert finished_run("centralized_personalized").summary["withheld"] is None
    assert finished_run("fed_per").summary["withheld"] is None  # There are none.


def participants(data, options):
    sampler = ClientSampler(
        num_clients=data.num_users,
        clients_per_round=options.clients_per_round,
        seed=options.seed,
        dropout_rate=options.dropout_rate,
    )
    rounds = range(1, options.total_rounds + 1)
    return set(data.train.client_ids[np.concatenate([sampler.sample(r) for r in rounds])])


def stored_rows(path):
    with sqlite3.connect(path / STORE) as connection:
        return dict(connection.execute("SELECT client, value FROM local_state"))


def test_the_store_holds_those_who_took_part(finished_run):
    finished = finished_run("furl")
    taking_part = participants(finished.data, finished.experiment.options)
    rows = stored_rows(finished.path)
    assert set(rows) == taking_part and 5 < len(taking_part) < 18
    with np.load(finished.path / EMBEDDINGS) as file:
        known = dict(zip(file["users"][file["known"]], file["embeddings"][file["known"]]))
        assert file["users"].tolist() == finished.data.train.client_ids.tolist()
    assert known.keys() == rows.keys()
    for user, row in rows.items():
        np.testing.assert_array_equal(known[user], np.frombuffer(row, np.float32))
    assert len(set(rows.values())) == len(rows)


def test_a_servers_table_has_a_row_a_user(finished_run):
    finished = finished_run("centralized_personalized")
    weights = finished.seen()[0]
    with np.load(finished.path / EMBEDDINGS) as file:
        assert file["known"].all() and file["embeddings"].shape == (18, 3)
        assert file["users"].tolist() == finished.data.train.client_ids.tolist()
        np.testing.assert_array_equal(file["embeddings"], weights[TABLE])
        assert len(np.unique(file["embeddings"], axis=0)) == 18
    assert TABLE in finished.crossing


def scores_of(finished, part):
    """Logits of a part's texts, by a Keras model with a table of what the users have."""
    data, options = finished.data, finished.experiment.options
    weights, *kept = finished.seen()
    weights = {name: np.asarray(value) for name, value in weights.items()}
    if kept:
        ((known, values),) = kept
        fresh = tf.function(
            lambda: finished.experiment.model.initial_values(
                finished.experiment.model.local_variables, tf.constant([options.seed, -1])
            )
        )()[TABLE]
        weights[TABLE] = np.where(known[:, None], values[TABLE][:, 0], fresh)
    model = document_classifier(
        num_characters=data.characters.size,
        num_outputs=1 if data.is_binary else len(data.label_names),
        num_users=data.num_users if METHODS[options.algorithm].knows_users else None,
        **SIZES,
    )()
    model.set_weights([weights[v.name.split(":")[0]] for v in model.weights])
    return model({name: tf.constant(part.features[name]) for name in model.input_names}).numpy()


def measured(scores, labels, *, is_binary):
    """Returns loss, accuracy and area by NumPy and scikit-learn."""
    labels = labels.astype(int)
    logits = np.concatenate([np.zeros_like(scores), scores], axis=1) if is_binary else scores
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    found = {
        "loss": -log_probabilities[rows, labels].mean(),
        "accuracy": np.mean(logits.argmax(axis=1) == labels),
    }
    return {**found, "auc": roc_auc_score(labels, scores[:, 0])} if is_binary else found


@pytest.mark.parametrize("name", ["fed_avg", "furl", "centralized_personalized"])
def test_results_are_those_of_a_keras_model(finished_run, name):
    """With each user's stored embedding; those who never took part have a fresh one."""
    finished = finished_run(name)
    data = finished.data
    scores = scores_of(finished, data.test)
    expected = measured(scores, data.test.labels, is_binary=data.is_binary)
    found = {metric: finished.summary["test"][metric] for metric in expected}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    validated = measured(
        scores_of(finished, data.validation), data.validation.labels, is_binary=data.is_binary
    )
    last = finished.rounds[-1]
    for metric in ("loss", "accuracy"):
        assert float(last[f"eval/{metric}"]) == pytest.approx(validated[metric], rel=1e-4)
    if name == "fed_avg":
        _, query = split_support_query(data.withheld, batch_size=1, split="aggregated")
        withheld = measured(scores_of(finished, query), query.labels, is_binary=True)
        found = {metric: finished.summary["withheld"][metric] for metric in withheld}
        assert found == pytest.approx(withheld, rel=1e-4, abs=1e-5)


def test_a_run_that_is_gone_on_with_is_the_same_to_the_bit(finished_run, tmp_path):
    """After Ctrl-C in its last round as undisturbed, and as one that was first asked for less."""
    twice = finished_run("furl")
    experiment = twice.experiment
    validate = experiment.known_users("validation", with_before=False)
    once, prolonged = tmp_path / "once", tmp_path / "prolonged"
    first, _ = train(experiment, prolonged, rounds=1)
    assert len(stored_rows(prolonged)) == 5
    second, _ = train(experiment, prolonged)
    assert (first.rounds_run, second.rounds_run, second.resumed_from) == (1, 3, 1)
    _, (weights, (known, _)) = train(experiment, once, evaluate=validate)

    assert learned(once) == learned(twice.path)
    rows = stored_rows(once)
    assert rows == stored_rows(twice.path) == stored_rows(prolonged) and known.sum() == len(rows)
    others = [twice.seen()[0], train(experiment, prolonged)[1][0]]
    for name, value in weights.items():
        for other in others:
            np.testing.assert_array_equal(value, other[name])


def test_executions_are_equal(finished_run, tmp_path):
    packed = finished_run("furl")
    options = dataclasses.replace(packed.experiment.options, execution="per_client")
    _, (weights, (known, kept)) = train(build_experiment(packed.data, options), tmp_path)
    packed_weights, (packed_known, packed_kept) = packed.seen()
    assert known.tolist() == packed_known.tolist()
    np.testing.assert_allclose(kept[TABLE], packed_kept[TABLE], rtol=1e-4, atol=1e-4)
    assert len(weights) == len(packed_weights) == 11
    for name, value in packed_weights.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-4, atol=1e-4)


def test_stateless_twins_keep_nothing(data_of, tmp_path):
    options = DocumentOptions(
        algorithm="furl", local_state="rebuilt", **{**SMALL, "total_rounds": 2}
    )
    # Nobody is withheld.
    data = dataclasses.replace(data_of("furl"), withheld=data_of("fed_per").withheld)
    finished = run(build_experiment(data, options), tmp_path)
    assert not {STORE, EMBEDDINGS} & set(os.listdir(tmp_path))
    assert TABLE not in finished.crossing and "logits/kernel" in finished.crossing
    assert finished.summary["local_state"] == "rebuilt"
    test = finished.summary["test"]
    assert test["loss"] != test["before"]["loss"]  # Training texts have rebuilt what it lacks.


def test_a_store_of_another_model_is_refused(finished_run):
    finished = finished_run("furl")
    model = build_model(finished.data, METHODS["furl"], **{**SIZES, "user_dim": 4})
    before = stored_rows(finished.path)
    with pytest.raises(UserError, match=r"\[1, 3\] float32; this model's are .* \[1, 4\] float32"):
        LocalStateStore.open(finished.path / STORE, model.local_variables)
    assert stored_rows(finished.path) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [("algorithm", "x"), ("local_state", "x"), ("execution", "x"), ("server_optimizer", "x")],
)
def test_wrong_options_are_refused(option, value):
    with pytest.raises(ValueError, match=f"DocumentOptions: {option} must be one of .*{value!r}"):
        DocumentOptions(**{option: value})


def test_rounds_after_the_decay_are_refused():
    DocumentOptions(total_rounds=7, decay_rounds=7)
    with pytest.raises(UserError, match="decay_rounds=6 must be 0 or at least total_rounds=7"):
        DocumentOptions(total_rounds=7, decay_rounds=6)


def test_methods_are_phases():
    def phases(name, **options):
        options = DocumentOptions(
            algorithm=name, local_epochs=2, local_only_epochs=3, max_steps=7, **options
        )
        algorithm = build_algorithm(name, options)
        return algorithm.keeps, [(p.variables, p.epochs, p.max_steps) for p in algorithm.phases]

    everything = ("all", 2, 7)
    expected = {name: (name in KEEPING, [everything]) for name in METHODS}
    head, body = phases("fed_rep")[1]
    assert (head, body) == (("local", 3, 7), ("global", 2, 7))
    expected["fed_rep"] = (True, [head, body])
    assert {name: phases(name) for name in METHODS} == expected
    for name in KEEPING:
        assert phases(name, local_state="rebuilt") == (False, expected[name][1])
