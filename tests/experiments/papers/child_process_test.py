"""Work in a process of its own: its errors, and its end with the parent's."""

from __future__ import annotations

import os
import signal

import pytest

from experiments.papers.child_process import run_in_child
from fedpersonal.data.checks import check_count
from fedpersonal.errors import UserError


def test_it_works_in_another_process(tmp_path):
    run_in_child(os.mkdir, str(tmp_path / "made"))
    assert (tmp_path / "made").is_dir()


def test_mistakes_of_the_user_come_back():
    with pytest.raises(UserError, match="rounds"):
        run_in_child(check_count, "rounds", -1)


def test_other_errors_are_printed_and_stop_the_rest(capfd):
    with pytest.raises(RuntimeError, match="int has failed"):
        run_in_child(int, "many")
    assert "ValueError" in capfd.readouterr().err


def test_a_killed_child_is_told_of():
    with pytest.raises(UserError, match="signal 9"):
        run_in_child(signal.raise_signal, int(signal.SIGKILL))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_with_its_parent(number, status, signalled):
    program = (
        "import sys, time\n"
        "from experiments import command\n"
        "from experiments.papers.child_process import run_in_child\n"
        "command.start()\n"
        "try:\n"
        "    run_in_child(time.sleep, 3600)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    returned, errors, children = signalled(program, number)
    assert (returned, errors) == (status, "")
    assert not any(child.is_running() for child in children)
