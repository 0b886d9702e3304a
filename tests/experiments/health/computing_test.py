"""Checks of runtimes, in worlds where something is wrong."""

from __future__ import annotations

import functools
import sys

import pytest

from experiments.health import computing
from experiments.health.examination import FAILED, OK, WARNING, Asked, Check, _find
from fedpersonal import runtime
from fedpersonal.errors import UserError

ASKED = Asked()
PLAIN = functools.partial(computing.check_local, compile=False)
COMPILED = functools.partial(computing.check_local, compile=True)


@pytest.fixture(autouse=True)
def _default_runtime():
    yield
    runtime.use_runtime("local")


def test_an_import_that_fails(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_federated", None)
    finding = _find(Check("import", computing.check_import), ASKED)
    assert finding.status == FAILED and "tensorflow_federated" in finding.what
    assert "make install" in finding.advice


def test_an_import(monkeypatch):
    assert computing.check_import(ASKED).status == OK
    monkeypatch.setattr(computing, "_SLOW_IMPORT", -1.0)
    assert computing.check_import(ASKED).status == WARNING


@pytest.mark.parametrize("check", [PLAIN, COMPILED], ids=["plain", "compiled"])
def test_a_wrong_sum(monkeypatch, check):
    assert check(ASKED).status == OK
    monkeypatch.setattr(computing, "_SUM_OF_SQUARES", 15.0)
    finding = check(ASKED)
    assert finding.status == FAILED and "14, not 15" in finding.what


def test_work_that_is_not_compiled(monkeypatch):
    use = runtime.use_runtime
    monkeypatch.setattr(runtime, "use_runtime", lambda name, compile: use(name, compile=False))
    finding = COMPILED(ASKED)
    assert finding.status == FAILED and "'local', not 'local, compiled'" in finding.what
    assert "--nocompile" in finding.advice


def refuse(*_, **__):
    raise UserError("it cannot be\nshut off. Take another")


def test_ray(monkeypatch):
    monkeypatch.setattr(runtime, "check_runtime", refuse)
    finding = computing.check_ray(ASKED)
    assert finding.status == OK and "make cluster_install" in finding.advice
    monkeypatch.setattr(runtime, "check_runtime", lambda name: None)
    monkeypatch.setattr(runtime, "use_runtime", refuse)
    assert _find(Check("ray", computing.check_ray), ASKED).status == FAILED
    monkeypatch.setattr(runtime, "use_runtime", lambda name: None)
    monkeypatch.setattr(runtime, "describe_runtime", lambda: "ray, compiled")
    finding = computing.check_ray(ASKED)
    assert finding.status == OK and "processors" in finding.what
