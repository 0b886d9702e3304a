"""Pages that are written by programs say what options and methods are."""

from __future__ import annotations

import json
import re
import statistics

from experiments import methods_pages, options_page, results_page
from fedpersonal.tasks.task import all_tasks


def test_the_page_of_options_is_up_to_date():
    written = options_page.PAGE.read_text(encoding="utf-8")
    assert written == options_page.page(), "run python -m experiments.options_page"


def test_the_pages_of_methods_are_up_to_date():
    written = {p.name: p.read_text(encoding="utf-8") for p in methods_pages.FOLDER.glob("*.md")}
    assert written == methods_pages.pages(), "run python -m experiments.methods_pages"


def test_the_page_of_results_is_up_to_date():
    written = results_page.PAGE.read_text(encoding="utf-8")
    assert written == results_page.page(), "run python -m experiments.results_page"


def test_a_row_of_results_stands_beside_its_best_guess():
    """Its cells are the numbers of the JSON beside the page, rounded."""
    cells = json.loads((results_page.FOLDER / "table1.json").read_text(encoding="utf-8"))
    cells = cells["tables"]["unseen"]
    means = {name: statistics.mean(row["RMSE"]["values"]) for name, row in cells.items()}
    guess = min(mean for name, mean in means.items() if name.startswith("Guess"))
    row = rf"^\| FedRecon \| 0\.907 \| {means['FedRecon']:.3f} ± .* \| {guess:.3f} ± "
    assert re.search(row, results_page.page(), re.MULTILINE)


def test_every_method_of_every_task_has_its_section():
    text = "\n".join(path.read_text(encoding="utf-8") for path in methods_pages.FOLDER.glob("*.md"))
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    names = {name for task in all_tasks().values() for name in task.methods}
    assert len(names) > 40 and names <= {*sections}
    assert all(sections.count(name) == 1 for name in names)
