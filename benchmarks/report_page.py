"""How long the page of a large run takes to write, to open in Chromium, and to answer a pointer.

python -m benchmarks.report_page

Exits with status 1 where a page of 600 clients takes a second to open, or one of 6,000 clients
60 ms to answer.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from experiments import launch
from fedpersonal.errors import UserError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROUNDS = 1_000
CLIENTS = (600, 6_000)
MOST_SECONDS_TO_OPEN, MOST_MS_A_HOVER = 1.0, 60.0
_HOVER = """async (moves) => {
  const plot = document.querySelector("[data-chart=dots] .plot");
  plot.scrollIntoView({block: "center"});
  const box = plot.getBoundingClientRect();
  let longest = 0;
  for (let i = 0; i < moves; i++) {
    const share = 0.1 + 0.8 * i / moves;
    const clientX = box.left + box.width * share, clientY = box.bottom - box.height * share;
    const start = performance.now();
    plot.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX, clientY}));
    document.body.getBoundingClientRect();
    longest = Math.max(longest, performance.now() - start);
    await new Promise(requestAnimationFrame);
  }
  return longest;
}"""


def main() -> None:
    """Measures pages of drawn runs."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        raise UserError("Chromium is not installed.")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        found = [_measure(browser, pathlib.Path(folder, str(n)), n) for n in CLIENTS]
        browser.close()
    is_quick = found[0][0] < MOST_SECONDS_TO_OPEN and found[-1][1] < MOST_MS_A_HOVER
    sys.exit(0 if is_quick else 1)


def chromium() -> str | None:
    """Returns where Chromium is; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def seconds_to_open(page: Page) -> float:
    """Returns how long a page that was just opened took until it was drawn."""
    timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    return page.evaluate(timing) / 1000


def longest_hover(page: Page, moves: int = 50) -> float:
    """Returns how many ms a page took at most to answer the pointer on its way across the dots."""
    return page.evaluate(_HOVER, moves)


def _measure(browser: Browser, folder: pathlib.Path, clients: int) -> tuple[float, float]:
    from benchmarks.drawn_run import draw_run
    from fedpersonal.report.write import write_report

    draw_run(folder, rounds=ROUNDS, clients=clients)
    start = time.perf_counter()
    path = write_report(folder)
    writing = time.perf_counter() - start
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(path.as_uri(), wait_until="load")
    opening, hover = seconds_to_open(page), longest_hover(page, 200)
    print(
        f"{clients:,} clients, {ROUNDS:,} rounds: written in {writing:.2f} s, "
        f"{path.stat().st_size / 1000:.0f} kB, opened in {opening:.2f} s, hover {hover:.1f} ms"
    )
    return opening, hover


if __name__ == "__main__":
    launch.run(main)
