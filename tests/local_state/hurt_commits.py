"""Hurts commits of a local state store at each of SQLite's own file operations in turn.

Usage: hurt_commits.py FOLDER. Prints a JSON object of reports: `killed`, the process is killed
there; `full`, a write finds the disk full; `stays_full`, so do all later ones, also those that undo
the commit. A report says in how many places, and in which of them it was followed by anything but
the former round or, after a kill, the new one in whole. Instead of the object it prints null where
SQLite lets nobody at its file operations.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import pathlib
import signal
import sys

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.local_state.store import LocalStateStore, SavedRun
from fedpersonal.model.partition import VariableSpec

VARIABLES = [VariableSpec("user", "user", (64,), tf.float32, True, None)]
IDS = [f"client{number}" for number in range(60)]
# Pages; far fewer than a commit touches, so that the database is written to before COMMIT, too.
CACHE_SIZE = 5

_CHANGING = ("open", "write", "pwrite", "pwrite64", "ftruncate", "unlink")
_SystemCall = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *[ctypes.c_size_t] * 4, use_errno=True)


class _FileSystem(ctypes.Structure):
    """The beginning of SQLite's `sqlite3_vfs` and its functions about system calls."""

    _fields_ = [
        ("numbers", ctypes.c_int * 3),
        ("pointers", ctypes.c_void_p * 16),
        (
            "set_system_call",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        ),
        (
            "get_system_call",
            ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
        ),
    ]


def _sqlite_library():
    """Returns the library that Python's module uses, or None if its functions are hidden."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    for path in [None, *{line.split()[-1] for line in maps if "libsqlite3" in line}]:
        library = ctypes.CDLL(path)
        if hasattr(library, "sqlite3_vfs_find"):
            return library
    return None


@contextlib.contextmanager
def watched(before):
    """Calls `before` ahead of each system call that changes files; it may return an errno."""
    find = _sqlite_library().sqlite3_vfs_find
    find.restype = ctypes.POINTER(_FileSystem)
    system = find(None)
    own = {}

    def watch(name):
        address = system.contents.get_system_call(system, name)
        original = _SystemCall(address)

        def call(*arguments):
            failure = before(name.decode())
            if failure:
                ctypes.set_errno(failure)
                return -1
            return original(*arguments)

        own[name] = address, _SystemCall(call)
        system.contents.set_system_call(system, name, ctypes.cast(own[name][1], ctypes.c_void_p))

    for name in _CHANGING:
        if system.contents.get_system_call(system, name.encode()):
            watch(name.encode())
    try:
        yield
    finally:
        for name, (address, _) in own.items():
            system.contents.set_system_call(system, name, address)


def row_of(round_number):
    return bytes([round_number]) * 256


def open_store(path):
    store = LocalStateStore.open(path, VARIABLES)
    store._connection.execute(f"PRAGMA cache_size = {CACHE_SIZE}")
    return store


def commit(store, round_number):
    row = row_of(round_number)
    store.commit(dict.fromkeys(IDS, row), SavedRun(round_number, row))


def round_in(store):
    """Returns the round that the store holds in whole: its state and everyone's rows.

    It is 0 for an empty store and None for a mixture or damage.
    """
    sound = store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    saved = store.saved()
    round_number = saved.round_number if saved else 0
    is_whole = set(store.read(IDS)) == {row_of(round_number) if saved else None}
    agrees = saved is None or saved.state == row_of(round_number)
    return round_number if sound and is_whole and agrees else None


def in_child(function, *arguments):
    """Returns the exit status of a forked call of the function."""
    child = os.fork()
    if child == 0:
        function(*arguments)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_and_be_killed(number, path, done):
    left = itertools.count(number, -1)

    def kill(name):
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with watched(kill):
        store = open_store(path)
        for round_number in (1, 2):
            commit(store, round_number)
            done.write_text(str(round_number))
        store.close()


def kill_everywhere(base):
    report = {"places": 0, "found": [], "wrong": []}
    for number in itertools.count():
        path, done = base / f"killed{number}", base / f"done{number}"
        done.write_text("0")
        status = in_child(write_and_be_killed, number, path, done)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        report["places"] += 1
        store = open_store(path)
        found, before = round_in(store), int(done.read_text())
        report["found"].append(found)
        if found not in (before, before + 1):
            report["wrong"].append([number, before, found])
        commit(store, 3)
        if round_in(store) != 3:
            report["wrong"].append([number, "afterwards"])
        store.close()
    return report


def find_disk_full(number, store, *, stays_full):
    """Returns the message of a commit whose write of this number fails, or None if it has fewer."""
    left = itertools.count(number, -1)

    def fail(name):
        if "write" not in name:
            return 0
        place = next(left)
        return errno.ENOSPC if place == 0 or (stays_full and place < 0) else 0

    try:
        with watched(fail):
            commit(store, 2)
    except UserError as error:
        return str(error)
    return None


def fill_everywhere(base, *, stays_full):
    report = {"places": 0, "wrong": []}
    for number in itertools.count():
        path = base / f"full{number}{stays_full}"
        store = open_store(path)
        commit(store, 1)
        message = find_disk_full(number, store, stays_full=stays_full)
        if message is None:
            break
        report["places"] += 1
        found = [round_in(store)]
        store.close()
        store = open_store(path)
        found.append(round_in(store))
        commit(store, 3)
        found.append(round_in(store))
        store.close()
        if "the disk is full" not in message or found != [1, 1, 3]:
            report["wrong"].append([number, message, found])
    return report


def main(base):
    if _sqlite_library() is None:
        print(json.dumps(None))
        return
    report = {
        "killed": kill_everywhere(base),
        "full": fill_everywhere(base, stays_full=False),
        "stays_full": fill_everywhere(base, stays_full=True),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
