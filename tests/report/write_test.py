"""The page is one file without the network, and shows others' texts as texts."""

import html.parser
import json
import re

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.report.run_data import read_run
from fedpersonal.report.write import report_page, write_report

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"'`&amp;{{ 7 * 7 }}",
    "x" * 1_000_000,
    "\u202egnp.exe\u2066",
    "שלום עולם",
    "\u2028\x00\ud7ff",
    "=1+1",
]


class Parsed(html.parser.HTMLParser):
    """Elements of a page with their attributes, and the JSON in it."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.data, self._in_data = [], None, False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._in_data = dict(attrs).get("id") == "data"

    def handle_data(self, text):
        if self._in_data:
            self.data = json.loads(text)
            self._in_data = False


@pytest.mark.parametrize("show_clients", [False, True])
def test_hostile_names_are_texts(tmp_path, make_run, show_clients):
    path = make_run(tmp_path, clients=len(HOSTILE), names=HOSTILE)
    page = report_page(read_run(path), show_clients=show_clients)
    parsed = Parsed(page)
    assert len(page) < 100_000
    assert not [e for e in parsed.elements if e[0] == "img"]
    assert len([e for e in parsed.elements if e[0] == "script"]) == 2
    assert not [a for _, a in parsed.elements for name in a if name.startswith("on")]
    names = parsed.data["dots"]["names"]
    if show_clients:
        assert {"<script>alert(1)</script>", "שלום עולם", "x" * 60 + "…"} <= set(names)
        assert "\\u202egnp.exe\\u2066" in names
    else:
        assert names == [f"client {i}" for i in range(1, len(HOSTILE) + 1)]
        assert "gnp" not in page
        assert "alert(1)" not in page


def test_hostile_summaries_and_columns_are_texts(tmp_path, make_run):
    path = make_run(tmp_path, clients=2)
    table = pd.read_csv(path / "per_client.csv")
    evil = "<b onclick=alert(1)>_after"
    table.assign(**{evil: [1.0, 2.0], "note": ["secret", "texts"]}).to_csv(
        path / "per_client.csv", index=False
    )
    run = read_run(path)
    run.summary.update(dataset="<script>alert(2)</script>")
    run.config["versions"]["<i>"] = "</script>"
    page = report_page(run)
    parsed = Parsed(page)
    assert not [tag for tag, _ in parsed.elements if tag in ("b", "i")]
    assert len([tag for tag, _ in parsed.elements if tag == "script"]) == 2
    assert "secret" not in page


def test_the_page_refers_to_nothing_outside(tmp_path, make_run):
    page = write_report(make_run(tmp_path)).read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=(?!\"data:)", page)
    assert not set(re.findall(r"https?://[^\"' ]+", page)) - {"http://www.w3.org/2000/svg"}
    policy = next(a["content"] for t, a in Parsed(page).elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_the_page_is_small(tmp_path, make_run):
    path = write_report(make_run(tmp_path, rounds=1_000, clients=600))
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize(
    "missing", [[], ["metrics.csv"], ["per_client.csv"], ["boundary.json"], ["summary.json"]]
)
def test_what_is_missing_is_said(tmp_path, make_run, missing):
    path = make_run(tmp_path)
    for name in missing:
        (path / name).unlink()
    page = write_report(path).read_text(encoding="utf-8")
    told = {
        "metrics.csv": "there are no curves",
        "per_client.csv": "there are no dots",
        "boundary.json": "does not say what crossed",
    }
    assert {name for name, text in told.items() if text in page} == {*missing} & told.keys()


def test_metrics_that_are_not_finite_are_left_out(tmp_path, make_run):
    path = make_run(tmp_path, clients=3)
    table = pd.read_csv(path / "per_client.csv")
    table["rmse_after"] = [np.nan, np.inf, 1.0]
    table.to_csv(path / "per_client.csv", index=False)
    values = Parsed(report_page(read_run(path))).data["dots"]["choices"][0]["y"]["values"]
    assert sorted(values, key=str) == [1.0, None, None]


def test_a_damaged_folder_keeps_its_page(tmp_path, make_run):
    path = make_run(tmp_path)
    before = write_report(path).read_bytes()
    (path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        write_report(path)
    assert (path / "report.html").read_bytes() == before
