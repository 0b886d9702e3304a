"""Which layers are local, in small, by real runs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from experiments.papers.ablation import DOWN, OWN, UP, Ablation, layer_sets
from fedpersonal.errors import UserError
from fedpersonal.tasks.ratings.task import TASK


@pytest.fixture(name="ablation", scope="module")
def _ablation(few_ratings, tmp_path_factory):
    given = {"ratings_file": few_ratings, "embedding_dim": 2, "total_rounds": 2}
    sets = [("user_embedding",), ("absent",)]
    given.update(clients_per_round=4, compile=False)
    return Ablation(TASK, given, sets, [3], tmp_path_factory.mktemp("ablation"), isolated=False)


def test_rows_are_their_runs_and_what_is_local_is_not_sent(ablation):
    page = ablation.run().write(ablation.output_dir)
    assert "Left out: absent: kept (" in page
    cells = json.loads((ablation.output_dir / "ablation.json").read_text())["tables"]["ablation"]
    local = [f"user_embedding: {state}" for state in ("kept", "rebuilt")]
    assert list(cells) == ["nothing", *local]
    for name, row in cells.items():
        folder = ablation.output_dir / name.replace(": ", "_")
        for whom in ("seen", "unseen"):
            path = folder.with_name(f"{folder.name}_{whom}") / "seed_3" / "summary.json"
            summary = json.loads(path.read_text())
            assert row[f"rmse, {whom}"]["values"] == [summary["test"]["rmse"]]

    def num_bytes(name, column):
        return 1000 * cells[name][column]["values"][0]

    assert num_bytes("nothing", OWN) == 0
    for name in local:
        assert num_bytes(name, OWN) == 4 * 2
        for column in (DOWN, UP):  # A table of 20 users is not sent.
            saved = num_bytes("nothing", column) - num_bytes(name, column)
            assert saved == pytest.approx(4 * 2 * 20)


def test_it_goes_on_where_it_stopped(ablation, capsys):
    ablation.run()
    assert capsys.readouterr().out.count("done before") == 6


def test_what_cannot_be_solved_exactly_is_left_out_before_anything_runs(ablation, tmp_path):
    asked = dataclasses.replace(
        ablation,
        given={**ablation.given, "reconstruction": "ridge"},
        sets=[("item_embedding",)],
        output_dir=tmp_path,
    )
    page = asked.run().write(tmp_path)
    assert page.count("Left out: item_embedding: ") == 2
    assert "cannot solve for local lookups ['item_embedding/embeddings']" in page


def test_sets_of_layers():
    assert layer_sets(None) is None
    assert layer_sets("a, b;c;c") == [("a", "b"), ("c",)]
    with pytest.raises(UserError, match="a set has no layer"):
        layer_sets("a;;b")
