"""Chromium for tests of pages: where it is, and how quickly a page answers."""

from __future__ import annotations

import shutil

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


def chromium():
    """Returns where Chromium is; None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def seconds_to_open(page):
    """Returns how long a page that was just opened took until it was drawn."""
    timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    return page.evaluate(timing) / 1000


def longest_hover(page, moves=50):
    """Returns how many ms a page took at most to answer the pointer on its way across the dots."""
    return page.evaluate(_HOVER, moves)
