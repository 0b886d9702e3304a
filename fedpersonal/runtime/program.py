"""How a program that uses TensorFlow Federated starts and ends, and how much memory it holds.

TFF's own context computes in a C++ child process, `worker_binary`. It outlives the Python program
unless somebody ends it, and keeps the program's stdout open, so that `python program.py | cat`
would wait for ever. `start` sees to its end. This module loads neither TensorFlow nor TFF.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import NoReturn

import psutil

from fedpersonal.errors import UserError
from fedpersonal.runtime import supervisor
from fedpersonal.runtime.services import close_channels, retire_services
from fedpersonal.runtime.wakeup import wake_main_thread_for_signals

_WORKER_NAME = "worker_binary"
_SECONDS_TO_LEAVE = 30.0

_started_in: int | None = None  # The process.
_leaving = False  # A signal has raised an exit,
_left = False  # which has come to the exit hooks.
_has_run = False  # TensorFlow, in sessions of ours;
_lacks_threads = False  # it had before this process was forked.


def quiet_logs() -> None:
    """Silences TensorFlow's chatter; call it before TensorFlow is imported.

    Workers are silenced as well, since they inherit the environment. A log level that is already
    in the environment (`TF_CPP_MIN_LOG_LEVEL`) is the user's wish: then nothing is changed.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    # Level 2 still lets the cuDNN, cuBLAS and TensorRT notices of TF 2.14 through.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("AUTOGRAPH_VERBOSITY", "0")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)


def spare_home() -> None:
    """Lets Keras, Matplotlib and Transformers write to a folder of this program's, not to the home.

    They keep settings and caches there, each in a folder of its own. Where that is there already,
    or the environment names another one, nothing is changed. Call it before they are imported.
    """
    # The version that is pinned takes this name, and says each time that a later one will not. A
    # child finds it set.
    warnings.filterwarnings("ignore", "Using `TRANSFORMERS_CACHE`", FutureWarning)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    hub = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    usual = {
        "KERAS_HOME": os.path.join("~", ".keras"),
        "MPLCONFIGDIR": os.path.join(config, "matplotlib"),
        # That of hub downloads has another name, and stays.
        "TRANSFORMERS_CACHE": os.path.join(hub, "hub"),
    }
    missing = [
        name
        for name, path in usual.items()
        if name not in os.environ and not os.path.exists(os.path.expanduser(path))
    ]
    if not missing:
        return
    try:
        folder = tempfile.mkdtemp(prefix="fedpersonal-home-")
    except OSError:  # The disk is full. What has to write will say so.
        return
    atexit.register(_remove, folder, os.getpid())
    for name in missing:
        os.environ[name] = os.path.join(folder, name.lower())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # A fork's end is not the program's.
        shutil.rmtree(folder, ignore_errors=True)


def start() -> None:
    """Readies this process for TFF: quiet logs, and no worker left behind at its end.

    Workers end with the program however it ends: normally, by `sys.exit`, by an exception, by
    Ctrl-C, or by SIGTERM and SIGHUP, which become exits with status 143 and 129. Only SIGKILL
    leaves those of TFF's own context behind. A second signal does not disturb what the program
    does at its end, for 30 seconds. A signal is seen while TFF computes, too. Calling it again
    does nothing.
    """
    global _started_in
    if _started_in is not None:
        return
    _started_in = os.getpid()
    quiet_logs()
    spare_home()
    atexit.register(_end)
    os.register_at_fork(after_in_child=_see_what_forked)
    sys.unraisablehook = _Unraisable(sys.unraisablehook)
    if threading.current_thread() is threading.main_thread():
        wake_main_thread_for_signals()
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                signal.signal(signum, _exit)


def check_not_forked() -> None:
    """Raises a UserError in a fork of a process in which TensorFlow had run.

    A fork lacks the threads of TensorFlow, and would wait for them without end.
    """
    if _lacks_threads:
        raise UserError(
            "this process was forked after TensorFlow had run, so TensorFlow cannot run in it: "
            "start it by multiprocessing.get_context('spawn'), or fork before anything is trained."
        )


def note_run() -> None:
    """Notes that TensorFlow runs in this process; a UserError as of `check_not_forked`."""
    global _has_run
    check_not_forked()
    _has_run = True


def _see_what_forked() -> None:
    global _lacks_threads
    eager = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    _lacks_threads = _lacks_threads or _has_run or getattr(eager, "_initialized", False)


def leave(status: int) -> NoReturn:
    """Ends the program: exit hooks run and output is flushed, but nothing is taken apart.

    Threads of TensorFlow and gRPC outlive a program's work. One that reaches into an interpreter
    that is being finalized crashes it, now and then, with a status that says that all has failed.

    Args:
        status: The exit status.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Closed, or nobody reads it any more.
            stream.flush()
    os._exit(status)


def rss_mb() -> float:
    """Resident memory of this process and its TFF workers, in MiB."""
    return _memory_mb("VmRSS")


def peak_rss_mb() -> float:
    """Highest resident memory so far of this process and its living TFF workers, in MiB.

    Each process contributes its own peak, so the sum is an upper bound of the joint one.
    """
    return _memory_mb("VmHWM")


class _SignalExit(SystemExit):
    """The exit that a signal asks for."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum


def _exit(signum: int, frame: types.FrameType | None) -> None:
    """Exits, and again should the program go on: anybody may catch and drop an exception."""
    global _leaving
    if not _leaving:
        _leaving = True
        _send_again(signum, after=_SECONDS_TO_LEAVE)
        raise _SignalExit(signum)


class _Unraisable:
    """Sends a signal again whose exception is lost, as in a `__del__` or a callback of `gc`.

    Python would print 'Exception ignored', and the program would go on.

    Args:
        others: The hook for what is lost otherwise.
    """

    def __init__(self, others: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._others = others

    def __call__(self, lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, _SignalExit):
            signum = lost.exc_value.signum
        elif isinstance(lost.exc_value, KeyboardInterrupt):
            signum = signal.SIGINT
        else:
            self._others(lost)
            return
        _send_again(signum, after=0.01)  # Here, an exit would be lost as well.


def _send_again(signum: int, after: float) -> None:
    """Sends this thread, the main one, a signal in so many seconds, unless it has left by then."""
    main = threading.get_ident()

    def send() -> None:
        global _leaving
        time.sleep(after)
        if not _left:
            _leaving = False
            signal.pthread_kill(main, signum)

    # `threading` takes locks, which the code that the signal has interrupted may hold.
    _thread.start_new_thread(send, ())


def _end() -> None:
    """Ends the workers of this process, and everything in TFF that would start new ones."""
    global _left
    _left = True
    retire_services()
    workers = _workers()
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()  # It keeps nothing, and SIGINT may be ignored since birth ('nohup').
    psutil.wait_procs(workers)
    if os.getpid() == _started_in:  # A fork has its parent's channels, without their threads.
        close_channels()


def _workers() -> list[psutil.Process]:
    found = []
    children = psutil.Process().children()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == _WORKER_NAME:
                found.append(child)
            elif child.name() == supervisor.NAME:
                children += child.children()  # The loop comes to them as well.
    return found


def _memory_mb(field: str) -> float:
    kib = 0
    for pid in (os.getpid(), *(worker.pid for worker in _workers())):
        with contextlib.suppress(FileNotFoundError):
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
                kib += sum(int(line.split()[1]) for line in status if line.startswith(field + ":"))
    return kib / 1024
