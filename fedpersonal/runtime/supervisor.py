"""Runs TFF's worker where nobody else reaches it, and ends it with the program that wants it.

TFF's worker listens on every network interface, asks nobody who they are, and runs any TensorFlow
graph. So it gets a network of its own, a Linux network namespace without any way out. The program
reaches it through a Unix socket in a folder that only its user may enter; the supervisor lets in
one connection, of the process that started it, removes socket and folder, and hands bytes on.

This is a program of its own, on the standard library alone:
`python supervisor.py closed|open folder worker_binary [arguments]`, with an empty folder that its
user alone may enter. Its stdin is a socket whose other end the program holds. There it says, a line
each, `refused <reason>` where the system permits no such network, `started`, `ready <socket>`,
`failed <reason>`. It ends, with the worker, as soon as the program does, even by SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import NoReturn

NAME = "tff_supervisor"  # As the system lists it.

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CHUNK = 2**20

_libc = ctypes.CDLL(None, use_errno=True)


class _Supervisor:
    """One worker, and the one connection to it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._program = os.getppid()
        self._control = socket.socket(fileno=0)
        self._worker: subprocess.Popen[bytes] | None = None
        self._ending = threading.Lock()

    def run(self, mode: str, command: list[str]) -> NoReturn:
        """Starts the worker and hands bytes on, until the worker or the program ends."""
        if mode == "closed":
            try:
                _enter_own_network()  # Before there are threads, as the kernel wants it.
            except OSError as error:
                self._end(str(error), step="refused")
        try:
            port = _unused_port()
            self._worker = subprocess.Popen(
                [*command, f"--port={port}"],
                stdin=subprocess.DEVNULL,
                # This thread is the main one, and so ends with the process.
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
            self._control.sendall(b"started\n")
            for watch in (self._await_program, self._await_worker):
                threading.Thread(target=watch, daemon=True).start()
            worker = _connect(port)
            program = self._let_program_in()
        except OSError as error:
            self._end(str(error))
        threading.Thread(target=_hand_on, args=(program, worker), daemon=True).start()
        _hand_on(worker, program)
        time.sleep(1.0)  # Whoever watches the worker knows better why.
        self._end("the connection to it broke")

    def _let_program_in(self) -> socket.socket:
        """Returns a connection of the program's own process; others are turned away."""
        path = os.path.join(self._folder, "worker")
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(path)
            door.listen()
            self._control.sendall(f"ready {path}\n".encode())
            while True:
                guest, _ = door.accept()
                who = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", who)[0] == self._program:
                    break
                guest.close()
        self._remove_folder()
        return guest

    def _await_program(self) -> None:
        """Ends all when the program ends; its forks may keep its end of the socket open."""
        while os.getppid() == self._program:
            if select.select([self._control], [], [], 1.0)[0]:
                break
        self._end("the program ended")

    def _await_worker(self) -> None:
        assert self._worker is not None
        status = self._worker.wait()
        how = f"with status {status}" if status >= 0 else f"by signal {-status}"
        self._end(f"it ended {how}" + "; was the memory short?" * (status == -signal.SIGKILL))

    def _end(self, reason: str, step: str = "failed") -> NoReturn:
        self._ending.acquire()  # Never given back: the first reason counts.
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
        self._remove_folder()
        with contextlib.suppress(OSError):
            self._control.sendall(f"{step} {reason}\n".encode())
        os._exit(0)

    def _remove_folder(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, "worker"))
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)


def _enter_own_network() -> None:
    """Moves this process into a network that holds nothing but its own loopback."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNET) != 0:  # Only root may do that without more ado.
        if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, line in maps.items():
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _unused_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


def _connect(port: int) -> socket.socket:
    """Connects to the worker once it listens; should it end before, its watch ends all."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        time.sleep(0.01)


def _hand_on(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            target.sendall(buffer[:count])
    for end in (source, target):  # Wakes the other direction, and tells both sides.
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    _libc.prctl(_PR_SET_NAME, NAME.encode())
    _Supervisor(sys.argv[2]).run(sys.argv[1], sys.argv[3:])
