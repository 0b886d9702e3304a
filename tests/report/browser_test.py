"""The page in a real browser: it opens at once, and can be pointed at."""

import io

import pytest
from matplotlib.image import imread

from fedpersonal.report.write import write_report
from tests.report.chromium import chromium, longest_hover, seconds_to_open

pytestmark = pytest.mark.skipif(not chromium(), reason="Chromium is not installed")
CLIENTS, ROUNDS = 600, 1_000
# Of a machine with other work; one at rest takes a third.
MOST_SECONDS_TO_OPEN, MOST_MS_A_HOVER = 3, 180


@pytest.fixture(name="browser", scope="module")
def _browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(name="open_page", scope="module")
def _open_page(browser):
    """Opens a file; the page complains of nothing, and asks for nothing but itself."""
    contexts, faults = [], []

    def open_page(path, **options):
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda r: faults.append(r.url) if r.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [fault for fault in faults if not fault.startswith("data:")] == []


@pytest.fixture(name="report", scope="module")
def _report(tmp_path_factory, make_run):
    path = tmp_path_factory.mktemp("run")
    return write_report(make_run(path, rounds=ROUNDS, clients=CLIENTS))


@pytest.fixture(name="page")
def _page(open_page, report):
    return open_page(report)


def place_of(page, client):
    dots = page.locator("[data-chart=dots]")
    dots.scroll_into_view_if_needed()
    return dots.evaluate("(figure, i) => figure.place(i)", client)


def count_bars(page):
    return page.locator("[data-chart=histograms] rect[fill-opacity]").evaluate_all(
        "bars => bars.filter(bar => bar.getAttribute('height') > 0).length"
    )


def test_it_opens_at_once_and_says_its_verdict(page):
    assert 0 < seconds_to_open(page) < MOST_SECONDS_TO_OPEN
    assert page.locator("#verdict").inner_text().startswith("Personalisation helps")
    assert "600 clients" in page.locator("[data-chart=dots] .controls").inner_text()


def test_a_dot_shows_its_row(page):
    x, y = place_of(page, 0)  # Who gained most is far from the others.
    page.mouse.move(x, y)
    assert page.locator("#tip").inner_text().startswith("client 1\n")
    page.mouse.click(x, y)
    row = page.locator(".row").inner_text()
    assert row.startswith("client 1\n")
    assert "RMSE after" in row


def test_keys_go_from_client_to_client(page):
    plot = page.locator("[data-chart=dots] .plot")
    plot.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        plot.press(key)
    assert page.locator("#tip").inner_text().startswith("client 12\n")
    plot.press("Enter")
    assert page.locator(".row").inner_text().startswith("client 12\n")
    assert plot.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"


def test_a_brush_filters_the_histograms(page):
    controls = page.locator("[data-chart=dots] .controls")
    clear = page.get_by_text("Clear brush")
    assert clear.is_disabled()
    every = count_bars(page)
    x, y = place_of(page, 0)
    page.mouse.move(x - 12, y - 12)
    page.mouse.down()
    page.mouse.move(x + 12, y + 12, steps=3)
    page.mouse.up()
    assert " of 600 clients" in controls.inner_text()
    assert 0 < count_bars(page) < every
    clear.click()
    assert " of 600" not in controls.inner_text()
    assert count_bars(page) == every


def test_scales_and_axes_switch(page):
    curves = page.locator("[data-chart=curves]")
    path = curves.locator("path").first

    def drawn():
        return path.get_attribute("d")

    seen = [drawn()]
    curves.locator("select").nth(1).select_option("log")
    seen.append(drawn())
    curves.locator("input").fill("10")
    seen.append(curves.locator("path").nth(1).get_attribute("d"))
    assert len(set(seen)) == 3
    for axis in ("seconds", "bytes"):
        curves.locator("select").first.select_option(axis)
        assert axis in curves.locator("svg").first.inner_html()
    plot = curves.locator(".plot").first
    plot.hover()
    assert "validation:" in page.locator("#tip").inner_text()


@pytest.mark.parametrize("width", [400, 900, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(open_page, report, width, scheme):
    page = open_page(report, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 29)"}[scheme]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_shadow_shows_that_a_table_goes_on(open_page, report, scheme):
    page = open_page(report, color_scheme=scheme)
    page.set_viewport_size({"width": 420, "height": 900})
    table = page.locator(".wide", has=page.locator("#percentiles"))
    table.locator("table").evaluate("table => (table.style.visibility = 'hidden')")

    def edges():
        """How far each edge's colour is from the middle's."""
        rows = imread(io.BytesIO(table.screenshot()))
        row = rows[len(rows) // 2]
        return [abs(row[x] - row[len(row) // 2]).max() for x in (1, -2)]

    def scroll_to(left):
        table.evaluate("(node, left) => (node.scrollLeft = left)", left)
        return [difference > 0.08 for difference in edges()]

    assert scroll_to(0) == [False, True]
    assert scroll_to(60) == [True, True]
    assert scroll_to(10_000) == [True, False]
    page.set_viewport_size({"width": 1400, "height": 900})
    assert scroll_to(0) == [False, False]
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 420, "height": 900})
    assert edges() == [0, 0]


def test_it_is_printed_light_and_without_controls(open_page, report):
    page = open_page(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".controls").first.is_visible()
    assert page.locator("#verdict").is_visible()


def test_thousands_of_clients_stay_quick(open_page, tmp_path, make_run):
    page = open_page(write_report(make_run(tmp_path, rounds=10, clients=6_000)))
    page.locator("[data-chart=dots]").scroll_into_view_if_needed()
    assert longest_hover(page) < MOST_MS_A_HOVER


def test_names_are_texts(open_page, tmp_path, make_run):
    names = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "a" * 10**6]
    path = write_report(make_run(tmp_path, clients=3, names=names), show_clients=True)
    page = open_page(path)
    plot = page.locator("[data-chart=dots] .plot")
    shown = []
    plot.focus()
    for _ in names:
        plot.press("ArrowRight")
        plot.press("Enter")
        shown.append(page.locator(".row strong").inner_text())
    assert sorted(shown) == sorted([*names[:2], "a" * 60 + "…"])
