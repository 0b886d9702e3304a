"""One paper, one short file: each lists the phases of its method."""

from __future__ import annotations
