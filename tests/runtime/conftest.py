"""Who reaches a worker, and what is left of a process."""

from __future__ import annotations

import ctypes
import os
import socket
import time

import psutil
import pytest

from fedpersonal.runtime import supervisor

_libc = ctypes.CDLL(None)


@pytest.fixture(name="in_fork", scope="session")
def _in_fork():
    """Calls a function in a fork; returns 'done' or the name of its error."""

    def in_fork(function, *arguments):
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

    return in_fork


@pytest.fixture(name="own_network", scope="session")
def _own_network(in_fork):
    """Skips the tests of closed workers where the system permits none."""
    if in_fork(supervisor._enter_own_network) != "done":
        pytest.skip("The system lets nobody have a network of its own.")


# A program's own first lines: a fork of a process that has used gRPC may not do this.
_FORBID = f"""
import ctypes, os
user, group = os.geteuid(), os.getegid()
assert ctypes.CDLL(None, use_errno=True).unshare({supervisor._CLONE_NEWUSER}) == 0
for name, line in (
    ("self/setgroups", "deny"),
    ("self/uid_map", f"0 {{user}} 1"),
    ("self/gid_map", f"0 {{group}} 1"),
    ("sys/user/max_net_namespaces", "0"),
):
    with open(f"/proc/{{name}}", "w", encoding="ascii") as file:
        file.write(line)
"""


@pytest.fixture(name="forbid_own_network", scope="session")
def _forbid_own_network():
    """Lines of Python after which a process and its children have no network of their own."""
    return _FORBID


@pytest.fixture(name="tells_threads", scope="session")
def _tells_threads():
    """Begins a program that tells at its very end, as an error, whether gRPC still runs in it."""
    return """
import atexit, pathlib, sys
def tell_threads():
    names = {path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")}
    if any(name in names for name in ("event_engine", "grpc_global_tim")):
        print(sorted(names), file=sys.stderr)
atexit.register(tell_threads)
"""


@pytest.fixture(name="listening", scope="session")
def _listening():
    """Finds the sockets of a process that listen in this process's own network."""

    def listening(pid):
        inodes = set()
        for name in ("tcp", "tcp6"):
            with open(f"/proc/self/net/{name}", encoding="ascii") as table:
                rows = [line.split() for line in table][1:]
            inodes |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
        folder = f"/proc/{pid}/fd"
        return inodes & {os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)}

    return listening


@pytest.fixture(name="own_address", scope="session")
def _own_address():
    """An address of this machine that others can reach, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return any_socket.getsockname()[0]


@pytest.fixture(name="gone", scope="session")
def _gone():
    """Says whether processes end within 10 seconds; nobody may have waited for them."""

    def is_alive(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def gone(*pids):
        deadline = time.monotonic() + 10
        while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        return not any(is_alive(pid) for pid in pids)

    return gone
