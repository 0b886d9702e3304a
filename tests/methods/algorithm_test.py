"""Algorithms as lists of phases: what they say of themselves, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

from fedpersonal.client.neighbours import make_predictor
from fedpersonal.client.optimizer import optimizer_of
from fedpersonal.errors import UserError
from fedpersonal.federated.process import check_fit
from fedpersonal.methods.algorithm import Algorithm, PersonalCopies
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_per import fed_per
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.fed_rep import fed_rep
from fedpersonal.methods.furl import furl
from fedpersonal.methods.per_fed_avg import per_fed_avg
from fedpersonal.methods.phases import (
    ChoicePhase,
    GradientPhase,
    LookAhead,
    NeighboursPhase,
    RidgePhase,
)
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.tff.optimizers import build_adam, build_sgdm

SGD = build_sgdm(0.1)
ADAM = build_adam(0.1)
CHOICE = ChoicePhase("all", 2)


def recon(**options):
    return fed_recon(client_optimizer=SGD, **{"reconstruction_optimizer": SGD, **options})


def test_fed_recon_rebuilds_and_then_updates():
    rebuild, update = recon(
        reconstruction_epochs=2,
        max_reconstruction_steps=7,
        local_epochs=3,
        max_local_steps=5,
    ).phases
    assert rebuild == GradientPhase("local", "support", SGD, epochs=2, max_steps=7)
    assert update == GradientPhase("global", "query", SGD, epochs=3, max_steps=5)
    rebuild, update = recon(support_query_split="shared", joint_training=True).phases
    assert (rebuild.data, update.data, update.variables) == ("all", "all", "all")
    rebuild, _ = recon(reconstruction="ridge", ridge_l2=3.0, ridge_bias_l2=0.5).phases
    assert rebuild == RidgePhase(data="support", l2=3.0, bias_l2=0.5)


def test_the_share_of_the_support_set_and_passes_that_grow():
    rebuild, update = recon(support_share=0.25).phases
    assert (rebuild.data, update.data) == ("support 1/4", "query 1/4")
    algorithm = recon(reconstruction_epochs=3, growing_reconstruction=True)
    passes = [[p.passes for p in algorithm.at_round(tf.constant(n)).phases] for n in range(5)]
    assert [int(rebuild) for rebuild, _ in passes] == [1, 2, 3, 3, 3]
    assert all(update is None for _, update in passes)
    assert algorithm.phases[0].passes is None and algorithm.phases[0].epochs == 3
    (constant, _) = recon(reconstruction_epochs=3).at_round(tf.constant(0)).phases
    assert constant.passes is None


@pytest.fixture(name="model", scope="module")
def _model():
    def build_model():
        x = hidden = tf.keras.Input([3], name="x")
        for name in ("base", "own", "other"):
            hidden = tf.keras.layers.Dense(2, name=name)(hidden)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="out")(hidden))

    return PartitionedModel(build_model, local_layers=["own", "other"])


def test_phases_that_move_local_variables_alone_personalise_as_they_are(model):
    for algorithm in (
        recon(),
        recon(joint_training=True),
        recon(reconstruction="ridge"),
        fed_rep(client_optimizer=SGD, local_optimizer=ADAM),
        fed_rep(client_optimizer=SGD).stateless_twin(),
    ):
        expected = dataclasses.replace(algorithm.phases[0], data="all")
        assert algorithm.personalization(model) == (expected,)
    assert fed_avg(client_optimizer=SGD).personalization(model) == ()


@pytest.mark.parametrize("build", [furl, fed_per])
def test_joint_phases_personalise_by_their_local_part(model, build):
    algorithm = build(client_optimizer=SGD, local_optimizer=ADAM, max_local_steps=7)
    for one in (algorithm, algorithm.stateless_twin()):
        (phase,) = one.personalization(model)
        assert phase == dataclasses.replace(one.phases[0], variables="local")
        assert {optimizer_of(phase, v) for v in model.local_variables} == {ADAM}


def test_a_client_that_has_kept_nothing_rebuilds_as_the_method_says(model):
    steps = {"reconstruction_optimizer": ADAM, "reconstruction_epochs": 3}
    steps["max_reconstruction_steps"] = 4
    algorithm = furl(client_optimizer=SGD, **steps)
    assert algorithm.personalization(model) == (GradientPhase("local", "all", ADAM, 3, 4),)
    algorithm = ditto(client_optimizer=SGD, pull=2.0, **steps)
    of_model, of_copy = algorithm.personalization(algorithm.prepare(model))
    assert {*of_model.variables} == {v.name for v in model.local_variables} < {*of_copy.variables}
    for phase, pull in ((of_model, 0.0), (of_copy, 2.0)):
        assert (phase.optimizer, phase.epochs, phase.max_steps) == (ADAM, 3, 4)
        assert phase.proximal == pull
    message = "furl: reconstruction_epochs has no effect without a reconstruction_optimizer"
    with pytest.raises(TypeError, match=message):
        furl(client_optimizer=SGD, reconstruction_epochs=3)


def test_named_layers_personalise_by_those_that_are_local(model):
    def phases(*names):
        phase = GradientPhase(names, "all", SGD, epochs=3, proximal=2.0)
        return Algorithm("named", (phase,), "kept").personalization(model)

    (phase,) = phases("base", "own", "other/bias")
    assert phase.variables == ("own/kernel", "own/bias", "other/bias")
    assert (phase.epochs, phase.proximal) == (3, 0.0)
    assert phases("base", "own", "other")[0].variables == "local"
    # Layers that are all local are a reconstruction.
    assert phases("own")[0].variables == ("own",)
    assert phases("base", "out") == ()


def test_rows_are_needed_where_global_variables_move():
    assert recon().touched_data == "query"
    assert recon(support_query_split="shared").touched_data == "all"
    assert fed_avg(client_optimizer=SGD).touched_data == "all"
    # A look ahead needs the rows of its own batches, too.
    assert per_fed_avg(client_optimizer=SGD, adaptation_optimizer=SGD).touched_data == "all"
    twice = Algorithm(
        "twice",
        (GradientPhase("global", "support", SGD), GradientPhase("global", "query", SGD)),
        local_variables="rebuilt",
    )
    assert twice.touched_data == "all"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: recon(reconstruction="newton"),
            r"reconstruction must be one of \['gradient', 'ridge'\], not 'newton'",
        ),
        (
            lambda: recon(support_query_split="thirds"),
            r"support_query_split must be one of \['skip', 'aggregated', 'shared'\]",
        ),
        (
            lambda: recon(reconstruction_optimizer=None),
            "gradient reconstruction needs a reconstruction_optimizer",
        ),
        (lambda: recon(weighting="age"), "weighting must be one of.*not 'age'"),
        (lambda: recon(max_update_norm=0.0), "max_update_norm must be positive, not 0.0"),
        (lambda: recon(local_epochs=-1), "epochs must be at least 0, not -1"),
        (lambda: recon(max_local_steps=-1), "max_steps must be at least 0, not -1"),
        (lambda: GradientPhase("some", "all", SGD), "variables must be one of.*not 'some'"),
        (lambda: GradientPhase("all", "some", SGD), "data must be one of.*not 'some'"),
        (lambda: Algorithm("empty", (), "none"), "'empty': the last phase must be a GradientPhase"),
        (
            lambda: Algorithm("ridge", (RidgePhase("all", 1.0),), "rebuilt"),
            "'ridge': the last phase must be a GradientPhase",
        ),
        (
            lambda: Algorithm("odd", (GradientPhase("all", "all", SGD),), "shared"),
            "local_variables must be one of.*not 'shared'",
        ),
        (
            lambda: Algorithm(
                "odd", (GradientPhase("personal", "all", SGD),), "none", personal=PersonalCopies()
            ),
            "'odd': with personal copies, local_variables must be 'rebuilt'",
        ),
        (
            lambda: Algorithm("odd", (CHOICE, GradientPhase("all", "all", SGD)), "none"),
            "'odd': there can be one ChoicePhase",
        ),
        (lambda: ChoicePhase("all", 1), "clusters must be at least 2, not 1"),
        (lambda: ChoicePhase("all", 2, mixes=True), "mixes requires mean_over='cohort'"),
        (lambda: ChoicePhase("all", 2, epochs=2), "a choice takes one pass"),
        (lambda: ChoicePhase("all", 2, mean_over="all"), "mean_over must be one of.*not 'all'"),
        (lambda: PersonalCopies(mixing=1.5), "mixing must be from 0 to 1, not 1.5"),
        (lambda: LookAhead(SGD, steps=0), "steps must be at least 1, not 0"),
        (lambda: LookAhead(SGD, envelope=-1.0), "envelope must be at least 0, not -1"),
        (lambda: LookAhead(SGD, data="some"), "data must be one of.*not 'some'"),
        (
            lambda: fed_avg(client_optimizer=SGD, proximal=float("nan")),
            "GradientPhase: proximal must be at least 0, not nan",
        ),
    ],
)
def test_mistakes_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_models_and_algorithms_must_fit():
    def build_model():
        x = tf.keras.Input([3], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="only")(x))

    shared = PartitionedModel(build_model)
    own = PartitionedModel(build_model, local_layers=["only"])
    average = fed_avg(client_optimizer=SGD)
    check_fit(shared, average)
    with pytest.raises(ValueError, match="fed_recon needs local variables; the model has none"):
        check_fit(shared, recon())
    with pytest.raises(ValueError, match="fed_avg has no local variables.*'only/kernel'"):
        check_fit(own, average)
    copied = ditto(client_optimizer=SGD)
    with pytest.raises(ValueError, match="ditto needs local variables; the model has none"):
        check_fit(shared, copied)
    with pytest.raises(ValueError, match="ifca needs clusters; use the model"):
        check_fit(own, Algorithm("ifca", (CHOICE, GradientPhase("all", "all", SGD)), "kept"))
    chosen = dataclasses.replace(CHOICE, mean_over="cohort")
    mixed = dataclasses.replace(chosen, mixes=True)
    one, other = (
        Algorithm("own", (choice, GradientPhase("global", "all", SGD)), "kept")
        for choice in (chosen, mixed)
    )
    classes = PartitionedModel(build_model, loss="binary_crossentropy")
    with pytest.raises(ValueError, match="own needs clusters; use the model"):
        check_fit(one.prepare(classes), other)
    solved = dataclasses.replace(other, phases=(RidgePhase("all", 1.0), *other.phases))
    with pytest.raises(ValueError, match="own: ridge needs a linear model"):
        check_fit(solved.prepare(classes), solved)
    with pytest.raises(UserError, match="neighbours need a single model"):
        make_predictor(other.prepare(classes), (NeighboursPhase(("only",)),))
    with pytest.raises(ValueError, match="furl has no personal copies; use the model"):
        check_fit(copied.prepare(shared), furl(client_optimizer=SGD))
