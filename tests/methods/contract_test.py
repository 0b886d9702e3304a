"""Every method keeps what all of them promise: those of files that are dropped in, too."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import pytest

import fedpersonal as fp
from benchmarks.tiny import pairs_with
from fedpersonal.errors import TrainingError
from fedpersonal.methods import method as method_module
from fedpersonal.methods.method import methods
from fedpersonal.suite.testing import check_method
from fedpersonal.tff.optimizers import build_sgdm

pytestmark = pytest.mark.usefixtures("not_compiled")
METHODS = methods()
# tests/suite/tasks/contract_test.py runs those of `benchmarks.tiny`; one of them runs here, too.
ELSEWHERE = {name for _, name in pairs_with("")} - {"fed_rep"}


def rows():
    """Yields the methods; those with a page are exhaustive, but for one."""
    pages = pathlib.Path(__file__).parents[2] / "docs" / "methods"
    for name in sorted({*METHODS} - ELSEWHERE):
        page = pages / f"{METHODS[name].__module__.rpartition('.')[2]}.md"
        is_exhaustive = page.exists() and name != "fed_rep"
        yield pytest.param(name, marks=[pytest.mark.exhaustive] * is_exhaustive)


@pytest.mark.parametrize("name", rows())
def test_a_method_keeps_its_promises(name):
    check_method(METHODS[name])


class Idle(fp.Method, name="idle"):
    """A method whose steps lead nowhere."""

    def phases(self):
        return (dataclasses.replace(self.phase(), optimizer=build_sgdm(0.0)),)


class Stepless(fp.Method, name="stepless"):
    """A method that takes no steps."""

    def phases(self):
        return (self.phase(epochs=0),)


class Moody(fp.Method, name="moody"):
    """A method that is another one each time."""

    moods = itertools.count(1)

    def phases(self):
        return (self.phase(epochs=next(self.moods)),)


@pytest.mark.exhaustive(
    but=(
        "Idle-AssertionError-two rounds change neither",
        "Stepless-TrainingError-in rounds 1 to 2: .* no phase of the method takes a step",
    )
)
@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (Idle, AssertionError, "two rounds change neither"),
        (Stepless, TrainingError, "in rounds 1 to 2: .* no phase of the method takes a step"),
        (Moody, AssertionError, "clients in separate shards: h"),
    ],
)
def test_a_broken_promise_is_named(method, error, message, monkeypatch):
    monkeypatch.setattr(method_module, "_registered", {})
    with pytest.raises(error, match=message):
        check_method(method)
