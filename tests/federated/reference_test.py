"""Rounds computed in every way are those of plain Keras and NumPy: a table of cases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from plain_rounds import NUM_CLIENTS, Case, Round, plain_rounds, prepared, tffs_rounds
from round_models import BROKEN

from fedpersonal.client import pooled_batches
from fedpersonal.client.one_gradient import steps_once_a_batch
from fedpersonal.federated import server
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.federated.process import build_process
from fedpersonal.methods.algorithm import Algorithm, PersonalCopies
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_dyn import fed_dyn
from fedpersonal.methods.fed_em import fed_em
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.fed_rep import fed_rep
from fedpersonal.methods.fedperc import fedperc
from fedpersonal.methods.furl import furl
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.methods.per_fed_avg import per_fed_avg
from fedpersonal.methods.pfedme import pfedme
from fedpersonal.methods.phases import BlendPhase, ChoicePhase, GradientPhase, RidgePhase
from fedpersonal.methods.reptile import reptile
from fedpersonal.methods.scaffold import scaffold
from fedpersonal.optimizers import LinearDecay, ScheduledOptimizer
from fedpersonal.tff.optimizers import build_adam, build_sgdm, build_yogi

pytestmark = pytest.mark.usefixtures("not_compiled")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Most pooled steps take several."""
    for name in ("CHUNK", "SMALL_CHUNK"):
        monkeypatch.setattr(pooled_batches, name, 4)


SGD = build_sgdm(0.2)
FAST = build_sgdm(0.5)
SLOW = build_sgdm(0.05)
BLOWING_UP = build_sgdm(1e30)
MOMENTUM = build_sgdm(0.1, momentum=0.8)
ADAM = build_adam(0.05)
YOGI = build_yogi(0.2, epsilon=1e-2, initial_preconditioner_value=1e-2)


def recon(client=SGD, rebuild=SGD, **options):
    return fed_recon(client_optimizer=client, reconstruction_optimizer=rebuild, **options)


WORK = {"client_optimizer": SGD, "local_epochs": 2}
SHARED = {
    "support_query_split": "shared",
    "local_epochs": 2,
    "max_local_steps": 5,
}
STEPS = {"reconstruction_epochs": 2, "max_reconstruction_steps": 3}
UNIFORM = recon(weighting="uniform", local_epochs=2)
PERSONAL = {
    "ditto": (ditto(**WORK, local_optimizer=SLOW, pull=0.7, local_only_epochs=2), "stacked"),
    "mr_mtl": (mr_mtl(**WORK, pull=0.7), "pooled"),
    "apfl": (apfl(**WORK, local_optimizer=SLOW, mixing_optimizer=FAST, mixing=0.4), "pooled"),
    "per_fed_avg": (per_fed_avg(**WORK, adaptation_optimizer=SLOW), "pooled"),
    "pfedme": (pfedme(**WORK, inner_optimizer=SLOW, inner_steps=3, envelope=2.0), "stacked"),
}
CORRECTED = scaffold(**WORK)
# Rows that a client does not look up move in both phases. The first pulls hardly, the second to
# where it finds them.
PULLED = (
    dataclasses.replace(CORRECTED.phases[0], proximal=1e-6, max_steps=1),
    dataclasses.replace(CORRECTED.phases[0], proximal=0.7),
)
STATES = {
    "scaffold": (CORRECTED, "pooled"),
    "scaffold, pulled": (dataclasses.replace(CORRECTED, phases=PULLED), "stacked"),
    "fed_dyn": (fed_dyn(**WORK, feddyn_alpha=0.7), "stacked"),
    "fed_dyn by adam": (fed_dyn(client_optimizer=ADAM, feddyn_alpha=0.7), "pooled"),
}
OFFSETS = {
    "in turn": (GradientPhase("global", "all", SGD), GradientPhase("personal", "all", ADAM)),
    "together": (GradientPhase("all", "all", SGD, 2, proximal=0.5),),
}
BLENDED = Algorithm(
    "blended",
    (BlendPhase("all", 3.0, 2), GradientPhase("all", "all", ADAM)),
    "kept",
    personal=PersonalCopies(("head",), are_sent=True, blends=True),
)
KEPT = furl(client_optimizer=ADAM, local_optimizer=FAST, local_epochs=2)
HELD = {
    name: Algorithm(
        f"held by {name}",
        (GradientPhase("all", "all", optimizer, epochs=3, proximal=1.5),),
        "rebuilt",
        weighting="uniform",
    )
    for name, optimizer in (("sgd", SGD), ("adam", ADAM))
}
UPDATE = GradientPhase("global", "all", SGD)
# What is solved for by least squares: after a phase that moves rows; and before one of copies.
SOLVED = {
    "after rows moved": Algorithm(
        "after", (UPDATE, RidgePhase("support", 2.0, 0.3), UPDATE), "rebuilt"
    ),
    "beside copies": Algorithm(
        "beside",
        (RidgePhase("all", 2.0), GradientPhase("personal", "query", SGD), UPDATE),
        "rebuilt",
        personal=PersonalCopies(("item_embedding",)),
    ),
}
# Of some layers, with local variables that clients keep.
CHOSEN = Algorithm(
    "chosen",
    (
        ChoicePhase("support", 3, ("item_embedding",)),
        GradientPhase("local", "support", SGD),
        GradientPhase("global", "query", ADAM, 2),
    ),
    "kept",
)
# Of a layer, beside a head that is rebuilt.
MIXED = Algorithm(
    "mixed",
    (
        ChoicePhase("support", 2, ("shared/kernel",), mean_over="cohort", mixes=True),
        GradientPhase("local", "support", SGD),
        GradientPhase("global", "query", ADAM, 2),
    ),
    "rebuilt",
)


def tffs():
    """TFF itself, which has the factories."""
    return pytest.importorskip("tensorflow_federated")


def factory(make):
    """What makes a factory of TFF's, when it is called."""
    return lambda: make(tffs().aggregators)


FACTORIES = {
    "mean": factory(lambda of: of.MeanFactory(no_nan_division=True)),
    "clipping": factory(lambda of: of.clipping_factory(0.2, of.SumFactory())),
    "zeroing": factory(lambda of: of.zeroing_factory(1.0, of.MeanFactory(no_nan_division=True))),
    "robust": lambda: tffs().learning.robust_aggregator(),
    "private, adaptive": factory(
        lambda of: of.DifferentiallyPrivateFactory.gaussian_adaptive(0.0, 3.0)
    ),
}


def private(**options):
    return DifferentialPrivacy(0.0, clip_norm=1.0, expected_clients=4.0, **options)


def packed_both_ways(name, *case, **options):
    return {
        f"{name}, {packing}": Case(*case, packing=packing, **options)
        for packing in ("stacked", "pooled")
    }


CASES = {
    "rebuilt, pooled": Case("factors", recon(), "pooled"),
    "rebuilt, one client a shard": Case("factors", recon(**STEPS), clients_per_shard=1),
    **packed_both_ways("rebuilt, shared", "factors", recon(ADAM, MOMENTUM, **SHARED), server=YOGI),
    "rebuilt without lookups": Case("factors, no lookups", recon(ADAM)),
    "ridge, pooled": Case("rated", recon(reconstruction="ridge"), packing="pooled"),
    "ridge, bias apart": Case(
        "factors", recon(reconstruction="ridge", ridge_l2=2.0, ridge_bias_l2=0.5)
    ),
    "ridge of a layer": Case("logarithm", recon(reconstruction="ridge")),
    **{f"ridge {name}": Case("factors", algorithm) for name, algorithm in SOLVED.items()},
    "a quarter is rebuilt from": Case("factors", recon(support_share=0.25, local_epochs=2)),
    "rates that fall": Case(
        "factors",
        recon(ScheduledOptimizer(ADAM, LinearDecay(6)), ScheduledOptimizer(SGD, LinearDecay(9))),
    ),
    "rebuilt longer each round": Case(
        "factors", recon(growing_reconstruction=True, reconstruction_epochs=3)
    ),
    "classes": Case("classes", recon(MOMENTUM, ADAM, **STEPS), server=YOGI),
    "classes, bounded": Case(
        "classes",
        recon(FAST, joint_training=True, weighting="uniform", max_update_norm=0.1, **SHARED),
    ),
    "branching": Case("branching", recon()),
    "words, pooled": Case("words", recon(MOMENTUM), "pooled"),
    **packed_both_ways("own words", "own words", recon(SGD, MOMENTUM, reconstruction_epochs=3)),
    "owned users": Case(
        "owned users", fed_avg(client_optimizer=MOMENTUM, local_epochs=2, max_local_steps=3),
        clients_per_shard=3,
    ),
    "owned users, one gradient": Case(
        "owned users", fed_avg(client_optimizer=SGD, optimizers={"item_embedding": FAST}),
        packing="pooled", clients_per_shard=4, batch_size=16,
    ),
    "users, one gradient": Case(
        "users", fed_avg(client_optimizer=SGD, weighting="uniform"),
        packing="pooled", clients_per_shard=3, batch_size=16,
    ),
    "kept, one gradient": Case(
        "own user", furl(client_optimizer=SGD, local_optimizer=FAST),
        packing="pooled", clients_per_shard=4, batch_size=16,
    ),
    **packed_both_ways("kept", "own user", KEPT),
    "kept, with a network": Case("network", KEPT, "pooled"),
    "fedperc": Case(
        "own user", fedperc(client_optimizer=ADAM, max_local_steps=4, proximal=0.5), "pooled"
    ),
    "mixing layers": Case("mixing layers", furl(client_optimizer=SGD)),
    "mixing functions": Case("mixing functions", furl(client_optimizer=SLOW), batch_size=4),
    "loss of a batch": Case("loss of a batch", furl(client_optimizer=SGD)),
    "loss of each example": Case("loss of each", recon(), "pooled"),
    "kept, bounded": Case(
        "own user", dataclasses.replace(KEPT, max_local_update_norm=0.3), clients_per_shard=3
    ),
    **{name: Case("table", algorithm, packing) for name, (algorithm, packing) in PERSONAL.items()},
    "reptile": Case("table", reptile(**WORK), "pooled", server=FAST),  # Half of the way.
    **{name: Case("table", algorithm, packing) for name, (algorithm, packing) in STATES.items()},
    "ifca, pooled": Case("table", ifca(**WORK, num_clusters=3), "pooled", clients_per_shard=3),
    "ifca of a layer": Case("factors", CHOSEN),
    "ifca, words": Case("words", ifca(client_optimizer=MOMENTUM, num_clusters=3), server=YOGI),
    "ifca, owned users": Case("owned users", ifca(**WORK), clients_per_shard=3),
    "ifca, over cohorts": Case(
        "owned users", ifca(**WORK, mean_over="cohort", weighting="uniform"), "pooled"
    ),
    "ifca, aggregated": Case("noisy", ifca(**WORK), aggregator=FACTORIES["mean"]),
    **{
        f"{name}, bounded": Case(
            "table", make(**WORK, max_update_norm=0.2), packing, clients_per_shard=3
        )
        for name, make, packing in (
            ("scaffold", scaffold, "stacked"), ("fed_dyn", fed_dyn, "pooled"),
            ("ifca", ifca, "stacked"),
        )
    },
    "ifca, noiseless": Case(
        "table", ifca(**WORK, mean_over="cohort", weighting="uniform"),
        privacy=private(clipping="fixed"),
    ),
    "fed_em, signs": Case("signs", fed_em(**WORK, num_clusters=3), clients_per_shard=3),
    "fed_em, words": Case(
        "shared sentences", fed_em(client_optimizer=ADAM, em_steps=2), packing="pooled"
    ),
    "fed_em of a layer": Case("classes", MIXED),
    "scaffold, owned users": Case("owned users", scaffold(**WORK), clients_per_shard=3),
    "scaffold, aggregated": Case(
        "factors, no lookups", scaffold(**WORK), aggregator=FACTORIES["mean"]
    ),
    **{
        f"offsets {name}, {packing}": Case(
            "table",
            Algorithm(name, phases, "kept", personal=PersonalCopies(layers, role="offset")),
            packing,
        )
        for (name, phases), layers, packing in zip(
            OFFSETS.items(), ((), ("table",)), ("stacked", "pooled")
        )
    },
    "blended, pooled": Case("noisy", BLENDED, "pooled", sizes=(6, 6, 3, 6)),
    # Its copies blow up and are not kept; the shared model, which is trained apart, goes on.
    "ditto, not finite": Case("table", ditto(**WORK, local_optimizer=BLOWING_UP, pull=0.7)),
    **{
        f"held by {name}, {packing}": Case("table, own head", algorithm, packing)
        for (name, algorithm), packing in zip(HELD.items(), ("pooled", "stacked"))
    },
    "not finite": Case("own user", KEPT, data=BROKEN),
    "not finite, one step each": Case(
        "own user", furl(client_optimizer=SGD), packing="pooled", clients_per_shard=4,
        batch_size=16, data=BROKEN,
    ),
    "not finite, noiseless": Case(
        "factors", UNIFORM, data=BROKEN, privacy=private(clipping="adaptive")
    ),
    "sentences, stacked": Case("sentences", recon(FAST, FAST, local_epochs=2, max_local_steps=4)),
    "sentences, pooled": Case(
        "sentences", recon(ADAM, MOMENTUM, support_query_split="aggregated"), "pooled"
    ),
    "constrained, kept": Case("constrained, own head", KEPT, clients_per_shard=3),
    "constrained, one step": Case(
        "constrained", fed_avg(client_optimizer=FAST), "pooled", batch_size=16
    ),
    "constrained copies": Case(
        "constrained", ditto(**WORK, local_optimizer=FAST, pull=0.7), "pooled"
    ),
    "constrained clusters": Case("constrained", ifca(**WORK)),
    "constrained, ahead": Case(
        "constrained", pfedme(**WORK, inner_optimizer=FAST, inner_steps=3, envelope=2.0)
    ),
    "constrained, corrected": Case("constrained", scaffold(**WORK), clients_per_shard=3),
    "noisy, one gradient": Case(
        "noisy", fed_avg(client_optimizer=SGD), "pooled", batch_size=16
    ),
    **{
        f"aggregated by {name}": Case(
            "factors",
            recon(local_epochs=2) if name in ("mean", "zeroing", "robust") else UNIFORM,
            aggregator=make,
            server=YOGI,
            sizes=(3, 1, 6),
        )
        for name, make in FACTORIES.items()
    },
    "one step each, clipped": Case(
        "users", fed_avg(client_optimizer=SGD, weighting="uniform"), "pooled",
        batch_size=16, aggregator=FACTORIES["clipping"],
    ),
    "owned users, clipped": Case(
        "owned users", fed_avg(client_optimizer=SGD, weighting="uniform"),
        aggregator=FACTORIES["clipping"],
    ),
    "noiseless, adaptive bound": Case(
        "factors", UNIFORM, "pooled", privacy=private(clipping="adaptive")
    ),
    "noiseless, kept": Case(
        "own user",
        dataclasses.replace(KEPT, weighting="uniform"),
        privacy=private(clipping="fixed"),
    ),
    "noiseless, one step each": Case(
        "users", fed_avg(client_optimizer=SGD, weighting="uniform"), "pooled",
        batch_size=16, privacy=private(clipping="fixed"),
    ),
    # Support and query sets keep their examples; phases of all examples mix these.
    "shuffled each round": Case("factors", recon(**STEPS), when="rounds"),
    **packed_both_ways(
        "shuffled each pass", "own user",
        fed_rep(client_optimizer=SGD, local_optimizer=ADAM, local_only_epochs=3, max_local_steps=5),
        when="epochs", clients_per_shard=3,
    ),
    "shuffled each pass, noisy": Case("noisy, own head", recon(local_epochs=2), when="epochs"),
    "shuffled each pass, noisy, pooled": Case(
        "noisy", fed_avg(client_optimizer=ADAM, local_epochs=2), "pooled", when="epochs"
    ),
    "shuffled each pass, one gradient": Case(
        "noisy", fed_avg(client_optimizer=SGD, max_local_steps=1), "pooled", when="epochs"
    ),
    "shuffled each pass, ahead": Case(
        "table", per_fed_avg(**WORK, adaptation_optimizer=SLOW), "pooled", when="epochs"
    ),
    "shuffled each pass, blended": Case("noisy", BLENDED, when="epochs", sizes=(6, 6, 3, 6)),
}  # fmt: skip


def computed_rounds(case):
    """Runs the rounds of a case."""
    model, dataset = prepared(case), case.clients
    execution = Execution(case.batch_size, case.clients_per_shard, case.packing, case.shuffle)
    process = build_process(
        model,
        case.algorithm,
        execution=execution,
        server_optimizer=case.server,
        aggregator=case.aggregator() if case.aggregator else None,
        privacy=case.privacy,
        num_clients=NUM_CLIENTS,
        seed=5,
    )
    has_rows = case.packing == "stacked" or case.aggregator or case.privacy
    steps_once = not has_rows and steps_once_a_batch(model, case.algorithm)
    state, kept = process.initialize(), {}
    for number, indices in enumerate(case.cohorts()):
        cohort = make_cohort(
            model,
            dataset,
            indices,
            execution=execution,
            touched_data=case.algorithm.touched_data,
            steps_once=steps_once,
            round_number=number,
        )
        if case.algorithm.keeps:
            nothing = {v.name: np.zeros(v.shape, np.float32) for v in model.local_variables}
            known = np.array([i in kept for i in indices], bool)
            values = {
                name: np.array([kept.get(i, nothing)[name] for i in indices], np.float32).reshape(
                    -1, *v.shape
                )
                for name, v in nothing.items()
            }
            output = process.next(state, cohort.with_local_state(known, values))
            for shard in output.local:
                for row, place in enumerate(np.asarray(shard["places"])):
                    if place >= 0:
                        own = {k: np.asarray(v)[row] for k, v in shard["values"].items()}
                        kept[int(indices[place])] = own
        else:
            output = process.next(state, cohort.examples)
        state = output.state
        weights = {k: np.asarray(v) for k, v in state.global_model_weights.trainable.items()}
        yield Round(weights, output.metrics, dict(kept))


def close(found, expected, name):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=3e-5, err_msg=name)


@pytest.mark.exhaustive(
    but=(
        "rebuilt, shared, pooled",
        "rebuilt without lookups",
        "ridge, bias apart",
        "rates that fall",
        "rebuilt longer each round",
        "classes, bounded",
        "own words, pooled",
        "owned users",
        "scaffold, pulled",
        "fed_dyn, bounded",
        "offsets together, pooled",
        "ditto, not finite",
        "held by adam, stacked",
        "not finite",
        "not finite, one step each",
        "constrained, one step",
        "owned users, clipped",
        "shuffled each pass, stacked",
        "shuffled each pass, noisy, pooled",
        "shuffled each pass, ahead",
    )
)
@pytest.mark.parametrize("name", CASES)
def test_rounds_are_those_of_plain_keras_and_numpy(name):
    case = CASES[name]
    expected_rounds = plain_rounds(case.of_plain)
    for number, (found, expected) in enumerate(zip(computed_rounds(case), expected_rounds)):
        assert list(found.weights) == list(expected.weights)
        for key, value in expected.weights.items():
            close(found.weights[key], value, f"round {number}: {key}")
        assert set(found.metrics) - {"aggregator"} == set(expected.metrics)
        for key, value in expected.metrics.items():
            close(found.metrics[key], value, f"round {number}: {key}")
        assert found.kept.keys() == expected.kept.keys()
        for client, values in expected.kept.items():
            for key, value in values.items():
                close(found.kept[client][key], value, f"round {number}: {key} of {client}")
    start = prepared(case).initial_global_values(seed=5)
    for key, value in expected_rounds[-1].weights.items():
        assert np.abs(value - start[key]).max() > 1e-3, key


@pytest.mark.exhaustive(but=("classes",))
@pytest.mark.parametrize("name", ["rebuilt, shared, stacked", "classes"])
def test_rounds_of_fed_recon_are_tffs(name):
    tffs()
    # Of a round without reports TFF's servers think otherwise, if they gather momentum.
    case = CASES[name]._replace(sizes=(3, 6))
    for number, (found, weights) in enumerate(zip(computed_rounds(case), tffs_rounds(case))):
        for key, value in weights.items():
            close(found.weights[key], value, f"round {number}: {key}")


@pytest.mark.exhaustive
def test_one_gradient_is_taken_where_it_may_be(monkeypatch):
    """Else its cases would show nothing."""
    case = CASES["kept, one gradient"]
    honest = server.step_together

    def doubled(*args):
        sums, local = honest(*args)
        return {**sums, "weight": 2.0 * sums["weight"]}, local

    monkeypatch.setattr(server, "step_together", doubled)
    first, expected = next(computed_rounds(case)), plain_rounds(case.of_plain)[0]
    assert np.abs(first.weights["out/kernel"] - expected.weights["out/kernel"]).max() > 1e-3
