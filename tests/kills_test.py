"""A run that was killed at any moment goes on to the same bits."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.exhaustive(but=("5-plain-60-rounds0", "5-kept-80-rounds1"))
@pytest.mark.parametrize(
    ("kind", "least", "rounds"), [("plain", 60, {0, 3, 6}), ("kept", 80, {0, 4, 6})]
)
@pytest.mark.parametrize("every", [5, 1])
def test_killed_at_any_moment_goes_on_to_the_same_bits(tmp_path, kind, least, rounds, every):
    """Usually at every fifth step: each kind of step is among them."""
    # Forks: they must come from a process without threads, hence not from this one.
    driver = pathlib.Path(__file__).with_name("kills.py")
    finished = subprocess.run(
        [sys.executable, driver, tmp_path, kind, str(every)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["different"] == []
    assert report["kills"] >= least // every
    # Some kills came before the first checkpoint, others after the last.
    assert rounds <= set(report["resumed_from"])
