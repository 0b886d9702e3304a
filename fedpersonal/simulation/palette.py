"""The colours of pictures and pages, each of one meaning everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

# Told apart side by side, and from gray.
COLORS = tuple("#2f6db3 #d1602b #3a8f5c #8a5bb5 #b3862f #c2476b #2a9d9d #7a4b2a".split())

# Light, dark. They differ in brightness too, for who cannot tell red from green.
ROLES = {
    "paper": ("#ffffff", "#16181d"),
    "panel": ("#f6f7f9", "#1f232b"),
    "ink": ("#1b1f24", "#e8eaed"),
    "quiet": ("#5b6470", "#a3acb8"),
    "grid": ("#dde1e6", "#343a44"),
    "training": ("#8c8478", "#a39a8c"),
    "before": ("#8a93a0", "#8b95a3"),
    "after": ("#2f6db3", "#6fa8e8"),
    "hurt": ("#b3261e", "#ff8a80"),
    "device": ("#3a8f5c", "#66c48c"),
    "wire": ("#b3862f", "#e0b35c"),
    "server": ("#2f6db3", "#6fa8e8"),
    "focus": ("#a2008a", "#ff9cf0"),
}

# For series of curves, in this order; on dark paper they are lighter.
_DARK_SERIES = "#6fa8e8 #f0925c #6cc793 #b998e0 #dcb45c #ee82a4 #5fd0d0 #c08f6a".split()
# Two more than pictures have: pages compare ten runs.
SERIES = (
    *zip(COLORS, _DARK_SERIES),
    ("#4d4d4d", "#bdbdbd"),
    ("#8c9a1e", "#c6d45a"),
)


# The series of well-known methods; others take what is free.
_METHODS = {
    **{"fed_recon": 0, "fed_avg": 1, "furl": 2, "fedperc": 3, "fed_avg_finetuning": 4},
    **{"fed_per": 5, "ditto": 6, "pfedrec": 7, "centralized": 8, "local_only": 9},
}


def series_of(methods: Sequence[str]) -> list[int]:
    """Returns the place in `SERIES` of each of some methods: its own one, if it is still free."""
    wanted = [_METHODS.get(method) for method in methods]
    is_first = [series not in wanted[:place] for place, series in enumerate(wanted)]
    free = [place for place in range(len(SERIES)) if place not in wanted] or [*range(len(SERIES))]
    others = itertools.cycle(free)
    return [
        next(others) if series is None or not first else series
        for series, first in zip(wanted, is_first)
    ]


def css_variables(*, dark: bool) -> str:
    """Returns the colours as declarations of CSS: `--after: #2f6db3; ... --series-0: ...`."""
    named = {**ROLES, **{f"series-{i}": pair for i, pair in enumerate(SERIES)}}
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in named.items())
