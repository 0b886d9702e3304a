"""The examples of public docstrings give what they say."""

from __future__ import annotations

import doctest
import re

import numpy as np
import pandas as pd
import pytest

import fedpersonal as fp

# isort: split
import tensorflow as tf

pytestmark = pytest.mark.usefixtures("not_compiled")
NAMES = (
    "Algorithm",
    "ClientDataset",
    "DifferentialPrivacy",
    "GradientPhase",
    "Method",
    "Participation",
    "PartitionedModel",
    "TrainedModel",
    "Trainer",
    "clients_from_table",
    "load_run",
    "use_runtime",
)


@pytest.fixture(name="made", scope="module")
def _made():
    """What examples have made so far: the names of each."""
    return {"": {"fp": fp, "np": np, "pd": pd, "tf": tf}}


def names_after(name, made):
    """Runs an example, once, and first the one that it says it continues; returns its names."""
    if name not in made:
        documented = getattr(fp, name)
        continued = re.search(r"With .* of `(\w+)`'s example", documented.__doc__)
        known = dict(names_after(continued[1] if continued else "", made))
        found = doctest.DocTestFinder(recurse=False).find(documented, name, globs=known)
        (example,) = (test for test in found if test.examples)
        assert 3 <= sum(e.source.count("\n") for e in example.examples) <= 6
        said = []
        result = doctest.DocTestRunner().run(example, out=said.append, clear_globs=False)
        assert not result.failed, "".join(said)
        made[name] = example.globs
    return made[name]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_what_it_says(name, made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names_after(name, made)
