"""The reference page of options says what the options are."""

from __future__ import annotations

from experiments import options_page


def test_the_page_is_up_to_date():
    written = options_page.PAGE.read_text(encoding="utf-8")
    assert written == options_page.page(), "run python -m experiments.options_page"
