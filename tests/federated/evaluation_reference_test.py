"""What clients predict, before and after phases, is that of plain Keras: a table of cases."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from plain_rounds import PlainEvaluation, client_of, model_of
from round_models import BATCH_SIZE, DATA, RATINGS

from fedpersonal.client import pooled_batches
from fedpersonal.data.splits import split_support_query
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.evaluation.personalize import personalize
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.fed_em import fed_em
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.methods.phases import GradientPhase, NeighboursPhase, Phase, RidgePhase
from fedpersonal.tff.optimizers import build_adam, build_sgdm

pytestmark = pytest.mark.usefixtures("not_compiled")

SGD = build_sgdm(0.3)
ADAM = build_adam(0.05)
MOMENTUM = build_sgdm(0.2, momentum=0.8)
SEED = 4


def phase(variables, optimizer=SGD, **options):
    return GradientPhase(
        variables, "support", optimizer, **{"epochs": 2, "max_steps": 3, **options}
    )


class Evaluation(NamedTuple):
    """A model, what personalises it, how clients are packed, and whether some have kept values."""

    model: str
    phases: tuple[Phase, ...] = ()
    packing: str = "stacked"
    algorithm: Algorithm | None = None
    has_kept: bool = False


# The pull of the last one turns the distance of rows that nobody looks up around.
COPYING = {
    "ditto": (ditto(client_optimizer=SGD, pull=0.8), "stacked"),
    "ditto, adam": (ditto(client_optimizer=SGD, local_optimizer=ADAM, pull=0.8), "pooled"),
    "mr_mtl": (mr_mtl(client_optimizer=SGD, pull=0.8), "pooled"),
    "apfl": (apfl(client_optimizer=SGD), "stacked"),
    "ditto, pulled beyond": (ditto(client_optimizer=SGD, pull=5.0), "pooled"),
}
BOTH = (phase("local"), phase("global", MOMENTUM))
EVALUATIONS = {
    "nothing": Evaluation("factors"),
    "nothing, pooled": Evaluation("sentences", (), "pooled"),
    "reconstruction": Evaluation("factors", (phase("local", MOMENTUM),)),
    "without lookups": Evaluation("factors, no lookups", BOTH),
    "of a layer": Evaluation("users", (phase(("item_embedding",)),)),
    "kept, both ways": Evaluation("own user", BOTH, "pooled", has_kept=True),
    "ridge": Evaluation("rated", (RidgePhase("query", 1.0),)),
    "ridge after rows moved": Evaluation(
        "factors", (phase("global"), RidgePhase("all", 2.0, 0.3)), "pooled"
    ),
    "classes": Evaluation("classes", (phase("all", ADAM),)),
    "sentences, both ways": Evaluation("sentences", BOTH, "pooled"),
    "sentences, reconstruction": Evaluation("sentences", (phase("local", ADAM),), "pooled"),
    "sentences, of a layer": Evaluation(
        "shared sentences", (phase(("oov_embedding",), MOMENTUM),), "pooled"
    ),
    "sentences, all": Evaluation("shared sentences", (phase("all", ADAM),), "pooled"),
    "neighbours": Evaluation("classes", (NeighboursPhase(("head",), 3, 0.6, 0.4),)),
    "neighbours of a moved model": Evaluation(
        "signs", (phase("all"), NeighboursPhase(("head",), 2)), "pooled"
    ),
    "neighbours of infinite padding": Evaluation("signs", (NeighboursPhase(("head",), 20),)),
    "neighbours of places": Evaluation(
        "shared sentences", (phase("all"), NeighboursPhase(("logits",), 4, 0.7, 0.3)), "pooled"
    ),
    "mixing layers": Evaluation("mixing layers", (phase("local"),)),
    "mixing functions": Evaluation("mixing functions", (phase("local"),)),
    "loss of each": Evaluation("loss of each", (phase("local"), phase("all")), "pooled"),
    **{
        name: Evaluation("table, own head", (), packing, algorithm, has_kept=True)
        for name, (algorithm, packing) in COPYING.items()
    },
    **{
        f"ifca, {packing}": Evaluation(
            "loss of each", (), packing, ifca(client_optimizer=SGD, num_clusters=3)
        )
        for packing in ("stacked", "pooled")
    },
    "fed_em": Evaluation("signs", (), algorithm=fed_em(client_optimizer=SGD, em_steps=3)),
    "fed_em, sentences": Evaluation(
        "shared sentences", (), "pooled", fed_em(client_optimizer=SGD, num_clusters=3)
    ),
}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    for name in ("CHUNK", "SMALL_CHUNK"):
        monkeypatch.setattr(pooled_batches, name, 4)


def kept_of(model, clients):
    """Values of all clients but the last, far from what the server sends."""
    random = np.random.default_rng(6)
    known = np.arange(clients.num_clients) < clients.num_clients - 1
    return known, {
        v.name: random.uniform(0.1, 0.9, (clients.num_clients, *v.shape)).astype(np.float32)
        for v in model.local_variables
    }


@pytest.mark.exhaustive(
    but=(
        "nothing, pooled",
        "kept, both ways",
        "classes",
        "neighbours",
        "neighbours of a moved model",
        "ditto, pulled beyond",
        "sentences, reconstruction",
    )
)
@pytest.mark.parametrize("name", EVALUATIONS)
def test_what_clients_predict_is_that_of_plain_keras(name):
    case, model = EVALUATIONS[name], model_of(EVALUATIONS[name].model)
    phases = case.phases
    if case.algorithm is not None:
        model = case.algorithm.prepare(model)
        # A head by the shared table, or clusters, and then what the method does.
        first = phase("global") if model.mixes else phase(("own",))
        phases = (first, *case.algorithm.personalization(model))
    data = DATA.get(case.model, RATINGS).subset([0, 1, 3, 5])  # The second has one batch.
    support, query = split_support_query(data, batch_size=BATCH_SIZE, split="aggregated")
    weights = model.initial_global_values(seed=SEED)
    evaluate = build_evaluation(
        model, phases, support, query,
        batch_size=BATCH_SIZE, clients=3, packing=case.packing, with_kept=case.has_kept,
        with_predictions=case.packing == "pooled" and "sentences" not in case.model, seed=SEED,
    )  # fmt: skip
    kept = kept_of(model, support) if case.has_kept else None
    results = evaluate(weights, kept)
    np.testing.assert_array_equal(results.num_examples, query.counts)
    changes = []
    for stage, own_phases in ((results.before, ()), (results.after, phases)):
        plain = PlainEvaluation(model, own_phases, batch_size=BATCH_SIZE, seed=SEED)
        for client in range(support.num_clients):
            local = None
            if kept and kept[0][client] and stage is results.after:
                local = {k: v[client] for k, v in kept[1].items()}
            examples = client_of(model, support, client)
            values = plain.values_of(weights, local, examples)
            if client == 0 and local is not None:
                options = {"batch_size": BATCH_SIZE, "seed": SEED}
                found = personalize(
                    model, phases, weights, support.subset([0]), kept=local, **options
                )
                for key, value in values.items():
                    np.testing.assert_allclose(found[key], value, 1e-4, 2e-5, err_msg=key)
            if not query.counts[client]:
                assert not any(sums[client].any() for sums in stage.values())
                continue
            predictions, sums = plain.predict(client_of(model, query, client))
            assert sums.keys() == stage.keys()
            for key, pair in sums.items():
                np.testing.assert_allclose(stage[key][client], pair, 1e-4, 1e-4, err_msg=key)
            if stage is results.after and results.predictions is not None:
                own = results.predictions[client][: len(predictions)]
                np.testing.assert_allclose(
                    np.ravel(own), np.ravel(predictions), rtol=1e-4, atol=1e-4
                )
            changes.append(abs(stage["loss"][client] - results.before["loss"][client])[0])
    changed = np.array(changes[len(changes) // 2 :])
    assert (changed > 1e-4).all() if phases or kept else not changed.any()
