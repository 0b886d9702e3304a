"""What honest updates tell, against what is known of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.audit.audit import Audit, Verdict, guarantee
from fedpersonal.methods.furl import furl
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.tff.optimizers import build_sgdm
from fedpersonal.training.trainer import Trainer

NUM_ITEMS, DIM = 40, 5


@pytest.fixture(name="audit", scope="module")
def _audit(draw_ratings):
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=DIM),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"},
    )
    clients = draw_ratings([6] * 12, num_items=NUM_ITEMS)
    algorithm = furl(client_optimizer=build_sgdm(0.1))
    trainer = Trainer(model, algorithm, clients, clients_per_round=3, batch_size=6, shards=2)
    return trainer.audit(rounds=1)


def test_an_update_of_one_client_shows_its_items_and_points_where_its_vector_does(audit):
    """In a single step each row is a sum of errors times the user's vector, which is then exact."""
    one, ten = audit.table_leaks
    assert (one.table, one.cohort) == ("item_embedding/embeddings", 1)
    assert (one.share_of_rows, one.rows_seen) == (1.0, 1.0)
    assert one.variable == "user_embedding/vector" and one.cosine == pytest.approx(1.0, abs=1e-6)
    # Ten clients with 6 of 40 items each: what is one client's is a part of it.
    assert ten.cohort == 10 and ten.rows_seen == 1.0
    assert 6 / 40 * 0.6 < ten.share_of_rows < 0.4 and ten.cosine < 1 - 1e-3


def test_it_is_told_in_lines_and_as_json(audit):
    assert audit.holds and audit.leaks == []
    lines = list(audit.lines())
    place = next(i for i, line in enumerate(lines) if line.startswith("inherent: "))
    one, ten = lines[place + 1 : place + 3]
    assert "honest updates of item_embedding/embeddings" in lines[place]
    assert one.startswith("  alone: 100% of the rows") and "they are 100% of all rows" in one
    random = np.random.default_rng(0).normal(size=(200_000, DIM))
    chance = np.abs(random[:, 0] / np.linalg.norm(random, axis=1)).mean()
    said = f"user_embedding/vector is 1.00 (1: the same direction; by chance: {chance:.2f})"
    assert said in one and ten.startswith("  among 10: 100% of the rows")
    told = json.loads(json.dumps(audit.as_json()))
    assert told["broadcast_bytes_per_client"] == 4 * NUM_ITEMS * DIM + 4
    assert [row["cohort"] for row in told["inherent"]] == [1, 10]


def test_a_leak_is_told_and_long_lists_are_cut():
    leaks = tuple(f"round {n}: weight changes" for n in range(7))
    audit = Audit((), (Verdict("severed", "Nothing leaks.", leaks),), (), ["a note"], "epsilon 1")
    assert not audit.holds and audit.leaks == list(leaks)
    assert list(audit.lines())[2:] == [
        "severed: LEAK. Nothing leaks.", *(f"  {leak}" for leak in leaks[:5]), "  and 2 more",
        "a note", "guarantee: none, since a check has found a leak",
    ]  # fmt: skip


def test_a_guarantee_is_that_of_differential_privacy():
    assert "no formal guarantee" in guarantee({})
    spent = {"epsilon": 2.5, "delta": 1e-5, "rounds": 7, "neighbours": "one client replaced"}
    assert guarantee({**spent, "draw": "secret"}) == (
        "guarantee: user-level differential privacy, epsilon 2.5 at delta 1e-05 after 7 rounds, "
        "for one client replaced, as long as the sampled clients are secret"
    )
    assert guarantee({**spent, "draw": "public"}).endswith(", as long as the noise is secret")
