"""Hurts commits of a private store at each of SQLite's own file operations in turn.

Usage: hurt_commits.py FOLDER. Prints a JSON object with two reports, `kill` and `full`: in how many
places a process was killed or found the disk full, and where that was followed by anything but the
former or the new round in whole. It is null where SQLite lets nobody at its file operations.
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
import sqlite3
import sys

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.partition import VariableSpec
from fedpersonal.private_store import PrivateStore, SavedRun

VARIABLES = [VariableSpec("user", "user", (64,), tf.float32, True, None)]
# More than SQLite's page cache of 2 MB holds: the database is written to before COMMIT, too.
NUM_CLIENTS = 12_000
IDS = [f"client{number}" for number in range(NUM_CLIENTS)]

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


def rows_of(round_number):
    return dict.fromkeys(IDS, bytes([round_number]) * 256)


def round_in(store):
    """Returns the round whose rows the store holds for everyone, or None for a mixture."""
    saved = store.saved()
    rows = set(store.read(IDS))
    sound = store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    is_whole = sound and rows == {bytes([saved.round_number]) * 256}
    return saved.round_number if is_whole and saved.state == rows.pop() else None


def commit(store, round_number):
    store.commit(rows_of(round_number), SavedRun(round_number, bytes([round_number]) * 256))


