"""What tests of audits share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _without_compiling(not_compiled):
    """No audit is compiled."""


@pytest.fixture(name="clients", scope="module")
def _clients(draw_ratings):
    """Four clients, of 7 items."""
    return draw_ratings([11, 9, 10, 4], num_items=7)
