"""What clients keep from round to round: the store, a cohort's rows, their noisy mean."""

from __future__ import annotations
