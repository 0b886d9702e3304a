"""Start and end of a command's process: logs, signals, the exit."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn

import fedpersonal

_SECONDS_TO_LEAVE = 30.0
_SECONDS_TO_COME_AGAIN = 0.1
# Modules that TensorFlow Federated imports but hardly any command uses: a fifth of its import time.
_LATER = frozenset(
    {
        "scipy.signal",
        "tensorflow_federated.python.analytics",
        "tensorflow_federated.python.core.environments.jax",
        "tensorflow_federated.python.learning.programs",
        "tensorflow_federated.python.simulation.baselines",
        "tensorflow_probability",
    }
)
# An optional import of TensorFlow Lite, which converts functions of it.
_WITHOUT = "jax"
# Lines that TensorFlow logs at every log level: a heading and notices, no warnings or errors.
_NOTICES = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    r"^I[0-9]{4} [0-9:.]+ +[0-9]+ [a-z0-9_]+\.cc:[0-9]+\] ",
)

_leaving = 0  # The status of the exit that a signal has raised, or 0.
_left = False  # Whether the exit hooks have started.


def start() -> None:
    """Prepares this process: quiet logs, no files in the home, signals that let it save its work.

    SIGTERM and SIGHUP become exits with status 143 and 129, unless the program has its own
    handlers. For 30 seconds, a second signal does not interrupt the exit. Signals during a callback
    of the garbage collector, where Python drops the exception, are sent again; so is Ctrl-C.
    """
    _quiet_logs()
    _spare_home()
    atexit.register(_note_end)
    if threading.current_thread() is threading.main_thread():
        sys.unraisablehook = _send_dropped_again
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                signal.signal(signum, _exit)


@contextlib.contextmanager
def fewer_imports() -> Iterator[None]:
    """Within a `with` statement, defers imports that TensorFlow Federated makes needlessly.

    Deferred modules are loaded at their first use. After the statement, imports work as usual.
    """
    finder = _DeferringFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _DeferringFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == _WITHOUT:
            raise ModuleNotFoundError(f"{name} is not imported here", name=name)
        if name not in _LATER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def leave(status: int) -> NoReturn:
    """Ends the process: runs exit hooks and flushes output, but does not finalize the interpreter.

    Threads of TensorFlow and gRPC outlive a command's work. If one uses an interpreter that is
    being finalized, the process crashes with a status that reports a failure.

    Args:
        status: The exit status, if no signal has ended the work.
    """
    status = _leaving or status  # Code that catches the exit may raise another one, as Ray does.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Closed, or its reader has ended.
            stream.flush()
    os._exit(status)


def _spare_home() -> None:
    """Makes Keras, Matplotlib and Transformers write to a temporary folder, not to the home.

    Each of them has a folder for settings and caches. If that folder exists, or the environment
    names another one, it is not changed.
    """
    # The pinned version reads this variable, and warns each time that it is deprecated.
    warnings.filterwarnings("ignore", "Using `TRANSFORMERS_CACHE`", FutureWarning)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join("~", ".config")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    hub = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    usual = {
        "KERAS_HOME": os.path.join("~", ".keras"),
        "MPLCONFIGDIR": os.path.join(config, "matplotlib"),
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
    except OSError:  # The disk is full. Code that has to write will report it.
        return
    atexit.register(_remove, folder, os.getpid())
    for name in missing:
        os.environ[name] = os.path.join(folder, name.lower())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # Not in a fork.
        shutil.rmtree(folder, ignore_errors=True)


def _quiet_logs() -> None:
    """Silences TensorFlow's notices, before it is imported.

    If the user has set a log level (`TF_CPP_MIN_LOG_LEVEL`), it is not changed. TensorFlow logs a
    few notices at every level; at level 3 they are dropped, too.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
    if level in (None, "3"):
        sys.meta_path.insert(0, _Quiet())
    if level is not None and not (level == "3" and fedpersonal.quiets_tensorflow):
        return
    # Level 2 still lets the cuDNN, cuBLAS and TensorRT notices of TF 2.14 through.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("AUTOGRAPH_VERBOSITY", "0")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)


class _Quiet(importlib.abc.MetaPathFinder):
    """Imports TensorFlow without its notices."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "tensorflow":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = _without_notices()(spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Within a `with` statement, drops TensorFlow's notices from the output to descriptor 2.

    A separate process passes on the other lines, so that they appear even if the import ends this
    process, as on a processor without the instructions that TensorFlow needs.
    """
    command = ["grep", "-avE", *(f"-e{line}" for line in _NOTICES)]
    try:
        stderr = os.dup(2)
        # A new session, so that Ctrl-C does not reach it.
        filtering = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stderr, start_new_session=True
        )
    except OSError:  # Descriptor 2 is closed, or there is no `grep`.
        yield
        return
    assert filtering.stdin is not None
    os.dup2(filtering.stdin.fileno(), 2)
    filtering.stdin.close()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):  # A child holds the other end, too.
            filtering.wait(timeout=1)


def _exit(signum: int, frame: types.FrameType | None) -> None:
    """Exits, and sends the signal again later in case the program drops the exception."""
    global _leaving
    if not _leaving:
        _leaving = 128 + signum
        # `threading` takes locks, which the interrupted code may hold.
        _thread.start_new_thread(_send_again, (signum, _SECONDS_TO_LEAVE))
        raise SystemExit(_leaving)


def _send_dropped_again(dropped: sys.UnraisableHookArgs) -> None:
    """Sends a signal again if Python has dropped its exception."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signum = int(signal.SIGINT)
    elif issubclass(dropped.exc_type, SystemExit) and _leaving:
        signum = _leaving - 128
    else:
        sys.__unraisablehook__(dropped)
        return
    _thread.start_new_thread(_send_again, (signum, _SECONDS_TO_COME_AGAIN))


def _send_again(signum: int, seconds: float) -> None:
    """Sends the main thread a signal after a delay, unless it is leaving by then."""
    global _leaving
    time.sleep(seconds)
    if not _left:
        if _leaving == 128 + signum:
            _leaving = 0
        signal.pthread_kill(threading.main_thread().ident or 0, signum)


def _note_end() -> None:
    global _left
    _left = True
