"""What tests of audits share."""

from __future__ import annotations

import pytest

from fedpersonal import runtime


@pytest.fixture(scope="module", autouse=True)
def _not_compiled():
    """Compiling takes longer than these rounds."""
    runtime.use_runtime("local", compile="never")
    yield
    runtime.use_runtime("local")


@pytest.fixture(name="clients", scope="module")
def _clients(draw_ratings):
    """Four clients, of 7 items."""
    return draw_ratings([11, 9, 10, 4], num_items=7)
