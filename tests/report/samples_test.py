"""What a model generates or recommends is kept, and shown of public data or to whom asks."""

from __future__ import annotations

import dataclasses
import json

import pandas as pd
import pytest
from damage import with_digest

from fedpersonal.errors import UserError
from fedpersonal.report.page import report_page
from fedpersonal.report.run import format_number, read_run
from fedpersonal.report.samples import (
    GENERATED,
    RECOMMENDATIONS,
    ClientItems,
    Item,
    Recommendations,
    add_texts,
    read_recommendations,
    read_texts,
    write_recommendations,
)

FOUND = Recommendations(
    "rmse",
    [
        ClientItems(
            "Ann", "most helped", 1.5, 0.5, [Item("Sea", rating=4.5)], [Item("x", 2.0, True)]
        )
    ],
)


def test_texts_stand_side_by_side(tmp_path):
    for client, context, texts in [
        ("Ann", "harbour", ["We go"]),
        ("Bob", "harbour", ["We stay", "We sail"]),
        ("Bob", "court", ["We rise"]),
        ("Ann", "harbour", ["We came"]),
    ]:
        add_texts(tmp_path, client, context, "We", texts, rounds=20)
    told = read_texts(tmp_path)
    assert told.clients == ["Bob", "Ann"]
    assert told.rows == [
        ("harbour", "We", [["We stay", "We sail"], ["We came"]]),
        ("court", "We", [["We rise"], []]),
    ]
    # A run went on after they were written: neither its page nor its file has them.
    assert read_texts(tmp_path, rounds=30).rows == []
    add_texts(tmp_path, "Bob", "harbour", "We", ["We are"], rounds=30)
    assert "We sail" not in (tmp_path / GENERATED).read_text()


def test_they_are_shown_on_demand(tmp_path, make_run):
    path = make_run(tmp_path, names=["Ann"], clients=1, data_dir="somewhere")
    page = report_page(read_run(path))
    assert "Top recommendations" not in page and "Generated texts" not in page
    add_texts(path, "Ann", "harbour", "We", ["secret", "y" * 10_000], rounds=20)
    write_recommendations(path, FOUND, rounds=20)
    assert (path / RECOMMENDATIONS).stat().st_mode & 0o077 == 0
    page = report_page(read_run(path))
    assert "texts generated for 1 of its clients" in page
    assert "recommendations for 1 of its clients" in page
    assert "<code>fedpersonal report --show_clients path/to/" in page
    assert "no client&#39;s name, item or text" in page or "no client's name, item or text" in page
    assert not [text for text in ("Ann", "Sea", "secret", "held out") if text in page]
    page = report_page(read_run(path), show_clients=True)
    guess = float(pd.read_csv(path / "per_client.csv")["rmse_guess"][0])
    told = f"RMSE 1.50 before, 0.500 after, {format_number(guess)} by the strongest baseline"
    assert told in page and "Ann</bdi>" in page and "Sea</bdi>, rated 4.5" in page
    assert "secret" in page and "y" * 400 + "…" in page and "y" * 401 not in page
    run = read_run(path)
    for options, is_public in [
        ({}, True),
        ({"dataset": "movielens_100k"}, True),
        ({"dataset": "insteval"}, False),
        ({"ratings_file": "mine.csv"}, False),
    ]:
        config = {**run.config, "options": {**run.options, "data_dir": None, **options}}
        page = report_page(dataclasses.replace(run, config=config))
        assert ("Sea" in page) == ("secret" in page) == is_public
        assert "Ann" not in page and "client 1" in page
    failed = report_page(read_run(path, failure="Failed."), show_clients=True)
    assert "Sea" not in failed and "secret" not in failed


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("clients",), {}), (("metric",), 3), (("clients", 0), "x"), (("clients", 0, "top"), {})),
        *((("clients", 0, "after"), "low"), (("clients", 0, "client"), None)),
        *((("clients", 0, "top", 0), 7), (("clients", 0, "top", 0, "score"), 10**400)),
        *((("clients", 0, "has", 0, "name"), []), (("clients", 0, "top", 0, "held_out"), 1)),
    ],
)
def test_damaged_recommendations_are_one_line(tmp_path, place, value):
    write_recommendations(tmp_path, FOUND, rounds=20)
    path = tmp_path / RECOMMENDATIONS
    content = json.loads(path.read_text())
    content.pop("digest")
    part = content
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path.write_bytes(with_digest(content))
    with pytest.raises(UserError, match="is damaged"):
        read_recommendations(tmp_path)
