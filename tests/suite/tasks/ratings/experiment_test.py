"""Experiments on ratings: what they learn, how users are ranked, what they have kept."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.ratings import number_ratings
from fedpersonal.suite.tasks.experiment import build_experiment
from fedpersonal.suite.tasks.ratings.task import TASK

LONGER = {"total_rounds": 6, "clients_per_round": 16, "client_batch_size": 8}
RUNS = {
    "gradient": {"method": "fed_recon", **LONGER, "test_draws": 9, "clients_per_draw": 1},
    "ridge": {"method": "fed_recon", "reconstruction": "ridge", "ridge_l2": 2.0, **LONGER},
    "rated": {
        "method": "fed_recon",
        "reconstruction": "ridge",
        "ridge_l2": 2.0,
        "rated_items": 6,
        **LONGER,
    },
    "table": {"method": "fed_avg", "evaluate_on": "seen", "local_epochs": 3, **LONGER},
    "rated_table": {
        "method": "fed_avg",
        "evaluate_on": "seen",
        "local_epochs": 3,
        "rated_items": 6,
        **LONGER,
    },
    "kept": {"method": "furl", "evaluate_on": "seen", **LONGER, "clients_per_round": 20},
    "centralized": {"method": "centralized", "client_learning_rate": 0.2, **LONGER},
}


@pytest.fixture(name="run", scope="module")
def _run(tiny):
    return lambda name: tiny.run(TASK, **RUNS[name])


@pytest.mark.exhaustive(but=("gradient", "kept"))
@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_learns(run, name):
    finished = run(name)
    test, query = finished.test, finished.data.test.query
    guess = finished.data.train.labels.mean()
    assert test["rmse"] < 0.97 * np.sqrt(np.mean((query.labels - guess) ** 2))
    assert finished.summary["evaluate_on"] == RUNS[name].get("evaluate_on", "unseen")

    assert len(finished.clients) == query.num_clients
    for metric in ("hr@10_of_14_to_18", "ndcg@10_of_14_to_18"):
        values = [float(row[metric]) for row in finished.clients]
        assert test[metric] == pytest.approx(np.mean(values), abs=1e-6)
    ranked = finished.data.test.ranking.query.counts
    assert test["guesses"]["chance"]["hr@10_of_14_to_18"] == pytest.approx(np.mean(10 / ranked))
    counts = [int(row["num_examples"]) for row in finished.clients]
    squares = [float(row["rmse_after"] or 0) ** 2 for row in finished.clients]
    assert test["rmse"] ** 2 == pytest.approx(np.average(squares, weights=counts), rel=1e-5)
    has_table = RUNS[name]["method"] in ("fed_avg", "centralized")
    assert ("user_embedding/embeddings" in finished.crossing) == has_table


@pytest.mark.exhaustive
def test_reconstruction_helps_those_whom_it_is_for(run):
    for name in ("gradient", "ridge"):
        test = run(name).test
        assert test["loss"] < 0.9 * test["before"]["loss"]
    # Seen users are predicted with what the server's table has of them.
    for row in run("table").clients:
        assert row["loss_before"] == row["loss_after"]


@pytest.mark.exhaustive
def test_a_run_that_is_asked_for_draws_tells_of_them(run):
    finished = run("gradient")
    found = [float(row["rmse_after"]) for row in finished.clients if row["rmse_after"]]
    told = finished.summary["draws"]["rmse"]
    assert min(found) < told["mean"] < max(found)
    assert 0 < told["sd"] <= np.std(found) + 1e-9
    assert "draws" not in run("ridge").summary


@pytest.mark.exhaustive
def test_it_says_how_many_users_count_in_each_figure(tiny):
    """Users with a single batch have no query set, and are ranked all the same."""
    options = {**LONGER, "client_batch_size": 17, "seed": 10}
    finished = tiny.run(TASK, method="fed_recon", **options)
    test, name = finished.test, "hr@10_of_14_to_18"
    assert (test["num_clients"], test["num_clients_without_query"]) == (1, 1)
    assert test["num_clients_of"] == {name: 2, name.replace("hr", "ndcg"): 2}
    (line,) = TASK.report(finished.summary)
    assert line.startswith("test, 1 user (1 more without a query set), 1 ratings: rmse ")
    assert f"{name} {test[name]:.4f} (2 users; chance: 0." in line
    page = (finished.path / "report.html").read_text(encoding="utf-8")
    assert "clients without a query set</dt><dd>1<" in page
    assert page.count(">2 clients</dd>") == 2


def rated(*, low, high):
    """Twenty users' ratings of 16 items, spread evenly between two numbers, of no known data."""
    values = np.linspace(low, high, 320, dtype=np.float32)
    users, items = np.divmod(np.random.default_rng(0).permutation(320), 16)
    return number_ratings(users.astype(str), items.astype(str), values, None, name="table.csv")


OFFSET_WARNINGS = [
    # Low, high, options, what the preset is, the constant that is left, what is said.
    (1, 5, {}, None, None, ""),
    (1, 10, {}, None, None, ""),
    (-10, 10, {}, None, None, ""),
    (0, 100, {}, None, None, ""),
    (1, 5, {"rating_offset": 3.5}, None, 3.5, ""),
    (1, 10, {"rating_offset": 3.5}, None, 3.5, "the mean rating is 5.5 but --rating_offset is 3.5; "
     "pass --rating_offset=5.5, or leave it out"),
    (1, 10, {"rating_offset": 0.0}, None, 0.0, "but --rating_offset is 0; pass"),
    (0, 100, {"rating_scale": 1.0}, None, None, "far from --rating_offset=50 for --rating_scale=1"),
    (1, 5, {"rating_offset": 3.5}, "--size=quick", 3.5, ""),
    (-10, 10, {"rating_offset": 3.5}, "--size=quick", None, "the mean rating is .*--rating_offset="
     "3.5 of --size=quick does not fit: predictions start at the mean training rating"),
    (0, 100, {"rating_offset": 0.0}, "p.flags", None, "the --rating_offset=0 of p.flags does not"),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high", "given", "preset", "kept", "said"), OFFSET_WARNINGS)
def test_a_constant_that_is_not_near_the_mean_rating_is_named_once(
    low, high, given, preset, kept, said
):
    source, options = rated(low=low, high=high), TASK.options(**given)
    set_by = {"rating_offset": preset} if preset else {}
    options, replaced = TASK.replace_presets(source, options, set_by)
    warnings = [*replaced, *TASK.warnings(source, options)]
    assert options.rating_offset == kept and len(warnings) == bool(said)
    assert not warnings or re.search(said, warnings[0])


@pytest.mark.exhaustive(but=("0-100-25",))
@pytest.mark.parametrize(("low", "high", "scale"), [(1, 10, 1), (0, 100, 25)])
def test_predictions_start_at_the_mean_training_rating(tiny, low, high, scale):
    """Tables of other scales train with the rates of stars, and no flag."""
    source = rated(low=low, high=high)
    options = TASK.options(
        method="fed_recon", embedding_dim=3, clients_per_round=8, total_rounds=3,
        client_learning_rate=0.1, reconstruction="ridge", ridge_l2=10, use_biases=True,
    )  # fmt: skip
    experiment = build_experiment(TASK, source, options)
    mean = experiment.data.train.labels.mean(dtype=np.float64)
    sizes = TASK.sizes(experiment.data)
    assert sizes["mean_rating"] == pytest.approx(mean) != source.ratings.mean()
    told = TASK.describe(experiment)
    assert (told["rating_offset"], told["rating_scale"]) == (
        pytest.approx(mean), pytest.approx(scale, rel=0.02)
    )  # fmt: skip
    untrained = experiment.evaluation(experiment.data.test, ())(experiment.trainer.untrained())
    guess = TASK.baselines(experiment, experiment.data.test)["mean of all ratings"].metrics["rmse"]
    assert untrained.overall()["rmse"] == pytest.approx(guess, rel=0.02)
    with experiment.trainer.fit(rounds=3, progress=False) as trained:
        after = experiment.evaluation(experiment.data.test)(trained).overall()
    assert after["rmse"] < 1.2 * guess


def test_metrics_are_in_stars_of_movielens_alone():
    for dataset, words in (("movielens-1m", ("in stars", "half a star")), ("table.csv", ())):
        texts = " ".join(TASK.meanings_of({"dataset": dataset}).values())
        assert all(word in texts for word in words) and ("star" in texts) == bool(words)


def weights_of(experiment, rounds):
    with experiment.trainer.fit(rounds=rounds, callbacks=[]) as trained:
        return {name: np.array(value) for name, value in trained.weights.items()}


@pytest.mark.exhaustive
def test_a_scale_trains_as_normalised_ratings_do(tiny):
    # Where nothing is local, since local variables start from what clients have, ratings too.
    scaled = tiny.build(TASK, **RUNS["table"], rating_offset=3.0, rating_scale=2.0, l2=0.01)
    plain = scaled.options.replace(rating_offset=0.0, rating_scale=1.0)
    source = tiny.source(TASK, plain)
    source = dataclasses.replace(source, ratings=(source.ratings - 3) / 2)
    normalised = build_experiment(TASK, source, plain)
    found, expected = (weights_of(e, 3) for e in (scaled, normalised))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
    results = []
    for experiment in (scaled, normalised):
        with experiment.trainer.untrained() as trained:
            results.append(experiment.evaluation(experiment.data.test)(trained).overall())
    stars, scores = results
    assert stars["rmse"] == pytest.approx(2 * scores["rmse"], rel=1e-4)
    assert stars["loss"] == pytest.approx(scores["loss"], rel=1e-4)


@pytest.mark.exhaustive
def test_ridge_penalties_are_of_scores():
    """Exact reconstruction of ratings from 0 to 100 is that of ratings from 1 to 5."""
    errors = []
    for low, high, offset, scale in ((1, 5, 3.0, 1.0), (0, 100, 50.0, 25.0)):
        options = TASK.options(
            method="fed_recon", embedding_dim=3, reconstruction="ridge", ridge_l2=10,
            ridge_bias_l2=2, use_biases=True, rating_offset=offset, rating_scale=scale,
        )  # fmt: skip
        experiment = build_experiment(TASK, rated(low=low, high=high), options)
        with experiment.trainer.untrained() as trained:
            results = experiment.evaluation(experiment.data.test)(trained).overall()
        errors.append(results["rmse"] / scale)
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)


@pytest.mark.exhaustive
def test_reconstruction_grows_by_a_pass_a_round(tiny):
    built = {
        (epochs, grows): tiny.build(
            TASK, reconstruction_epochs=epochs, growing_reconstruction=grows, **LONGER
        )
        for epochs, grows in ((1, False), (2, True), (3, True))
    }

    def same(one, other, rounds):
        first, second = (weights_of(built[key], rounds) for key in (one, other))
        return all(np.array_equal(first[name], second[name]) for name in first)

    assert same((3, True), (1, False), 1) and same((3, True), (2, True), 2)
    assert not same((3, True), (2, True), 3) and not same((2, True), (1, False), 2)
    # Evaluation makes all passes.
    phases = [built[key].evaluator.rebuilding for key in ((2, True), (3, True))]
    assert [phase.epochs for (phase,) in phases] == [2, 3]
    assert all(phase.passes is None for (phase,) in phases)


def test_users_are_left_out_by_their_ratings_whatever_the_data(tiny):
    options = tiny.options(TASK)
    counts = np.bincount(TASK.read(options).users)
    kept = TASK.read(options.replace(min_ratings=16, max_ratings=18))
    assert len(kept.user_ids) == ((counts >= 16) & (counts <= 18)).sum() < len(counts)


def test_users_who_have_kept_their_embedding_predict_with_it(run):
    finished = run("kept")
    trained, query = finished.trained, finished.data.test.query
    assert trained.has_kept.all()
    places = {client: place for place, client in enumerate(finished.data.train.client_ids)}
    users = np.array([places[client] for client in query.client_ids])[query.example_clients]
    items = query.features["item"]
    vectors = trained.kept["user_embedding/vector"].reshape(len(places), -1)
    biases = trained.kept["user_bias/vector"].reshape(-1)
    scores = np.sum(vectors[users] * trained.weights["item_embedding/embeddings"][items], 1)
    scores += 3.5 + biases[users] + trained.weights["item_bias/embeddings"][items, 0]
    expected = np.sqrt(np.mean((scores - query.labels) ** 2))
    assert finished.test["rmse"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.exhaustive
def test_a_table_is_evaluated_as_it_was_trained_on_seen_users_alone(run):
    seen, unseen = run("table").experiment, run("centralized").experiment
    assert seen.evaluator.model is seen.model and seen.evaluator.personalization(False) == ()
    rows = seen.model.server_rows_per_client
    assert rows == {"user_embedding/embeddings", "user_bias/embeddings"}
    assert unseen.model.server_rows_per_client == rows
    assert not unseen.evaluator.model.server_rows_per_client
    assert {v.layer for v in unseen.evaluator.model.local_variables} == {
        "user_embedding",
        "user_bias",
    }
    assert len(unseen.evaluator.personalization(False)) == 1


def test_a_local_layer_that_the_model_lacks_is_refused(tiny):
    with pytest.raises(UserError, match="local_layers: 'item_embeding' names no variable"):
        tiny.build(TASK, method="fed_sim", local_layers=("item_embeding",))


@pytest.mark.exhaustive
def test_unseen_users_move_their_vector_with_their_copy_of_the_items(tiny):
    """Copies alone would say nothing of items that a user has not rated yet."""
    experiment = tiny.build(TASK, method="ditto", local_state="rebuilt", **LONGER)
    validation = experiment.data.validation
    *vectors, copies = experiment.evaluator.rebuilding
    alone = (*vectors, dataclasses.replace(copies, variables="personal"))
    with experiment.trainer.fit(rounds=2, progress=False) as trained:
        found = [
            experiment.evaluation(validation, phases)(trained).after["loss"][:, 0]
            for phases in (None, alone, tuple(vectors))
        ]
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5)
    assert (np.abs(found[0] - found[2]) > 1e-3 * found[2]).all()
