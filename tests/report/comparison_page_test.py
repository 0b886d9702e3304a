"""The page of a comparison: what it has, and in a browser what one can do with it."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from fedpersonal.report.comparison import compare_runs
from fedpersonal.report.comparison_charts import client_dots, curve_bands
from fedpersonal.report.comparison_page import comparison_page, write_comparison
from tests.report.chromium import chromium, seconds_to_open

HOSTILE = [
    "<script>document.title='hurt'</script>",
    '"><img src=x onerror="document.title=\'hurt\'">',
    "</script><script>document.title='hurt'</script>",
    "\u202egnorw",
    "z" * 10**6,
]


@pytest.fixture(name="open_page", scope="module")
def _open_page():
    """Opens a page in Chromium, and makes sure that it says nothing and asks for nothing."""
    if not chromium():
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    complaints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])

        def open_page(path, width=1200):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: complaints.append(request.url))
            page.goto(path.as_uri())
            assert complaints == [path.as_uri()]
            complaints.clear()
            return page

        yield open_page
        browser.close()
    assert not complaints


def read_data(page):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    return json.loads(text)


def test_bands_are_means_and_deviations(write_run):
    folders = [write_run("a", seed=s) for s in (1, 2, 3)] + [write_run("b", seed=1)]
    panels = curve_bands(compare_runs(folders))
    assert [p["label"] for p in panels][:2] == ["RMSE, validation", "accuracy, validation"]
    loss = next(panel for panel in panels if panel["label"] == "loss, training")
    tables = [pd.read_csv(folder / "metrics.csv") for folder in folders[:3]]
    y = np.stack([table["train/loss"] for table in tables])
    band, single = loss["series"]
    assert band["round"] == list(range(1, 21)) and band["seconds"][-1] == 10.0
    np.testing.assert_allclose(band["y"], y.mean(0), rtol=1e-4)
    np.testing.assert_allclose(band["low"], y.mean(0) - y.std(0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(band["high"], y.mean(0) + y.std(0, ddof=1), rtol=1e-4)
    assert "low" not in single and single["color"] != band["color"]


def test_dots_are_the_clients_of_both(write_run):
    folders = [write_run("a", seed=1), write_run("b", seed=1, better_by=0.1)]
    dots = client_dots(compare_runs(folders), show_clients=True)
    choice = dots["choices"][0]
    assert choice["label"] == "RMSE: b against a" and choice["lower"]
    frames = [pd.read_csv(f / "per_client.csv").set_index("client") for f in folders]
    for frame, axis in zip(frames, ("x", "y")):
        expected = frame["rmse_after"].loc[dots["names"]]
        np.testing.assert_allclose(choice[axis]["values"], expected, rtol=1e-3)
    assert dots["size"]["values"] == frames[0]["num_examples"].loc[dots["names"]].tolist()
    gains = np.subtract(choice["x"]["values"], choice["y"]["values"])
    assert gains[0] == pytest.approx(gains.max())


def test_a_page_has_names_only_where_they_are_asked_for(write_run, tmp_path):
    clients = [*HOSTILE, *(f"secret{n}" for n in range(25))]
    options = {"note": HOSTILE[0], "ratings_file": "/home/someone/r.csv"}
    columns = {"client": clients}
    folders = [write_run("a", columns=columns), write_run("b", columns=columns, options=options)]
    path, texts, rows = write_comparison(folders, tmp_path / "out" / "c.html")
    for written in (path, texts, rows):
        content = written.read_text(encoding="utf-8")
        assert "secret" not in content and "document.title='hurt'</script>" not in content
        assert "someone" not in content and str(tmp_path) not in content
    named = comparison_page(compare_runs(folders), show_clients=True)
    assert "secret7" in named and len(named) < 300_000
    names = read_data(named)["dots"]["names"]
    assert max(map(len, names)) < 100 and "\u202e" not in named
    assert "document.title='hurt'</script>" not in named


def test_hostile_names_are_texts(write_run, tmp_path, open_page):
    clients = [*HOSTILE, *(f"u{n}" for n in range(25))]
    folders = [write_run(n, columns={"client": clients}) for n in ("a", HOSTILE[0])]
    path = write_comparison(folders, tmp_path / "c.html", show_clients=True)[0]
    page = open_page(path)
    assert page.title().startswith("a and <script>")
    plot = page.locator("[data-chart=dots] .plot").first
    plot.focus()
    for _ in clients:
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
    assert "on toys" in page.title() and page.locator("main script, main img").count() == 0


def test_a_reader_looks_at_three_seeds_of_two_methods(write_run, tmp_path, open_page):
    folders = [write_run("fed_avg", seed=s) for s in (1, 2, 3)]
    folders += [write_run("fed_recon", seed=s, better_by=0.02) for s in (1, 2, 3)]
    page = open_page(write_comparison(folders, tmp_path / "c.html")[0])
    assert "RMSE of fed_recon, over all" in page.locator("#verdict").inner_text()
    assert page.locator("#methods table").first.locator("tbody tr").count() == 2
    # A line and a band for each method in each of 5 panels, and marks where points are few.
    curves = page.locator("#curves svg path[fill=none]")
    assert page.locator("#curves .panel").count() == 4
    assert page.locator("#curves path[fill-opacity]").count() == 2 * 4 and curves.count() == 8
    before = curves.first.get_attribute("d")
    page.locator("#curves select").nth(1).select_option("log")
    assert curves.first.get_attribute("d") != before
    page.locator("#curves select").first.select_option("bytes")
    assert (
        "MB" in page.locator("#curves .panel").first.inner_text()
        or "kB" in page.locator("#curves .panel").first.inner_text()
    )
    dots = page.locator("[data-chart=dots]")
    counted = dots.locator("[role=status]").inner_text()
    assert page.locator("#clients tbody tr").first.locator("td").nth(1).inner_text() != ""
    dots.locator("select").nth(2).select_option("worse")
    lost = page.locator("#clients .differences tbody tr").first.locator("td").nth(3).inner_text()
    assert dots.locator("[role=status]").inner_text().startswith(lost) and lost not in counted
    dots.locator("select").nth(2).select_option("all")
    plot = dots.locator(".plot")
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "client 1" in dots.locator(".row").inner_text()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    assert dots.get_by_role("button").is_enabled()
    assert dots.locator("[role=status]").inner_text() != counted
    bars = page.locator("[data-chart=histograms] rect[fill-opacity]")
    assert bars.first.get_attribute("fill") == "var(--series-1)"  # As FedAvg has everywhere.
    assert "fed_recon minus fed_avg" in page.locator("[data-chart=histograms]").inner_text()
    marks = page.locator("[data-chart=scatter] .plot path")
    assert marks.count() == 6
    before = marks.first.get_attribute("transform")
    page.locator("[data-chart=scatter] select").first.select_option("1")
    assert marks.first.get_attribute("transform") != before
    page.locator("[data-chart=scatter] .plot").focus()
    page.keyboard.press("ArrowRight")
    assert "seed" in page.locator("#tip").inner_text()


@pytest.mark.parametrize("width", [420, 900, 1400])
@pytest.mark.parametrize("better_by", [0.003, 0.2, 0.5])
def test_differences_have_three_round_ticks_with_0(
    write_run, tmp_path, open_page, width, better_by
):
    folders = [write_run("a"), write_run("b", better_by=better_by)]
    page = open_page(write_comparison(folders, tmp_path / "c.html")[0], width)
    found = page.locator("[data-chart=histograms] .plot").last.locator("text[text-anchor=middle]")
    *labels, _ = found.evaluate_all(
        "nodes => nodes.map((n) => [n.textContent, n.getBoundingClientRect()])"
        ".map(([text, {left, right}]) => [text, left, right])"
    )
    ticks = [float(text.replace("−", "-")) for text, *_ in labels]
    assert len(ticks) >= 3 and 0 in ticks and ticks == sorted(ticks)
    step = ticks[1] - ticks[0]
    assert round(step / 10 ** np.floor(np.log10(step) + 1e-9), 6) in (1, 2, 2.5, 5)
    assert all(a[2] + 3 < b[1] for a, b in zip(labels, labels[1:]))


@pytest.mark.parametrize("width", [400, 900, 1400])
def test_ten_runs_fit_one_page(write_run, tmp_path, open_page, width):
    size = {"num_clients": 600, "num_rounds": 1000}
    folders = [
        write_run(f"method_{n}", better_by=n / 100, options={"rate": n}, **size) for n in range(10)
    ]
    path = write_comparison(folders, tmp_path / "c.html")[0]
    assert path.stat().st_size < 2e6
    page = open_page(path, width)
    assert seconds_to_open(page) < 5  # Of a machine with other work; 0.2 on one at rest.
    assert page.locator("header li").count() == 9
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#tip").is_hidden()


def test_seeds_of_one_method_need_no_clients_in_common(write_run, tmp_path, open_page):
    folders = [write_run("a", seed=s) for s in (1, 2)]
    page = open_page(write_comparison(folders, tmp_path / "c.html")[0])
    assert page.locator("#clients").count() == 0
    assert "differ by their seed alone" in page.locator("#options").inner_text()
    assert page.locator("#curves path[fill-opacity]").count() == 4


def test_what_sends_nothing_has_no_bytes(write_run, tmp_path, open_page):
    folders = [write_run("fed_avg"), write_run("centralized")]
    page = open_page(write_comparison(folders, tmp_path / "c.html")[0])
    curves = page.locator("#curves .panel").first.locator("svg path[fill=none]")
    assert curves.count() == 2
    page.locator("#curves select").first.select_option("bytes")
    assert curves.count() == 1
    page.locator("#curves .plot").first.focus()
    page.keyboard.press("ArrowLeft")
    assert "fed_avg" in page.locator("#tip").inner_text()
    assert page.locator("[data-chart=scatter] .plot path").count() == 1
    assert "nobody knows how much: centralized." in page.locator("#bytes").inner_text()
