"""Options without an effect are refused by name; idle ones are compared with real phases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fedpersonal as fp
from fedpersonal.errors import UserError
from fedpersonal.methods.method import methods
from fedpersonal.optimizers import build_server_optimizer
from fedpersonal.runs.description import describe
from fedpersonal.suite.tasks import experiment as experiments
from fedpersonal.suite.tasks import idle
from fedpersonal.suite.tasks.experiment import build_experiment
from fedpersonal.suite.tasks.find import all_tasks

TASKS = all_tasks()
DIGITS, RATINGS = TASKS["digits"], TASKS["movielens"]
LAYERS = fp.Layers(("style",), ("head",), ("hidden",), ("style",), (), ("style", "hidden", "head"))


def made(method, options):
    """What a run is made of, with real optimizers, of which the oracle compares descriptions."""
    options = DIGITS.with_defaults(options)
    algorithm = method.build(options, LAYERS)
    parts = [method.finetuning(options, LAYERS), algorithm.rebuilding]
    parts.append(method.local_layers(options, LAYERS))
    if algorithm.personal and algorithm.rebuilding:
        steps = [phase for phase in algorithm.phases if isinstance(phase, fp.GradientPhase)]
        parts += [algorithm.rebuilding.copy_rebuilding_phase(phase, "personal") for phase in steps]
    if algorithm.keeps:
        parts += [options.local_start, algorithm.max_local_update_norm]
    if method.trains:
        names = ("name", "phases", "local_variables", "max_update_norm", "personal", "assignments")
        parts += [getattr(algorithm, name) for name in names]
        rounds = ("total_rounds", "packing", "rounds_per_eval", "rounds_per_checkpoint")
        parts += [getattr(options, name) for name in rounds]
        parts.append(
            build_server_optimizer(
                options.server_optimizer,
                learning_rate=options.server_learning_rate,
                epsilon=options.server_epsilon,
                initial_accumulator=options.server_initial_accumulator,
                decay_rounds=options.decay_rounds,
            )
        )
    if method.trains and method.is_federated:
        names = ("clients_per_round", "client_sampling", "shuffle")
        parts += [algorithm.weighting, *(getattr(options, name) for name in names)]
    elif method.trains:
        parts.append(DIGITS.central_batching(options, 1000))
    return describe(parts)


def another(declared, value):
    """A value of an option that differs from the one that it has."""
    if declared.rule.choices:
        return next(choice for choice in declared.rule.choices[::-1] if choice != value)
    if declared.kind is bool:
        return not value
    if declared.kind is str:
        return ("hidden",)
    number = 0.3 if declared.kind is float else 3
    return number if value != number else 2 * number


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["fed_avg", "ditto", "centralized", "local_only"])
def test_the_order_of_examples_has_an_effect_where_clients_train_in_rounds(
    tiny, method, monkeypatch
):
    """It is read by what builds the training process, and not by the method."""
    options = tiny.options(RATINGS, method=method)
    source = tiny.source(RATINGS, options)
    if method in ("fed_avg", "ditto"):
        typed = {"shuffle", "client_batch_size", "local_steps"}
        assert build_experiment(RATINGS, source, options, typed=typed)
        return
    # Passes of clients by themselves are chosen once all mistakes have shown.
    monkeypatch.setattr(experiments, "choose_epochs", pytest.fail)
    with pytest.raises(UserError, match=f"--shuffle is .* no effect with --method={method}"):
        build_experiment(RATINGS, source, options, typed={"shuffle"})


@pytest.mark.parametrize("name", methods())
def test_an_option_of_any_method_changes_what_is_made_or_is_idle(name):
    method = methods()[name]
    if name not in DIGITS.methods:
        return
    # A number of rounds that decays, and a server that reads all its options.
    plain = DIGITS.options(method=name, total_rounds=200, server_optimizer="yogi")
    loose = dataclasses.replace(idle._planned_facts(DIGITS, plain), has_local=True)
    found = idle._idle(DIGITS, plain, plain.declarations(), loose)
    candidates = {*idle._method_options(DIGITS), *idle._ROUND_OPTIONS}
    assert len(candidates) > 50 and {*found} < candidates
    expected = made(method, plain)
    for option in candidates:
        value = (
            200
            if option == "decay_rounds"
            else another(plain.declarations()[option], getattr(plain, option))
        )
        changed = made(method, plain.replace(**{option: value}))
        assert (changed == expected) == (option in found), option


@pytest.mark.parametrize(
    ("task", "method", "typed", "where"),
    [
        ("movielens", "local_only", "local_only_epochs", "--method=local_only"),
        ("movielens", "ditto", "mixing", "--method=ditto"),
        ("movielens", "furl", "pull", "--method=furl"),
        ("digits", "fed_avg", "num_clusters", "--method=fed_avg"),
        ("digits", "fed_avg", "local_start", "--method=fed_avg"),
        ("tv_shows", "fedperc", "local_rate_factor", "--method=fedperc"),
        ("interactions", "fed_avg", "item_difference", "--method=fed_avg"),
    ],
)
def test_an_option_of_another_method_is_refused_before_data_are_read(task, method, typed, where):
    declared = TASKS[task].options.declarations()[typed]
    value = another(declared, declared.default)
    options = TASKS[task].options(method=method, **{typed: value})
    with pytest.raises(UserError) as refusal:
        idle.check_declared(TASKS[task], options, {"method", typed})
    assert str(refusal.value).startswith(f"--{typed} is {value}, which has no effect with {where}:")
    assert idle.check_declared(TASKS[task], options, {"method"}) == []  # A preset has set it.


@pytest.mark.parametrize(
    ("values", "typed", "where"),
    [
        pytest.param(
            {"method": "local_only"},
            {"local_epochs": 20},
            "--method=local_only:",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            {"method": "local_only"},
            {"total_rounds": 9},
            "--method=local_only:",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            {"method": "local_only"},
            {"server_learning_rate": 0.5},
            "--method=local_only:",
            marks=pytest.mark.exhaustive,
        ),
        ({"method": "fed_avg"}, {"joint_training": True}, "--method=fed_avg:"),
        ({"method": "fed_avg"}, {"pool_batch_size": 7}, "--method=fed_avg:"),
        ({"method": "centralized"}, {"clients_per_round": 7}, "--method=centralized:"),
        pytest.param(
            {"method": "centralized"},
            {"client_sampling": "poisson"},
            "--method=centralized:",
            marks=pytest.mark.exhaustive,
        ),
        ({"method": "fed_avg", "server_optimizer": "sgd"}, {"server_epsilon": 0.1}, "fed_avg:"),
        (
            {"reconstruction": "ridge", "max_reconstruction_steps": 50},
            {"reconstruction_learning_rate": 3.0},
            "--method=fed_recon and --reconstruction=ridge:",
        ),
        (
            {"method": "fed_avg", "evaluate_on": "seen"},
            {"reconstruction_epochs": 3},
            "--method=fed_avg:",
        ),
        ({"method": "furl"}, {"local_start": "rebuilt"}, "--method=furl:"),
        # Read by the method, the split, the model, the rebuilding of unseen users.
        ({"method": "fed_avg"}, {"client_learning_rate": 0.3, "l2": 0.1, "seed": 3}, None),
        ({"method": "fed_avg"}, {"reconstruction_epochs": 3, "client_batch_size": 7}, None),
        pytest.param(
            {"support_query_split": "shared"},
            {"support_share": 0.3},
            None,
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            {"method": "centralized"}, {"pool_batch_size": 7}, None, marks=pytest.mark.exhaustive
        ),
        ({"method": "furl", "evaluate_on": "seen"}, {"local_start": "rebuilt"}, None),
        ({"method": "fed_avg"}, {"server_optimizer": "yogi", "server_epsilon": 0.1}, None),
    ],
    ids=str,
)
def test_an_option_without_an_effect_on_ratings_is_refused(tiny, values, typed, where):
    experiment = tiny.built(RATINGS, **{"method": "fed_recon", **values})
    source = tiny.source(RATINGS, experiment.options)
    changed = RATINGS.with_defaults(experiment.options.replace(**typed))
    experiment = dataclasses.replace(experiment, options=changed)
    if where is None:
        idle.check_effects(experiment, source, typed)
        return
    with pytest.raises(UserError, match="which has no effect with") as refusal:
        idle.check_effects(experiment, source, typed)
    (name,) = typed
    assert f"--{name} is " in str(refusal.value) and where in str(refusal.value)


def test_a_method_and_its_twin_with_fine_tuning_take_the_same_flags():
    typed = {"finetuning_learning_rate", "finetuning_epochs"}
    given = {"finetuning_learning_rate": 3.0, "finetuning_epochs": 2}

    def told(task, method):
        return idle.check_declared(task, task.options(method=method, **given), typed)

    for line, (name, value) in zip(told(DIGITS, "fed_avg"), given.items()):
        assert line == (
            f"--{name}={value} has no effect: fed_avg does not fine-tune; fed_avg_finetuning does"
        )
    assert told(DIGITS, "fed_avg_finetuning") == [] == told(RATINGS, "fed_avg_finetuning")
    assert len(told(RATINGS, "fed_recon")) == len(told(RATINGS, "fed_recon_finetuning")) == 2
    assert (
        "fed_recon_finetuning fine-tunes values that no prediction"
        in told(RATINGS, "fed_recon_finetuning")[0]
    )


@pytest.mark.exhaustive(but=("fed_recon_finetuning-unseen", "fed_avg_finetuning-seen"))
@pytest.mark.parametrize("evaluate_on", ["unseen", "seen"])
@pytest.mark.parametrize(
    "method", ["fed_recon_finetuning", "pfedrec", "fed_avg_finetuning", "embedding_finetuning"]
)
def test_fine_tuning_of_ratings_is_idle_where_it_moves_rows_of_other_items_alone(
    tiny, method, evaluate_on
):
    """By the structure: all that moves are global tables, and no item of a client comes twice."""
    experiment = tiny.built(RATINGS, method=method, evaluate_on=evaluate_on)
    model, phases = experiment.evaluator.model, experiment.evaluator.finetuning
    moving = [v for v in model.variables if any(phase.moves(v) for phase in phases)]
    test = experiment.data.test

    def rows(part, name):
        support, query = experiment.task.for_evaluation(model, part)
        ids = [own.features[name].astype(np.int64) for own in (support, query)]
        clients = [own.example_clients.astype(np.int64) for own in (support, query)]
        return [set(zip(c.tolist(), i.tolist())) for c, i in zip(clients, ids)]

    def is_read(variable):
        if variable.is_local or variable.name not in model.tables:
            return True
        pairs = [rows(part, model.tables[variable.name]) for part in (test, test.ranking)]
        return any(trained & read for trained, read in pairs)

    assert moving
    expected = not any(map(is_read, moving))
    assert experiment.task.is_finetuning_idle(experiment.options) == expected
    assert expected == (method in ("fed_recon_finetuning", "pfedrec"))
