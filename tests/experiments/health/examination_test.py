"""Checks that hang, crash or raise, and what comes after them."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from experiments.health.examination import FAILED, OK, Asked, Check, Finding, examine
from fedpersonal.errors import UserError


def fine(asked):
    return Finding(OK, f"{os.getpid()} {asked.output_dir}")


def raise_it(error):
    raise error


def crash(asked):
    faulthandler.disable()  # pytest's, which would have the last word.
    os.write(2, b"the reason\n\n")
    os.kill(os.getpid(), signal.SIGILL)


@pytest.mark.parametrize(
    ("find", "what", "advice"),
    [
        (lambda asked: time.sleep(600), "it hangs: no answer within 0.5 s", ""),
        (crash, "Python was ended by signal SIGILL: the reason", "AVX"),
        (lambda asked: os._exit(3), "Python was ended with status 3", ""),
        (lambda asked: raise_it(ImportError("no x")), "ImportError: no x", "make install"),
        (lambda asked: raise_it(UserError("it is gone")), "it is gone", ""),
        (lambda asked: raise_it(SystemExit("so\n long")), "SystemExit: so long", ""),
    ],
    ids=["hangs", "crashes", "ends", "cannot import", "mistakes", "exits"],
)
def test_one_that_fails_is_found_and_the_others_are_made(find, what, advice):
    checks = [
        Check("first", fine),
        Check("ill", find, 0.5),
        Check("second", fine),
        Check("in need", fine, needs="ill"),
        Check("content", fine, needs="second"),
    ]
    found = [(check.name, finding) for check, finding, _ in examine(checks, Asked("there"))]
    assert [name for name, _ in found] == [check.name for check in checks]
    (_, first), (_, ill), (_, second), (_, in_need), (_, content) = found
    assert (ill.status, ill.what) == (FAILED, what) and advice in ill.advice
    assert in_need == Finding(FAILED, "not tried, as the check of ill failed")
    assert {first.status, second.status, content.status} == {OK}
    assert first.what.endswith(" there") and not first.what.startswith(f"{os.getpid()} ")


def test_what_a_check_has_started_ends_with_it(tmp_path):
    def start_and_hang(asked):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (tmp_path / "child").write_text(str(child.pid))
        time.sleep(600)

    found = examine([Check("ill", start_and_hang, 2.0), Check("next", fine)], Asked())
    assert next(found)[1].status == FAILED
    child, deadline = int((tmp_path / "child").read_text()), time.monotonic() + 10
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)
    found.close()


@pytest.fixture(name="no_collection")
def _no_collection():
    """What is raised while Python calls back about a collection is lost."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_ctrl_c_does_not_wait_for_one_that_hangs():
    before, began = set(psutil.Process().children()), time.monotonic()
    main = threading.get_ident()
    interrupt = threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        list(examine([Check("ill", lambda asked: time.sleep(600), 500.0)], Asked()))
    assert time.monotonic() - began < 15
    assert set(psutil.Process().children()) == before


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_process_is_left():
    before = set(psutil.Process().children())
    assert [finding.status for _, finding, _ in examine([Check("a", fine)], Asked())] == [OK]
    assert set(psutil.Process().children()) == before
