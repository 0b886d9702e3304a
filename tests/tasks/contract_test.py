"""What holds for every task and every method, on tiny data.

Each kind of check is made for every task with one method, and each method is run by one task at
least; what all executions do alike is checked in tests/process.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from fedpersonal.algorithms.method import methods
from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.tasks.task import all_tasks

TASKS = all_tasks()
# The method that each kind of check is made with.
MAIN = {
    "movielens": "fed_rep",
    "stackoverflow": "fed_recon_finetuning",
    "reddit": "lg_fed_avg",
    "tv_shows": "fedperc",
}
# What else is run to the end.
RUNS = [
    *MAIN.items(),
    ("movielens", "fed_avg"),
    ("movielens", "furl"),
    ("movielens", "centralized"),
    ("movielens", "local_only"),
    ("reddit", "fed_babu"),
    ("reddit", "fed_recon"),
    ("reddit", "fed_avg_finetuning"),
    ("reddit", "centralized_personalized"),
    ("stackoverflow", "embedding_finetuning"),
    ("tv_shows", "fed_per"),
    ("tv_shows", "fedperc_generated"),
    ("tv_shows", "split_learning"),
    ("tv_shows", "meta_learning"),
]
# What is compared with another method's rounds below; fresh heads differ in their initial values.
COMPARED = {"fed_prox", "fed_sim", "fed_alt", "fed_yogi", "fed_adam", "fed_recon"}
COMPARED |= {"split_learning_fresh", "meta_learning_fresh"}


def run(tiny, task, method, **options):
    return tiny.run(TASKS[task], algorithm=method, **options)


def built(tiny, task, method, **options):
    return tiny.built(TASKS[task], algorithm=method, **options)


def equal_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_every_task_and_method_is_run():
    assert TASKS.keys() == MAIN.keys(), "a task lacks its line above, and tests/tasks/conftest.py"
    offered = set(methods()).union(*(task.methods for task in TASKS.values()))
    assert offered == {method for _, method in RUNS} | COMPARED


@pytest.mark.parametrize(("task", "name"), RUNS)
def test_a_run_writes_down_what_it_did(tiny, task, name):
    finished = run(tiny, task, name)
    experiment, summary, test = finished.experiment, finished.summary, finished.test
    method, model = experiment.method, experiment.model
    files = {file for file in os.listdir(finished.path) if not file.startswith((".", "events"))}
    expected = {"boundary.json", "config.json", "per_client.csv", "summary.json"}
    if method.trains:
        expected |= {"learning_curve.png", "metrics.csv"}
        expected |= {"local_state.sqlite" if experiment.algorithm.keeps else "checkpoints"}
    assert files == expected

    assert (summary["algorithm"], summary["seed"]) == (name, 0)
    assert summary["dataset"] == finished.data.name
    assert summary["rounds"] == (2 if method.trains else 0)
    assert summary["peak_rss_mb"] > 0
    for measured in (
        "train_wall_seconds",
        "median_round_seconds",
        "broadcast_bytes_per_client",
        "aggregated_bytes_per_client",
    ):
        assert (summary[measured] > 0) == method.trains
    assert all(math.isfinite(test[metric]) for metric in ("loss", *experiment.task.metrics[:1]))
    for line in experiment.task.report(summary):
        assert line and "\n" not in line

    query = finished.data.test.query
    assert test["num_examples"] == sum(int(row["num_examples"]) for row in finished.clients) > 0
    assert {row["client"] for row in finished.clients} <= set(query.client_ids)
    if experiment.personalization(finished.data.test) and test["before"]:
        assert test["loss"] != test["before"]["loss"] and 0 <= test["share_hurt"] <= 1

    crossing = {row["name"].split(".")[-1] for row in finished.boundary}
    local = {v.name for v in model.local_variables}
    moving = {v.name for v in model.global_variables} if method.trains else set()
    assert bool(local) == bool(method.local_layers(*experiment.settings))
    assert moving <= crossing and not local & crossing

    if method.trains:
        assert [row["round"] for row in finished.rounds] == ["1", "2"]
        first, last = finished.rounds
        assert math.isfinite(float(last["train/loss"])) and float(last["eval/loss"]) > 0
        assert first["eval/loss"] == ""


@pytest.mark.parametrize("task", TASKS)
def test_the_seed_fixes_a_run_that_ctrl_c_stops(tiny, task, tmp_path):
    """Another experiment of the same options, stopped and gone on with, has the same bits."""
    undisturbed = run(tiny, task, MAIN[task])
    again = tiny.build(TASKS[task], algorithm=MAIN[task])
    with tiny.ctrl_c(again, 2):
        tiny.train(again, tmp_path)
    trained = tiny.train(again, tmp_path)
    assert (trained.loop.resumed_from, trained.loop.rounds_run) == (1, 1)
    expected = tiny.train(undisturbed.experiment, undisturbed.path)
    assert expected.loop.rounds_run == 0
    equal_bits(trained.arrays(), expected.arrays())
    if trained.known is not None:
        np.testing.assert_array_equal(trained.known, expected.known)
        assert trained.known.any()
    initial = again.trainer.untrained().weights
    assert any((trained.weights[name] != value).any() for name, value in initial.items())


@pytest.mark.parametrize("task", TASKS)
def test_shards_of_one_client_lead_to_the_same(tiny, task, tmp_path):
    packed = run(tiny, task, MAIN[task])
    one = tiny.build(TASKS[task], algorithm=MAIN[task], execution="per_client")
    found = tiny.train(one, tmp_path).arrays()
    expected = tiny.train(packed.experiment, packed.path).arrays()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.fixture(name="after_a_round", scope="module")
def _after_a_round(tiny, tmp_path_factory):
    """Trains for a round, without evaluation; all arrays that come of it."""

    def after_a_round(task, method, **options):
        experiment = built(tiny, task, method, **options)
        return tiny.train(experiment, tmp_path_factory.mktemp("round"), rounds=1).arrays()

    return after_a_round


def test_fed_prox_without_its_term_is_fed_avg(after_a_round):
    average = after_a_round("movielens", "fed_avg")
    equal_bits(after_a_round("movielens", "fed_prox", proximal=0.0), average)
    held = after_a_round("movielens", "fed_prox", proximal=2.0)
    assert any((held[name] != value).any() for name, value in average.items())


def test_fed_sim_and_fed_alt_are_other_methods_on_any_layers(tiny, after_a_round):
    equal_bits(after_a_round("movielens", "fed_sim"), after_a_round("movielens", "furl"))
    equal_bits(after_a_round("movielens", "fed_alt"), after_a_round("movielens", "fed_rep"))
    experiment = built(tiny, "reddit", "fed_sim", local_layers=("encoder", "logits"))
    assert {v.layer for v in experiment.model.local_variables} == {"encoder", "logits"}


@pytest.mark.parametrize(("name", "optimizer"), [("fed_yogi", "yogi"), ("fed_adam", "adam")])
def test_an_adaptive_server_takes_the_average_for_a_gradient(tiny, after_a_round, name, optimizer):
    average = after_a_round("movielens", "fed_avg")
    start = built(tiny, "movielens", "fed_avg").trainer.untrained().weights
    optimizer = build_server_optimizer(optimizer, learning_rate=0.1)
    state = optimizer.initialize(dict(start))
    gradient = {key: value - average[key] for key, value in start.items()}
    _, expected = optimizer.next(state, dict(start), gradient)
    found = after_a_round("movielens", name)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5)


def test_fed_babu_never_trains_its_head(tiny):
    finished = run(tiny, "reddit", "fed_babu")
    weights = tiny.train(finished.experiment, finished.path).weights
    for name, initial in finished.experiment.trainer.untrained().weights.items():
        assert (weights[name] == initial).all() == name.startswith("logits/"), name


def test_fine_tuning_alone_tells_a_method_from_fed_avg(tiny, after_a_round):
    """They train alike, and differ in what a client moves before it predicts."""
    equal_bits(after_a_round("reddit", "fed_avg_finetuning"), after_a_round("reddit", "fed_avg"))
    for task in ("reddit", "stackoverflow"):
        experiment = built(tiny, task, "embedding_finetuning")
        (phase,) = experiment.method.finetuning(*experiment.settings)
        assert phase.variables == experiment.layers.embedding != ()
        assert (
            experiment.method.finetuning(
                experiment.options.replace(reconstruction_epochs=0), experiment.layers
            )
            == ()
        )


def test_local_training_sends_nothing_and_trains_each_client_alone(tiny):
    """It ends where fine-tuning leads from the initial weights."""
    finished = run(tiny, "movielens", "local_only")
    assert finished.boundary == []
    other = built(tiny, "movielens", "fed_avg_finetuning")
    results = other.evaluation(other.data.test)(other.trainer.untrained())
    expected = results.overall()
    assert {name: finished.test[name] for name in expected} == expected
    assert finished.test["before"] == results.overall_before() != expected
