"""What is recommended, against NumPy and the model's own variables."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.report.page import report_page
from fedpersonal.report.run import read_run
from fedpersonal.suite.tasks.ranking.task import TASK as INTERACTIONS
from fedpersonal.suite.tasks.ratings.task import TASK as RATINGS

pytestmark = pytest.mark.usefixtures("not_compiled")
# All users' variables are the server's, and nothing is personalised.
TABLES = {
    "ratings": (RATINGS, {"method": "fed_avg", "evaluate_on": "seen"}),
    "interactions": (INTERACTIONS, {"method": "fed_avg"}),
}


@pytest.mark.exhaustive(but=("interactions",))
@pytest.mark.parametrize("name", TABLES)
def test_scores_are_those_of_the_variables(tiny, name):
    task, options = TABLES[name]
    finished = tiny.run(task, **options, use_biases=True)
    found = json.loads((finished.path / "recommendations.json").read_text())
    assert found["metric"] is None and len(found["clients"]) == 6
    source, weights = finished.data.source, finished.trained.weights
    vectors = [weights[f"{who}_embedding/embeddings"] for who in ("user", "item")]
    biases = [weights[f"{who}_bias/embeddings"].ravel() for who in ("user", "item")]
    offset = finished.experiment.options.rating_offset if name == "ratings" else 0.0
    query, items = finished.data.test.query, source.item_ids.tolist()
    for entry in found["clients"]:
        user = source.user_ids.tolist().index(entry["client"])
        scores = vectors[1] @ vectors[0][user] + biases[0][user] + biases[1] + offset
        tested = query.client(query.client_ids.tolist().index(entry["client"]))[0]["item"]
        held_out = {items[i] for i in (tested if name == "ratings" else tested[:1])}
        rated = dict(zip(source.items[source.users == user], source.ratings[source.users == user]))
        has = {items[i] for i in rated} - held_out
        free = sorted((-scores[i], i) for i in range(len(items)) if items[i] not in has)[:10]
        assert [item["name"] for item in entry["top"]] == [items[i] for _, i in free]
        expected = [-score for score, _ in free]
        np.testing.assert_allclose([i["score"] for i in entry["top"]], expected, rtol=1e-4)
        for item in entry["top"]:
            assert item["held_out"] == (item["name"] in held_out)
            own = rated.get(items.index(item["name"])) if name == "ratings" else None
            assert item["rating"] == own
        assert {item["name"] for item in entry["has"]} <= has and len(entry["has"]) == 5
        if name == "ratings":
            best = sorted((rated[items.index(i)] for i in has), reverse=True)[:5]
            assert [item["rating"] for item in entry["has"]] == best


@pytest.mark.exhaustive
def test_shown_are_the_most_helped_and_the_most_hurt(tiny):
    finished = tiny.run(RATINGS, method="fed_recon", evaluate_on="seen", total_rounds=4)
    found = json.loads((finished.path / "recommendations.json").read_text())
    gains = {
        row["client"]: float(row["rmse_before"]) - float(row["rmse_after"])
        for row in finished.clients
    }
    ranked = sorted(gains, key=gains.get, reverse=True)
    middle = len(ranked) // 2
    expected = [*ranked[:2], *ranked[middle - 1 : middle + 1], *ranked[-2:]]
    assert [entry["client"] for entry in found["clients"]] == expected
    assert [entry["group"] for entry in found["clients"][:2]] == ["most improved"] * 2
    assert found["metric"] == "rmse"
    for entry in found["clients"]:
        gain = entry["before"] - entry["after"]
        assert gain == pytest.approx(gains[entry["client"]], abs=1e-5)
        assert (gain > 0) == (entry["group"] != "worsened most") or "median" in entry["group"]
    page = report_page(read_run(finished.path), show_clients=True)
    assert page.count('class="panel picks"') == 6
