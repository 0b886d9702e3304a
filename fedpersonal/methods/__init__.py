"""One short file per paper, which lists the phases of its methods."""

from __future__ import annotations
