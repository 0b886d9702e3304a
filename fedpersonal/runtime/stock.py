"""TFF's own runtime as TFF ships it: a C++ program that listens on a port of this machine."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys

import psutil

from fedpersonal import tff
from fedpersonal.runtime.context import LocalContext, set_default_context

_NOTICE = (
    "TFF's own runtime listens on every network interface and asks nobody who they are: others on "
    "this machine and its network can run code as you while this program runs."
)
_CHILD = "worker_binary"


def make_stock_context() -> tff.SyncContext:
    """Returns TFF's own context, and tells on stderr what it opens.

    Its C++ program begins with the first computation, and ends with this process unless that is
    killed.
    """
    print(_NOTICE, file=sys.stderr)
    atexit.register(_end, os.getpid())
    return tff.create_sync_local_cpp_execution_context()


def _end(process: int) -> None:
    """Ends TFF's children of this process, before TFF tries to: its own way comes too late."""
    if os.getpid() != process:  # A fork.
        return
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == _CHILD:
                child.kill()
    set_default_context(LocalContext())
    gc.collect()  # TFF waits for its child when its context is collected.
