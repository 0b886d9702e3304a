"""Cases of layers, variables and what a model captures."""

from __future__ import annotations

from tests.model.keras_parity import Case

CASES: list[Case] = []
