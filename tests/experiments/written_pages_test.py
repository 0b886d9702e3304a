"""Pages that are written by programs say what options and methods are."""

from __future__ import annotations

import re

from experiments import methods_pages, options_page
from fedpersonal.tasks.task import all_tasks


def test_the_page_of_options_is_up_to_date():
    written = options_page.PAGE.read_text(encoding="utf-8")
    assert written == options_page.page(), "run python -m experiments.options_page"


def test_the_pages_of_methods_are_up_to_date():
    written = {p.name: p.read_text(encoding="utf-8") for p in methods_pages.FOLDER.glob("*.md")}
    assert written == methods_pages.pages(), "run python -m experiments.methods_pages"
    types = methods_pages.STUB.read_text(encoding="utf-8")
    assert types == methods_pages.signatures(), "run python -m experiments.methods_pages"


def test_every_method_of_every_task_has_its_section():
    text = "\n".join(path.read_text(encoding="utf-8") for path in methods_pages.FOLDER.glob("*.md"))
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    names = {name for task in all_tasks().values() for name in task.methods}
    assert len(names) > 40 and names <= {*sections}
    assert all(sections.count(name) == 1 for name in names)
