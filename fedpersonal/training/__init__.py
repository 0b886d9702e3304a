"""Everything around the rounds of a simulation: sampling, the loop, checkpoints, metrics."""

from __future__ import annotations
