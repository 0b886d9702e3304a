"""Recommendations are kept in a run's folder, and shown to whom asks for clients."""

import json

import pytest
from damage import with_digest

from fedpersonal.errors import UserError
from fedpersonal.report.recommendations import (
    RECOMMENDATIONS,
    ClientItems,
    Item,
    Recommendations,
    recommendations_told,
    write_recommendations,
)
from fedpersonal.report.run_data import read_run
from fedpersonal.report.write import report_page

HAS = [Item("<i>Sea</i>", rating=4.5)]
TOP = [Item("<script>film</script>", 3.25, True, 5.0), Item("x" * 10_000, 2.0)]
FOUND = Recommendations("rmse", [ClientItems("<b>Ann", "most helped", 1.5, 0.5, HAS, TOP)])


def test_recommendations_are_shown_on_demand(tmp_path, make_run):
    path = make_run(tmp_path)
    assert "Top recommendations" not in report_page(read_run(path))
    write_recommendations(path, FOUND, rounds=20)
    assert (path / RECOMMENDATIONS).stat().st_mode & 0o077 == 0
    page = report_page(read_run(path))
    assert "recommendations for 1 of its clients" in page
    assert not [secret for secret in ("Ann", "film<", "film&", "Sea", "held out") if secret in page]
    page = report_page(read_run(path), show_clients=True)
    assert "&lt;b&gt;Ann" in page and "RMSE 1.50 before, 0.500 after" in page
    assert "&lt;i&gt;Sea&lt;/i&gt;</bdi>, rated 4.5" in page
    assert "&lt;script&gt;film&lt;/script&gt;</bdi> <b>✓ held out, rated 5</b>" in page
    assert "x" * 60 + "…" in page and "x" * 61 not in page


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("clients",), {}), (("metric",), 3), (("clients", 0), "x"), (("clients", 0, "top"), {})),
        *((("clients", 0, "after"), "low"), (("clients", 0, "client"), None)),
        *((("clients", 0, "top", 0), 7), (("clients", 0, "top", 0, "score"), 10**400)),
        *((("clients", 0, "has", 0, "name"), []), (("clients", 0, "top", 0, "held_out"), 1)),
    ],
)
def test_damage_is_one_line(tmp_path, place, value):
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
        recommendations_told(tmp_path)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is damaged"):
        recommendations_told(tmp_path)
