"""The TFF process: shards of a cohort, broadcast, aggregation, server, boundary."""

from __future__ import annotations
