"""Makes the README's picture from the report of `make movielens`.

make movielens
.venv/bin/python build_tools/readme_picture.py results/movielens_quick

It needs Chromium.
"""

import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

PICTURE = pathlib.Path(__file__).parents[1] / "docs/assets/clients.png"


def write_picture(run: pathlib.Path) -> None:
    """Writes the picture of a run's clients before and after personalisation."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 760, "height": 900}, device_scale_factor=2)
        page.goto((run / "report.html").resolve().as_uri())
        # Hide the controls, which are useless in a picture, and the histograms.
        page.add_style_tag(content=".controls, [data-chart=dots] .panels { display: none }")
        page.locator('[data-chart="dots"]').screenshot(path=str(PICTURE))
        browser.close()


if __name__ == "__main__":
    write_picture(pathlib.Path(sys.argv[1]))
