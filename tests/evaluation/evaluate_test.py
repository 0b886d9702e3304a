"""What an evaluation shares, what clients do before they predict, and statistics over clients.

What they predict is in the table of evaluations.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import numpy as np
import pytest

from fedpersonal.data.splits import split_support_query
from fedpersonal.evaluation import evaluate as evaluation
from fedpersonal.evaluation.evaluate import Evaluator, build_evaluation
from fedpersonal.evaluation.results import ClientResults, spread_over_samples
from fedpersonal.methods.phases import GradientPhase
from fedpersonal.model.metrics import RMSE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.1)
REBUILDING, FINETUNING = (GradientPhase(v, "all", SGD, epochs=2) for v in ("local", "global"))
BATCH_SIZE, NUM_ITEMS = 3, 6


@pytest.fixture(name="model", scope="module")
def _model():
    return PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=2), local_layers=["user_embedding"]
    )


@pytest.fixture(name="weights", scope="module")
def _weights(model):
    return model.initial_global_values(seed=1)


@pytest.fixture(name="split", scope="module")
def _split(draw_ratings):
    """Support sets of very different sizes; the second client has no query set."""
    ratings = draw_ratings((4, 3, 17, 9), num_items=NUM_ITEMS, seed=9)
    return split_support_query(ratings, batch_size=BATCH_SIZE)


@pytest.mark.parametrize("packing", ["pooled", "stacked"])
def test_validation_and_test_share_what_is_traced(model, split, weights, monkeypatch, packing):
    """Each traces when it is first called, whatever the width of the query sets."""
    traced, trace = [], evaluation.keras_computation
    monkeypatch.setattr(evaluation, "keras_computation", lambda *t: traced.append(t) or trace(*t))
    evaluation.evaluation_computation.cache_clear()
    support, query = split
    options = {"batch_size": BATCH_SIZE, "packing": packing}
    validate = build_evaluation(
        model, [REBUILDING], support, query.head(2), with_before=False, **options
    )
    test = build_evaluation(model, [REBUILDING], support, query, **options)
    assert not traced
    assert validate(weights).before is None
    assert len(traced) == 1
    test(weights)
    # Predictions before and after are two computations of the same clients.
    assert len(traced) == 2
    test(weights)
    assert len(traced) == 2
    sets = support.subset([2]), query.subset([2])
    few = build_evaluation(model, [REBUILDING], *sets, with_before=False, room=4, **options)
    np.testing.assert_array_equal(few(weights).after["loss"], test(weights).after["loss"][2:3])
    assert len(traced) == 2


@pytest.mark.exhaustive(but=("2",))
@pytest.mark.parametrize("together", [2, 0])
def test_clients_that_have_kept_nothing_rebuild_and_all_finetune(model, split, weights, together):
    support, query = split
    evaluator = Evaluator(model, (REBUILDING,), (FINETUNING,), BATCH_SIZE, "stacked", together, 4)
    assert evaluator.personalization(True) == (FINETUNING,)
    assert evaluator.personalization(False) == (REBUILDING, FINETUNING)

    def losses(phases):
        evaluate = build_evaluation(
            model, phases, support, query, batch_size=BATCH_SIZE, with_before=False, seed=4
        )
        return evaluate(weights).after["loss"]

    found = evaluator.pack(support, query, has_kept=False)(weights).after["loss"]
    np.testing.assert_allclose(found, losses((REBUILDING, FINETUNING)), rtol=1e-5)
    assert not np.allclose(found, losses((FINETUNING,)))
    alone = evaluator.pack(support, query, (), has_kept=False, with_before=False)(weights)
    assert alone.before is None and alone.overall_before() == {}


def test_what_is_kept_may_be_read_a_few_shards_at_a_time(model, split, weights, monkeypatch):
    """All of it is gigabytes, where it is a model a client."""
    support, query = split
    known, rows = np.array([True, False, True, True]), np.arange(8, dtype=np.float32)
    values = {"user_embedding/vector": rows.reshape(4, 2) / 10}
    read = []

    def kept(places):
        read.append(places.tolist())
        return known[places], {name: column[places] for name, column in values.items()}

    sent, build = [], evaluation.evaluation_computation

    def recording(*args, **options):
        computation = build(*args, **options)
        return lambda weights, shards: sent.append(len(shards)) or computation(weights, shards)

    monkeypatch.setattr(evaluation, "evaluation_computation", recording)
    monkeypatch.setattr(evaluation, "count_processors", lambda: 1)
    monkeypatch.setattr(evaluation, "_KEPT_BYTES", 2 * 2 * 4)  # Two clients' embeddings.
    evaluate = build_evaluation(
        model, (), support, query, batch_size=BATCH_SIZE, clients=2, with_kept=True
    )
    found = evaluate(weights, kept)
    assert [len(places) for places in read] == [2, 2] and sorted(sum(read, [])) == [0, 1, 2, 3]
    assert sent == [1, 1, 2]  # Before personalisation, all at once.
    with pytest.raises(ValueError, match="variables of 2 clients, got 4"):
        evaluate(weights, lambda places: (known, values))
    at_once = evaluate(weights, (known, values))
    for name, sums in found.after.items():
        np.testing.assert_array_equal(sums, at_once.after[name])


def results_of(before, after, num_examples):
    """Client results of the loss and of the RMSE of given mean losses."""
    counts = np.asarray(num_examples, np.float64)
    stages = [
        {name: np.stack([np.array(m) * counts, counts], -1) for name in ("loss", "rmse")}
        for m in (before, after)
    ]
    return ClientResults(
        client_ids=np.array([f"c{i}" for i in range(len(counts))], object),
        num_examples=counts,
        before=stages[0],
        after=stages[1],
        predictions=np.zeros((len(counts), 1)),
        metrics=(RMSE,),
    )


def test_overall_is_the_mean_over_examples():
    results = results_of([9.0, 9.0], [1.0, 4.0], [3, 1])
    assert results.overall() == {"loss": 7 / 4, "rmse": (7 / 4) ** 0.5}


def test_a_notebook_shows_the_mean_client_beside_the_guess():
    results = results_of([9.0, 1.0, 2.0], [1.0, 4.0, 5.0], [3, 1, 0])
    shown = dataclasses.replace(results, baseline={"rmse": np.array([2.5, 0.5, 9.0])})._repr_html_()
    rows = re.findall(
        "<tr><th title=[^>]*>(.*?)</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", shown
    )
    assert rows == [("loss ↓", "5", "2.5", "–"), ("rmse ↓", "2", "1.5", "1.5")]
    assert "2 clients" in shown


def test_columns_are_means_of_each_client():
    results = results_of([9.0, 1.0, 2.0], [1.0, 4.0, 5.0], [3, 1, 0])
    columns = results.per_client()
    assert list(columns) == [
        "client", "num_examples", "loss_before", "rmse_before", "loss_after", "rmse_after",
    ]  # fmt: skip
    assert columns["client"].tolist() == ["c0", "c1", "c2"]
    assert columns["num_examples"].tolist() == [3, 1, 0]
    np.testing.assert_allclose(columns["loss_before"], [9.0, 1.0, np.nan])
    np.testing.assert_allclose(columns["rmse_before"], [3.0, 1.0, np.nan])
    np.testing.assert_allclose(columns["rmse_after"], [1.0, 2.0, np.nan])


def test_percentiles_and_the_share_hurt_are_over_clients_with_examples():
    # Mean losses after: 0, 1, ..., 20, of clients of all sizes, and two clients without any.
    after = [*np.random.default_rng(0).permutation(np.arange(21.0)), 99.0, 99.0]
    before = [loss + (1 if loss < 15 else -1 if loss < 20 else 0) for loss in after]
    sizes = [*range(1, 22), 0, 0]
    distribution = results_of(before, after, sizes).distribution()
    assert distribution["percentiles"]["loss"] == pytest.approx(
        {"p5": 1.0, "p25": 5.0, "p50": 10.0, "p75": 15.0, "p95": 19.0}
    )
    assert distribution["percentiles"]["rmse"]["p25"] == pytest.approx(5.0**0.5)
    # 15 to 19 are worse off; 20 is as it was.
    assert distribution["share_hurt"] == pytest.approx(5 / 21)
    # A loss that is no number after personalisation hurts; who has none before does not count.
    lost = results_of([1.0, 1.0, 1.0, np.nan], [np.nan, np.inf, 0.5, np.nan], [1, 1, 1, 1])
    assert lost.distribution()["share_hurt"] == pytest.approx(2 / 3)


def test_nobody_to_evaluate_is_no_error():
    """And no divergence either, which a loss of NaN is."""
    nobody = results_of([1.0], [1.0], [0])
    assert nobody.distribution() == {"percentiles": {}, "share_hurt": None}
    assert nobody.overall() == nobody.overall_before() == {}
    diverged = results_of([1.0, 1.0], [np.nan, 1.0], [1, 0])
    assert math.isnan(diverged.overall()["loss"]) and diverged.overall_before()["loss"] == 1.0


def test_a_draw_is_all_examples_of_its_clients():
    results = results_of([9.0, 1.0, 0.0, 0.5, 30.0], [9.0, 1.0, 0.0, 0.5, 30.0], [1, 4, 0, 2, 3])
    squares, counts = results.after["rmse"].T
    drawn = [np.array(clients) for clients in itertools.combinations([0, 1, 3, 4], 2)]
    exact = [np.sqrt(squares[c].sum() / counts[c].sum()) for c in drawn]
    found = spread_over_samples(results, drawn)["rmse"]
    assert found == pytest.approx({"mean": np.mean(exact), "sd": np.std(exact)})
