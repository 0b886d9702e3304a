"""The supervisor with a stand-in for TFF's worker: who gets in, and how all comes to its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

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
    time.sleep(1000)
print(fork, process.pid, path, flush=True)
"""

_libc = ctypes.CDLL(None, use_errno=True)
_CAP_SYS_ADMIN, _PR_CAPBSET_DROP = 21, 24


def _in_fork(function, *arguments):
    """Calls a function in a fork; returns 'done' or the name of its error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments)
            told = "done"
        except BaseException as error:
            told = type(error).__name__
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return told


needs_own_network = pytest.mark.skipif(
    _in_fork(supervisor._enter_own_network) != "done",
    reason="The system lets nobody have a network of its own.",
)


def forbid_own_network():
    """Lets this process and its children have no network of their own."""
    user, group = os.geteuid(), os.getegid()
    assert _libc.unshare(supervisor._CLONE_NEWUSER) == 0
    for name, line in (
        ("self/setgroups", "deny"),
        ("self/uid_map", f"0 {user} 1"),
        ("self/gid_map", f"0 {group} 1"),
        ("sys/user/max_net_namespaces", "0"),
    ):
        with open(f"/proc/{name}", "w", encoding="ascii") as file:
            file.write(line)


def _command(mode, worker=_STAND_IN):
    return [sys.executable, "-I", supervisor.__file__, mode, sys.executable, "-c", worker]


@contextlib.contextmanager
def _started(mode="closed", *, worker=_STAND_IN, before=None):
    """Starts a supervisor; yields it, its control socket and what it says there."""
    mine, its_end = socket.socketpair()
    with its_end:
        process = psutil.Popen(_command(mode, worker), stdin=its_end, preexec_fn=before)
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


def listening(pid):
    """The sockets of a process that listen in this process's own network."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{name}", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
        inodes |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    folder = f"/proc/{pid}/fd"
    return inodes & {os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)}


def own_address():
    """An address of this machine that others can reach, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return any_socket.getsockname()[0]


def gone(*pids):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        if not [pid for pid in alive if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]:
            return True
        time.sleep(0.05)
    return False


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


def _connect_from_another_network(address):
    supervisor._enter_own_network()
    _connect(address, socket.AF_INET)


@needs_own_network
def test_bytes_pass_both_ways_and_nothing_is_left_on_disk():
    with _started() as (_, _, lines):
        connection, path = _connected(lines)
        assert _echo(connection, b"a")
        assert _echo(connection, os.urandom(3 * 2**20 + 1))
        assert not os.path.exists(os.path.dirname(path))


@needs_own_network
def test_the_worker_listens_in_no_network_that_others_have():
    with _started() as (process, _, lines):
        connection, _ = _connected(lines)
        worker, port = _worker_of(process)
        assert not listening(worker.pid) | listening(process.pid)
        for address in ("127.0.0.1", own_address()):
            assert _in_fork(_connect, (address, port), socket.AF_INET) == "ConnectionRefusedError"
            told = _in_fork(_connect_from_another_network, (address, port))
            assert told in ("ConnectionRefusedError", "OSError")
        assert _echo(connection, b"still there")


def test_an_open_worker_is_what_these_tests_would_find():
    with _started("open") as (process, _, lines):
        connection, _ = _connected(lines)
        worker, port = _worker_of(process)
        assert listening(worker.pid)
        assert _echo(connection, b"hello")
        with socket.create_connection((own_address(), port), timeout=5):
            pass


@needs_own_network
def test_the_socket_is_for_the_process_that_started_it():
    with _started() as (_, _, lines):
        assert lines.readline() == "started\n"
        path = lines.readline().split()[1]
        assert _in_fork(_connect, path) == "EOFError"
        if os.geteuid() == 0:
            assert _in_fork(_connect_as_another_user, path) == "PermissionError"
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        assert _echo(connection, b"hello")


@needs_own_network
def test_without_the_rights_of_an_administrator():
    def drop():
        _libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN)

    with _started(before=drop) as (process, _, lines):
        connection, _ = _connected(lines)
        assert _echo(connection, b"hello")
        assert not listening(_worker_of(process)[0].pid)


@needs_own_network
def test_a_system_that_permits_no_network_of_its_own_is_told_of():
    with _started(before=forbid_own_network) as (process, _, lines):
        assert lines.readline() == "failed [Errno 28] unshare: No space left on device\n"
        assert not process.children()


@needs_own_network
@pytest.mark.parametrize("killed", ["supervisor", "worker", "program's side"])
def test_all_end_with_one(killed):
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
        reason = {"worker": "it ended by signal 9", "program's side": "the program ended"}
        assert lines.readline() == (f"failed {reason[killed]}\n" if killed in reason else "")


def test_a_worker_that_does_not_start_is_told_of():
    with _started("open", worker="raise SystemExit(3)") as (process, _, lines):
        assert lines.readline() == "started\n"
        assert lines.readline() == "failed it ended with status 3\n"
        process.wait(10)


@needs_own_network
def test_all_end_with_the_program_though_its_fork_lives_on():
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
