"""The supervisor with a stand-in for TFF's worker: who gets in, and how all comes to its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile

import psutil
import pytest

from fedpersonal.runtime import supervisor

# A worker that listens on every interface and sends back what it gets.
_STAND_IN = """
import socket, sys
with socket.create_server(("", int(sys.argv[-1].split("=")[1]))) as server:
    while True:
        guest, _ = server.accept()
        while data := guest.recv(2**16):
            guest.sendall(data)
"""

# A program that starts a supervisor, forks, and says who all are.
_PROGRAM = """
import os, signal, socket, subprocess, sys, time
mine, its_end = socket.socketpair()
process = subprocess.Popen(sys.argv[1:], stdin=its_end)
its_end.close()
lines = mine.makefile()
assert lines.readline() == "started\\n"
path = lines.readline().split()[1]
fork = os.fork()
if fork == 0:
    time.sleep(60)
print(fork, process.pid, path, flush=True)
"""

needs_own_network = pytest.mark.usefixtures("own_network")

_libc = ctypes.CDLL(None)
_CAP_SYS_ADMIN, _PR_CAPBSET_DROP = 21, 24


def _command(mode, worker=_STAND_IN):
    python = [sys.executable, "-I"]
    return [*python, supervisor.__file__, mode, tempfile.mkdtemp(), sys.executable, "-c", worker]


@contextlib.contextmanager
def _started(mode="closed", *, worker=_STAND_IN, before=None, first=""):
    """Starts a supervisor; yields it, its control socket and what it says there."""
    mine, its_end = socket.socketpair()
    with its_end:
        command = _command(mode, worker)
        if first:  # Lines of Python that come before it in the same process.
            again = f"{first}\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])"
            command = [sys.executable, "-c", again, *command]
        process = psutil.Popen(command, stdin=its_end, preexec_fn=before)
    mine.settimeout(60)
    with mine, mine.makefile() as lines:
        yield process, mine, lines
        with contextlib.suppress(OSError):
            mine.shutdown(socket.SHUT_RDWR)
        process.wait(60)


def _connected(lines):
    """Returns the connection to a worker that is up, and the socket's path."""
    assert lines.readline() == "started\n"
    step, path = lines.readline().split()
    assert step == "ready"
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(path)
    return connection, path


def _echo(connection, data):
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        got += connection.recv(2**20)
    return got == data


def _worker_of(process):
    (worker,) = process.children()
    return worker, int(worker.cmdline()[-1].split("=")[1])


def _connect(path_or_address, family=socket.AF_UNIX):
    with socket.socket(family) as connection:
        connection.settimeout(5)
        connection.connect(path_or_address)
        if connection.recv(1) == b"":
            raise EOFError


def _connect_as_another_user(path):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    _connect(path)


@needs_own_network
def test_bytes_pass_both_ways_and_nothing_is_left_on_disk():
    with _started() as (_, _, lines):
        connection, path = _connected(lines)
        assert _echo(connection, b"a")
        assert _echo(connection, os.urandom(3 * 2**20 + 1))
        assert not os.path.exists(os.path.dirname(path))


@needs_own_network
def test_the_worker_listens_in_no_network_that_others_have(in_fork, listening, own_address):
    with _started() as (process, _, lines):
        connection, _ = _connected(lines)
        worker, port = _worker_of(process)
        assert not listening(worker.pid) | listening(process.pid)
        for address in ("127.0.0.1", own_address):
            assert in_fork(_connect, (address, port), socket.AF_INET) == "ConnectionRefusedError"
        assert _echo(connection, b"still there")


def test_an_open_worker_is_what_these_tests_would_find(listening, own_address):
    with _started("open") as (process, _, lines):
        connection, _ = _connected(lines)
        worker, port = _worker_of(process)
        assert listening(worker.pid)
        assert _echo(connection, b"hello")
        with socket.create_connection((own_address, port), timeout=5):
            pass


@needs_own_network
def test_the_socket_is_for_the_process_that_started_it(in_fork):
    with _started() as (_, _, lines):
        assert lines.readline() == "started\n"
        path = lines.readline().split()[1]
        assert in_fork(_connect, path) == "EOFError"
        if os.geteuid() == 0:
            assert in_fork(_connect_as_another_user, path) == "PermissionError"
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        assert _echo(connection, b"hello")


@needs_own_network
def test_without_the_rights_of_an_administrator(listening):
    def drop():
        _libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN)

    with _started(before=drop) as (process, _, lines):
        connection, _ = _connected(lines)
        assert _echo(connection, b"hello")
        assert not listening(_worker_of(process)[0].pid)


@needs_own_network
def test_a_system_that_permits_no_network_of_its_own_is_told_of(forbid_own_network):
    with _started(first=forbid_own_network) as (process, _, lines):
        assert lines.readline() == "refused [Errno 28] unshare: No space left on device\n"
        assert not process.children()


@needs_own_network
@pytest.mark.parametrize("killed", ["supervisor", "worker", "program's side"])
def test_all_end_with_one(killed, gone):
    with _started() as (process, control, lines):
        connection, _ = _connected(lines)
        assert _echo(connection, b"hello")
        worker, _ = _worker_of(process)
        if killed == "program's side":
            control.shutdown(socket.SHUT_WR)
        else:
            (process if killed == "supervisor" else worker).kill()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        process.wait(10)
        assert gone(worker.pid)
        reason = {
            "worker": "it ended by signal 9; was the memory short?",
            "program's side": "the program ended",
        }
        assert lines.readline() == (f"failed {reason[killed]}\n" if killed in reason else "")


def test_a_worker_that_is_missing_is_told_of():
    mine, its_end = socket.socketpair()
    command = [sys.executable, supervisor.__file__, "open", tempfile.mkdtemp(), "/missing"]
    with its_end, mine, mine.makefile() as lines:
        subprocess.run(command, stdin=its_end, timeout=60)
        assert lines.readline().startswith("failed [Errno 2]")


def test_a_worker_that_does_not_start_is_told_of():
    with _started("open", worker="raise SystemExit(3)") as (process, _, lines):
        assert lines.readline() == "started\n"
        assert lines.readline() == "failed it ended with status 3\n"
        process.wait(10)


@needs_own_network
def test_all_end_with_the_program_though_its_fork_lives_on(gone):
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *_command("closed")], stdout=subprocess.PIPE, text=True
    )
    fork, pid, path = program.stdout.readline().split()
    worker, _ = _worker_of(psutil.Process(int(pid)))
    program.kill()
    program.wait()
    assert gone(int(pid), worker.pid)
    assert not os.path.exists(os.path.dirname(path))
    os.kill(int(fork), signal.SIGKILL)
