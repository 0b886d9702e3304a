"""The pictures of docs/results/ show what the tables beside them have."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from build_tools import results_pictures
from build_tools.results_pictures import FOLDER, PICTURES


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_a_picture_is_up_to_date(picture):
    written = (FOLDER / f"{picture.name}.svg").read_text(encoding="utf-8")
    assert written == results_pictures.svg(picture), "run python -m build_tools.results_pictures"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_dots_are_where_the_figures_are(picture):
    root = ElementTree.fromstring(results_pictures.svg(picture))
    tag = "{http://www.w3.org/2000/svg}"
    marks = [t for t in root.iter(f"{tag}text") if t.get("text-anchor") == "middle"]
    ticks = {float(mark.text): float(mark.get("x")) for mark in marks}
    least, most = min(ticks), max(ticks)
    scale = (ticks[most] - ticks[least]) / (most - least)
    circles = list(root.iter(f"{tag}circle"))
    shown = [least + (float(c.get("cx")) - ticks[least]) / scale for c in circles]
    table = json.loads((FOLDER / f"{picture.source}.json").read_text(encoding="utf-8"))
    cells = [row[picture.column] for row in table["tables"][picture.table].values()]
    values = [v for c in cells for v in (*c["values"], c["published"]) if v is not None]
    assert shown == pytest.approx(values, abs=0.06 / scale)
    rows = {float(c.get("cy")) for c in circles}
    assert len(rows) == len(cells) and all(0 < float(c.get("cx")) < 760 for c in circles)


def test_every_picture_is_shown_once():
    pages = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md"))
    shown = re.findall(r"\]\((\w+)\.svg\)", pages)
    assert sorted(shown) == sorted(picture.name for picture in PICTURES)
