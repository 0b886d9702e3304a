"""What holds for every task and every method, on tiny data.

Each kind of check is made for every task with one method, and each method is run by one task at
least; that all packings do alike is checked in tests/federated.
"""

from __future__ import annotations

import collections
import functools
import sys

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.tiny import FOR_A_ROUND, RUN
from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import strongest
from fedpersonal.evaluation.client_metrics import find_metric, lower_is_better
from fedpersonal.methods.method import methods
from fedpersonal.optimizers import build_server_optimizer
from fedpersonal.report.run import read_run
from fedpersonal.runs.description import describe
from fedpersonal.runs.record import RunRecord
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.utterances.methods import METHODS as UTTERANCE_METHODS
from fedpersonal.suite.testing import check_equal
from fedpersonal.training.loaded import load_run

TASKS = all_tasks()
# What the tests of a task run or build; `benchmarks.tiny` has what is run here.
BY_TASKS = {"centralized", "centralized_personalized", "fed_recon"}
BY_TASKS |= {"fedperc_generated", "fedperc_projected", "split_learning", "meta_learning"}
BY_TASKS |= {"fedsa_lora", "meta_learning_bias", "central_meta_learning_bias"}
# Fresh heads have other initial values: head_language_model_test.py. Parts differ in their models
# alone: language_test.py.
NOT_RUN = {"split_learning_fresh", "meta_learning_fresh", "central_fedperc"}
NOT_RUN |= {method.name for method in UTTERANCE_METHODS if method.parts} - BY_TASKS


def run(tiny, task, method, **options):
    return tiny.run(TASKS[task], method=method or tiny.main[task], **options)


def built(tiny, task, method, **options):
    return tiny.built(TASKS[task], method=method, **options)


equal_bits = functools.partial(check_equal, "equal bits")


def test_every_task_and_method_is_run(tiny):
    assert TASKS.keys() == tiny.main.keys(), "a task lacks its lines in benchmarks/tiny.py"
    offered = set(methods()).union(*(task.methods for task in TASKS.values()))
    named = {name for _, name in [*RUN, *FOR_A_ROUND]} | BY_TASKS | NOT_RUN
    assert named <= offered
    # Others of all tasks' methods are run by tests/methods/contract_test.py.
    assert offered - named <= set(methods())


def test_methods_are_offered_where_the_model_has_the_layers_that_they_need():
    offer = {name: set(task.methods) for name, task in TASKS.items()}
    assert {name for name in offer if "centralized_personalized" in offer[name]} == {
        "digits",
        "interactions",
        "movielens",
        "reddit",
    }
    have_bodies = {"digits", "reddit", "stackoverflow"}
    assert {name for name in offer if "lg_fed_avg" in offer[name]} == have_bodies
    assert {name for name in offer if "fedperc" in offer[name]} == {"tv_shows"}


@pytest.mark.parametrize("task", TASKS)
def test_runs_of_any_seed_with_one_split_seed_test_the_same(tiny, task):
    """So whoever tunes by other seeds neither trains nor validates on what is tested."""

    def parts(**seeds):
        options = TASKS[task].options(**{**first.options.values(), **seeds})
        data = TASKS[task].split(tiny.source(TASKS[task], first.options), options.for_split)
        return [s.fingerprint() for p in (data.test, data.validation) for s in (p.support, p.query)]

    first = built(tiny, task, tiny.main[task])
    expected = parts()
    assert parts(seed=100, split_seed=0) == parts(split_seed=0) == expected
    assert parts(split_seed=100) == parts(seed=100) != expected
    if task == "movielens":
        other = tiny.built(TASKS[task], method=tiny.main[task], seed=100, split_seed=0)
        assert other.data.test.query.fingerprint() == expected[1]
        assert other.options.seed == 100


@pytest.mark.exhaustive(but=("movielens", "reddit", "tv_shows", "digits"))
@pytest.mark.parametrize("task", TASKS)
def test_validation_tells_the_first_metric_of_a_task_by_which_sweeps_choose(tiny, task):
    finished = run(tiny, task, None)
    found = (find_metric(name, finished.test) for name in TASKS[task].metrics)
    name = next(name for name in found if name)
    assert f"eval/{name}" in RunRecord(finished.path).metrics
    best, _ = strongest(finished.test["guesses"], name)
    experiment = finished.experiment
    guesses = experiment.task.baselines(experiment, finished.data.validation)
    assert name in guesses[best].metrics  # Of the same clients.
    known = read_run(finished.path)
    told = [n for n, value in finished.test.items() if isinstance(value, float)]
    for name in {*known.round_metrics, *known.client_metrics, *told} - {"share_hurt"}:
        assert lower_is_better(name) is not None, name


@pytest.mark.exhaustive(but=("movielens", "reddit", "tv_shows", "digits"))
@pytest.mark.parametrize("task", TASKS)
def test_a_run_opens_again(tiny, task):
    """What a run has written down is checked by `tiny` itself."""
    check_that_it_opens_again(run(tiny, task, None))


@pytest.mark.exhaustive(but=("digits-knn_per",))
@pytest.mark.parametrize(("task", "name"), RUN[len(TASKS) :])
def test_a_run_of_a_method_opens_again(tiny, task, name):
    check_that_it_opens_again(run(tiny, task, name))


def check_that_it_opens_again(finished):
    """Commands, programs and the run opened again also rebuild alike."""
    expected, experiment = finished.trained, finished.experiment
    evaluator, trainer = experiment.evaluator, experiment.trainer
    if trainer.model is evaluator.model:
        assert trainer.algorithm.personalization(trainer.model) == evaluator.rebuilding
    with load_run(finished.path).trained as loaded:
        equal_bits(loaded.weights, expected.weights)
        assert describe(loaded.rebuilding) == describe(evaluator.rebuilding)
        if experiment.task.name in ("digits", "movielens"):  # They are evaluated alike, too.
            support, query = experiment.task.for_evaluation(evaluator.model, finished.data.test)
            found = loaded.overall(query, support=support)
            assert found == pytest.approx({n: finished.test[n] for n in found}, rel=1e-5)
        if expected.kept:
            known, kept = loaded.kept_by(finished.data.train.client_ids)
            np.testing.assert_array_equal(known, expected.has_kept)
            equal_bits(kept, expected.kept)


@pytest.mark.exhaustive(but=("movielens-None", "tv_shows-None"))
@pytest.mark.parametrize(
    ("task", "name"), [("movielens", None), ("tv_shows", None), ("reddit", "apfl")]
)
def test_the_seed_fixes_a_run_that_ctrl_c_stops(tiny, task, name, tmp_path):
    """Another experiment of the same options, stopped and gone on with, has the same bits."""
    undisturbed = run(tiny, task, name)
    again = tiny.build(TASKS[task], method=name or tiny.main[task])
    with tiny.ctrl_c(again, 2):
        tiny.train(again, tmp_path)
    trained = tiny.train(again, tmp_path)
    assert (trained.loop.resumed_from, trained.loop.rounds_run) == (1, 1)
    expected = undisturbed.trained
    assert expected.loop.rounds_run == 0
    equal_bits(trained.arrays(), expected.arrays())
    if trained.has_kept is not None:
        np.testing.assert_array_equal(trained.has_kept, expected.has_kept)
        assert trained.has_kept.any()
    initial = again.trainer.untrained().weights
    assert any((trained.weights[name] != value).any() for name, value in initial.items())


@pytest.mark.exhaustive(but=("movielens", "reddit"))
@pytest.mark.parametrize("task", TASKS)
def test_no_two_places_of_the_code_draw_from_the_same_stream(tiny, task, monkeypatch):
    """Data and the clients of rounds, of which each draws for itself."""
    places = collections.defaultdict(set)
    sequence = np.random.SeedSequence

    def recorded(seed, spawn_key):
        caller = sys._getframe(2)
        places[(seed, *spawn_key)].add((caller.f_code.co_filename, caller.f_lineno))
        return sequence(seed, spawn_key=spawn_key)

    options = {"reddit": {"unseen_users": 0.3, "local_steps": 2}}
    monkeypatch.setattr(np.random, "SeedSequence", recorded)
    experiment = tiny.build(TASKS[task], method=tiny.main[task], **options.get(task, {}))
    for number in (1, 2):
        experiment.trainer.cohort(number)
    assert len(places) >= 3
    assert [key for key, callers in places.items() if len(callers) > 1] == []


@pytest.mark.exhaustive(but=("movielens",))
@pytest.mark.parametrize("task", ["movielens", "tv_shows"])
def test_shards_of_one_client_lead_to_the_same(tiny, task, tmp_path):
    packed = run(tiny, task, None)
    one = tiny.build(TASKS[task], method=tiny.main[task], shards=100)
    found = tiny.train(one, tmp_path).arrays()
    expected = packed.trained.arrays()
    check_equal(task, found, expected, rounding=1e-4)


@pytest.fixture(name="after_a_round", scope="module")
def _after_a_round(tiny, tmp_path_factory):
    """Trains for a round, without evaluation; all arrays that come of it."""

    def after_a_round(task, method, **options):
        experiment = built(tiny, task, method, **options)
        return tiny.train(experiment, tmp_path_factory.mktemp("round"), rounds=1).arrays()

    return after_a_round


@pytest.mark.exhaustive
def test_fed_prox_without_its_term_is_fed_avg(after_a_round):
    average = after_a_round("movielens", "fed_avg")
    equal_bits(after_a_round("movielens", "fed_prox", proximal=0.0), average)
    held = after_a_round("movielens", "fed_prox", proximal=2.0)
    assert any((held[name] != value).any() for name, value in average.items())


@pytest.mark.exhaustive
def test_fed_sim_and_fed_alt_are_other_methods_on_any_layers(tiny, after_a_round):
    for name in ("fed_sim", "fed_per"):
        equal_bits(after_a_round("movielens", name), after_a_round("movielens", "furl"))
    equal_bits(after_a_round("movielens", "fed_alt"), after_a_round("movielens", "fed_rep"))
    layers = ("encoder", "logits")
    options = tiny.options(TASKS["reddit"], method="fed_sim", local_layers=layers)
    sizes = {"num_ids": 9, "num_labels": 3, "num_users": 4, "is_binary": False}
    model = TASKS["reddit"].build(sizes, options).model
    assert {variable.layer for variable in model.local_variables} == set(layers)


@pytest.mark.exhaustive(but=("fed_yogi-yogi",))
@pytest.mark.parametrize(("name", "optimizer"), [("fed_yogi", "yogi"), ("fed_adam", "adam")])
def test_an_adaptive_server_takes_the_average_for_a_gradient(tiny, after_a_round, name, optimizer):
    average = after_a_round("movielens", "fed_avg")
    start = built(tiny, "movielens", "fed_avg").trainer.untrained().weights
    optimizer = build_server_optimizer(optimizer, learning_rate=0.1)
    start = {key: tf.constant(value) for key, value in start.items()}
    gradient = {key: value - average[key] for key, value in start.items()}
    _, expected = optimizer.next(optimizer.initialize(start), start, gradient)
    found = after_a_round("movielens", name)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5)


def test_fed_babu_never_trains_its_head(tiny, after_a_round):
    weights = after_a_round("reddit", "fed_babu")
    for name, initial in built(tiny, "reddit", "fed_babu").trainer.untrained().weights.items():
        assert (weights[name] == initial).all() == name.startswith("logits/"), name


@pytest.mark.exhaustive(but=("embedding_finetuning-None",))
@pytest.mark.parametrize(
    ("name", "moved"),
    [
        ("fed_avg_finetuning", "all"),
        ("embedding_finetuning", None),
        ("scaffold_finetuning", "all"),
        ("fed_dyn_finetuning", "all"),
    ],
)
def test_fine_tuning_alone_distinguishes_methods(tiny, after_a_round, name, moved):
    """They train alike, and differ in what a client moves before it predicts."""
    alone = methods()[name].same_rounds_as
    equal_bits(after_a_round("movielens", name), after_a_round("movielens", alone))
    experiment = built(tiny, "movielens", name)
    (phase,) = experiment.evaluator.finetuning
    assert phase.variables == (moved or experiment.layers.embedding) != ()
    none = experiment.options.replace(finetuning_epochs=0, reconstruction_epochs=0)
    assert experiment.method.finetuning(none, experiment.layers) == ()


def test_a_run_with_neighbours_predicts_as_it_was_evaluated(tiny, after_a_round):
    equal_bits(after_a_round("digits", "knn_per"), after_a_round("digits", "fed_avg"))
    finished = run(tiny, "digits", "knn_per")
    experiment, part = finished.experiment, finished.data.test
    with load_run(finished.path).trained as loaded:
        before, after = (
            getattr(experiment.evaluation(part)(loaded), stage)["loss"]
            for stage in ("before", "after")
        )
        for place, client in enumerate(part.query.client_ids[:3]):
            features, labels = part.query.client(place)
            for stage, own in ((before, {}), (after, {"client": client, "support": part.support})):
                logits = loaded.predict(features, **own)
                losses = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, True)
                np.testing.assert_allclose(np.sum(losses), stage[place, 0], rtol=1e-5)
        assert abs(after - before).max() > 1e-2
        with pytest.raises(UserError, match="which a Keras model cannot"):
            loaded.to_keras(client, support=part.support)


@pytest.mark.exhaustive(but=("movielens-ditto",))
@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("movielens", "ditto"),
        ("reddit", "apfl"),
        ("reddit", "fed_rod"),
        ("movielens", "scaffold"),  # Of states, the first round has none yet.
    ],
)
def test_copies_leave_the_shared_model_as_it_is_without_them(after_a_round, task, name):
    # Each phase shuffles by draws of its own.
    average = after_a_round(task, "fed_avg", shuffle="never")
    found = after_a_round(task, name, shuffle="never")
    for key, value in average.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    assert found.keys() > average.keys()


@pytest.mark.exhaustive
def test_mr_mtl_sends_the_mean_of_what_clients_keep(tiny, after_a_round):
    found = after_a_round("reddit", "mr_mtl", weighting="uniform")
    copies = {name: value for name, value in found.items() if name.startswith("kept ")}
    assert copies
    for name, value in copies.items():
        shared = found[name[len("kept personal_copy/") :]]
        np.testing.assert_allclose(shared, value.mean(0), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.exhaustive
def test_reptile_goes_a_part_of_the_way_of_fed_avg(tiny, after_a_round):
    ends = after_a_round("movielens", "fed_avg", weighting="uniform")
    found = after_a_round("movielens", "reptile", weighting="uniform", server_learning_rate=0.25)
    experiment = built(tiny, "movielens", "reptile")
    for name, start in experiment.trainer.untrained().weights.items():
        expected = start + 0.25 * (ends[name] - start)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_reptile_settles_its_server_and_steps_alike_before_predictions(tiny):
    experiment = built(tiny, "movielens", "reptile", client_learning_rate=0.07)
    task = TASKS["movielens"]
    assert task.with_defaults(task.options(method="reptile")).server_learning_rate == 0.5
    adam = task.options(method="reptile", server_optimizer="adam")
    assert task.with_defaults(adam).server_learning_rate == 0.1
    (before,), (phase,) = experiment.evaluator.finetuning, experiment.algorithm.phases
    assert before.optimizer.__dict__ == phase.optimizer.__dict__


@pytest.mark.exhaustive
def test_a_server_that_remembers_goes_on_by_the_share_of_clients(tiny, after_a_round):
    # What the server remembers is a sum over clients, whatever they weigh in the mean.
    average = after_a_round("movielens", "fed_avg", weighting="uniform")
    experiment = built(tiny, "movielens", "fed_dyn", feddyn_alpha=1e-9)
    share = experiment.options.clients_per_round / experiment.data.train.num_clients
    start = experiment.trainer.untrained().weights
    found = after_a_round("movielens", "fed_dyn", feddyn_alpha=1e-9, weighting="uniform")
    for key, value in average.items():
        # Rows that belong to one client each have no such sum.
        remembered = 0.0 if key in experiment.trainer.model.server_rows_per_client else share
        expected = start[key] + (1.0 + remembered) * (value - start[key])
        np.testing.assert_allclose(found[key], expected, rtol=1e-4, atol=1e-6, err_msg=key)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["per_fed_avg", "pfedme"])
def test_a_look_ahead_keeps_nothing_and_fine_tunes(tiny, after_a_round, name):
    found, average = (after_a_round("movielens", other) for other in (name, "fed_avg"))
    assert found.keys() == average.keys()
    assert any((found[key] != value).any() for key, value in average.items())
    experiment = built(tiny, "movielens", name)
    (phase,) = experiment.evaluator.finetuning
    assert phase.variables == "all"
    assert phase.proximal == (experiment.options.envelope if name == "pfedme" else 0.0)


@pytest.mark.exhaustive
def test_a_client_without_a_copy_trains_one_by_the_same_pull(tiny):
    """Users of movielens rebuild their row first, which is not copied; then it moves with them."""
    finished = run(tiny, "movielens", "ditto", pull=3.0)
    evaluator = finished.experiment.evaluator
    row, copies = evaluator.personalization(False)
    local = {v.name for v in evaluator.model.local_variables}
    assert {name for name in local if not name.startswith("personal_copy/")} == {*row.variables}
    assert ({*copies.variables}, copies.proximal) == (local, 3.0)
    assert evaluator.personalization(True) == ()
    with load_run(finished.path).trained as loaded:
        equal_bits(loaded.weights, finished.trained.weights)
        assert loaded.kept_by is None


@pytest.mark.exhaustive
def test_local_training_sends_nothing_and_trains_each_client_alone(tiny):
    """It ends where fine-tuning leads from the initial weights."""
    finished = run(tiny, "movielens", "local_only", standalone_epochs=5)
    assert finished.boundary == []
    other = built(tiny, "movielens", "fed_avg_finetuning", finetuning_epochs=5)
    results = other.evaluation(other.data.test)(other.trainer.untrained())
    expected = results.overall()
    assert {name: finished.test[name] for name in expected} == expected
    assert finished.test["before"] == results.overall_before() != expected
