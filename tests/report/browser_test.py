"""Pages in a real browser: they fit the screen, and can be read out."""

from __future__ import annotations

import json
import pathlib
import re
import shutil

import numpy as np
import pytest

from fedpersonal.report.comparison import compare_runs
from fedpersonal.report.comparison_page import write_page
from fedpersonal.report.page import write_report
from fedpersonal.suite.leaderboard.page import write_pages
from tests.suite.leaderboard.tiny_board import make_table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")
SAMPLES = pathlib.Path(__file__).parents[2] / "docs" / "samples"
NAMES = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "a" * 10**6]


@pytest.fixture(name="open_page", scope="module")
def _open_page():
    """Opens a file; the page complains of nothing, and asks for nothing but itself."""
    from playwright.sync_api import sync_playwright

    faults = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def open_page(path, width=1200, **options):
            page = browser.new_page(viewport={"width": width, "height": 900}, **options)
            page.on("console", lambda message: faults.append(message.text))
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("request", lambda r: faults.append(r.url) if r.url != path.as_uri() else None)
            page.goto(path.as_uri())
            return page

        yield open_page
        browser.close()
    assert [fault for fault in faults if not fault.startswith("data:")] == []


@pytest.fixture(name="report", scope="module")
def _report(tmp_path_factory, make_run):
    path = tmp_path_factory.mktemp("run")
    return write_report(make_run(path, rounds=1_000, clients=600))


def test_a_leaderboard_is_sorted_and_filtered(open_page, tmp_path):
    ranks = {"bee": (10.0, 10.0), "ant": (9.0, 9.0), "cat": (1.5, 1.5)}
    table = make_table(ranks, {"ratings": (), "ranking": ()})
    paths = write_pages(table, ["Take any."], tmp_path, "a command")
    page = open_page(paths[0])
    table = page.locator("#all table")

    def names():
        return table.locator("tbody tr:visible th").all_inner_texts()

    for button, expected in (("mean rank", "CAB"), ("mean rank", "BAC"), ("method", "ABC")):
        table.get_by_role("button", name=button).click()
        assert "".join(name[0] for name in names()) == expected
    assert table.locator("[aria-sort]").all_inner_texts()[0].startswith("method")
    page.locator("input[type=search]").fill(" Ant ")
    page.locator("select").select_option("federated")
    assert names() == ["ANT"]
    page.locator("input[type=search]").fill("")
    assert len(names()) == 3
    page.locator("select").select_option("guess")
    assert (
        names() == [] and "9 of 9 rows hidden" in page.locator("[role=status]").first.inner_text()
    )


def test_a_run_is_looked_at(open_page, report):
    page = open_page(report)
    assert page.locator("#verdict").inner_text().startswith("Personalisation improves")
    figure, tip = page.locator("[data-chart=dots]"), page.locator("#tip")
    assert "600 clients" in figure.locator("[role=status]").inner_text()
    plot = figure.locator(".plot").first
    plot.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        plot.press(key)
    told = tip.inner_text()
    assert told.startswith("client 11\n") and "RMSE after: " in told and "examples: " in told
    assert plot.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
    ring = plot.locator("circle").bounding_box()
    plot.evaluate("node => node.blur()")
    assert tip.is_hidden()
    page.mouse.move(ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2)
    assert tip.inner_text().startswith("client ")
    histograms = figure.locator(".panel .plot")
    assert histograms.count() == 3
    hurt = histograms.last.locator("rect[fill='var(--worse)']")
    assert 0 < hurt.count() < histograms.last.locator("rect").count()
    figure.locator("select").first.select_option(label="loss")
    assert "loss before" in figure.inner_text()
    curves = page.locator("[data-chart=curves]")
    seen = [curves.locator("path").first.get_attribute("d")]
    curves.locator("select").nth(1).select_option("log")
    seen.append(curves.locator("path").first.get_attribute("d"))
    curves.locator("input").fill("10")
    seen.append(curves.locator("path").nth(1).get_attribute("d"))
    assert len(set(seen)) == 3
    for axis in ("seconds", "bytes"):
        curves.locator("select").first.select_option(axis)
        assert axis in curves.locator("svg").first.inner_html()
    curves.locator(".plot").first.hover()
    assert "validation:" in tip.inner_text()


@pytest.mark.exhaustive(but=("900-light",))
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (900, "light"), (1400, "dark")])
def test_it_fits_the_screen_and_is_printed_light(open_page, report, width, scheme):
    page = open_page(report, width, color_scheme=scheme)
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    paper = "getComputedStyle(document.body).backgroundColor"
    papers = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}
    assert page.evaluate(paper) == papers[scheme]
    boxes = page.locator(".boundary .box").evaluate_all(
        "nodes => nodes.map((node) => node.getBoundingClientRect().height)"
    )
    assert len(boxes) == 5 and max(boxes) == 180
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate(paper) == papers["light"]
    assert not page.locator(".controls").first.is_visible()


def test_names_are_texts(open_page, tmp_path, make_run):
    path = write_report(make_run(tmp_path, clients=3, names=NAMES), show_clients=True)
    page = open_page(path)
    plot = page.locator("[data-chart=dots] .plot").first
    shown = []
    plot.focus()
    for _ in NAMES:
        plot.press("ArrowRight")
        shown.append(page.locator("#tip").inner_text().splitlines()[0])
    assert sorted(shown) == sorted([*NAMES[:2], "a" * 60 + "…"])
    assert page.locator("main script, main img, #tip *").count() == 0


def test_three_seeds_of_two_methods_are_compared(open_page, tmp_path, write_run):
    folders = [write_run("fed_avg", seed=s) for s in (1, 2, 3)]
    folders += [write_run("fed_recon", seed=s, better_by=0.02) for s in (1, 2, 3)]
    page = open_page(write_page(compare_runs(folders), tmp_path / "c.html")[0])
    assert "RMSE (pooled over examples) of fed_recon" in page.locator("#verdict").inner_text()
    # A line and a band for each method in each panel.
    assert page.locator("#curves .panel").count() == 4
    curves = page.locator("#curves svg path[fill=none]")
    assert page.locator("#curves path[fill-opacity]").count() == 2 * 4 and curves.count() == 8
    page.locator("#curves .plot").first.focus()
    page.keyboard.press("ArrowLeft")
    assert "fed_avg: " in page.locator("#tip").inner_text()
    figure = page.locator("[data-chart=dots]")
    assert "fed_recon minus fed_avg" in figure.inner_text()
    bars = figure.locator(".panel").first.locator("rect")
    assert bars.first.get_attribute("fill") == "var(--series-1)"  # As FedAvg has everywhere.


@pytest.mark.exhaustive(but=("report",))
@pytest.mark.parametrize("name", ["report", "compare", "sweep"])
def test_samples_are_small_and_have_no_names_and_no_paths(open_page, name):
    """`make samples` makes them anew."""
    path = SAMPLES / f"{name}.html"
    text = path.read_text(encoding="utf-8")
    assert len(text) < 500_000 and not re.findall(r"/(?:home|root|work|tmp|usr)\b", text)
    for width in (400, 800, 1200):
        page = open_page(path, width)
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("footer").inner_text().endswith("has no client's name.")
    dots = json.loads(page.locator("#data").text_content()).get("dots") or {"names": []}
    assert dots["names"] == [f"client {i}" for i in range(1, len(dots["names"]) + 1)]
    if name == "report":
        assert page.locator("#recommendations .picks").count() == 6


@pytest.mark.exhaustive(but=("900-0.2",))
@pytest.mark.parametrize(("width", "better_by"), [(420, 0.003), (900, 0.2), (1400, 0.5)])
def test_differences_have_three_round_ticks_with_0(
    open_page, tmp_path, write_run, width, better_by
):
    comparison = compare_runs([write_run("a"), write_run("b", better_by=better_by)])
    page = open_page(write_page(comparison, tmp_path / "c.html")[0], width)
    plot = page.locator("[data-chart=dots] .panel .plot").last
    *labels, _ = plot.locator("text[text-anchor=middle]").evaluate_all(
        "nodes => nodes.map((n) => [n.textContent, n.getBoundingClientRect()])"
        ".map(([text, {left, right}]) => [text, left, right])"
    )
    ticks = [float(text.replace("−", "-")) for text, *_ in labels]
    assert len(ticks) >= 3 and 0 in ticks and ticks == sorted(ticks)
    step = ticks[1] - ticks[0]
    assert round(step / 10 ** np.floor(np.log10(step) + 1e-9), 6) in (1, 2, 2.5, 5)
    assert all(a[2] + 3 < b[1] for a, b in zip(labels, labels[1:]))


@pytest.mark.exhaustive
def test_ten_runs_fit_one_page(open_page, tmp_path, write_run):
    size = {"num_clients": 600, "num_rounds": 1000}
    folders = [
        write_run(f"method_{n}", better_by=n / 100, options={"rate": n}, **size) for n in range(10)
    ]
    path = write_page(compare_runs(folders), tmp_path / "c.html")[0]
    assert path.stat().st_size < 2e6
    page = open_page(path, 400)
    assert page.locator("header li").count() == 9  # One says that there is no guess.
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    seeds = write_page(compare_runs([write_run("a", seed=s) for s in (1, 2)]), tmp_path / "s.html")
    page = open_page(seeds[0])
    assert page.locator("#clients").count() == 0
    assert "differ only by their seed" in page.locator("#options").inner_text()
