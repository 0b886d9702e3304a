"""How the process of a command starts and ends: logs, signals, the exit."""

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
# What TensorFlow Federated imports, and hardly any command uses: a fifth of its import.
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
# TensorFlow Lite converts its functions, where it is there.
_WITHOUT = "jax"
# What TensorFlow logs whatever its log level: a heading, and notices; not warnings and errors.
_NOTICES = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    r"^I[0-9]{4} [0-9:.]+ +[0-9]+ [a-z0-9_]+\.cc:[0-9]+\] ",
)

_leaving = 0  # The status of an exit that a signal has raised,
_left = False  # which has come to the exit hooks.


def start() -> None:
    """Readies this process: quiet logs, a spared home, signals that let a command save its work.

    SIGTERM and SIGHUP become exits with status 143 and 129, unless the program has handlers of its
    own. A second one does not disturb what it does at its end, for 30 seconds. A signal that falls
    into a callback of the garbage collector, where Python drops it, comes again; so does Ctrl-C.
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
    """Has packages that TensorFlow Federated imports wait, within a `with` statement.

    They are loaded when they are first used. Afterwards all that is imported is loaded as ever.
    """
    finder = _Postponing()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Postponing(importlib.abc.MetaPathFinder):
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
    """Ends the process: exit hooks run and output is flushed, but nothing is taken apart.

    Threads of TensorFlow and gRPC outlive a command's work. One that reaches into an interpreter
    that is being finalized crashes it, now and then, with a status that says that all has failed.

    Args:
        status: The exit status, if no signal has ended the work.
    """
    status = _leaving or status  # Whoever catches its exit may raise another one, as Ray does.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Closed, or nobody reads it any more.
            stream.flush()
    os._exit(status)


def _spare_home() -> None:
    """Lets Keras, Matplotlib and Transformers write to a folder of this process, not to the home.

    They keep settings and caches there, each in a folder of its own. Where that is there already,
    or the environment names another one, nothing is changed.
    """
    # The version that is pinned takes this name, and says each time that a later one will not.
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
    except OSError:  # The disk is full. What has to write will say so.
        return
    atexit.register(_remove, folder, os.getpid())
    for name in missing:
        os.environ[name] = os.path.join(folder, name.lower())


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # A fork's end is not the command's.
        shutil.rmtree(folder, ignore_errors=True)


def _quiet_logs() -> None:
    """Silences TensorFlow's chatter, before it is imported.

    A log level that is already in the environment (`TF_CPP_MIN_LOG_LEVEL`) is the user's wish: then
    nothing is changed. TensorFlow logs some notices whatever the level; 3 asks for none.
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
    """Drops TensorFlow's notices from what is written to descriptor 2, within a `with` statement.

    A process of its own hands the other lines on: they must be seen also where the import ends this
    process, as it does on a processor that TensorFlow was not made for.
    """
    command = ["grep", "-avE", *(f"-e{line}" for line in _NOTICES)]
    try:
        stderr = os.dup(2)
        # A session of its own: Ctrl-C is not for it.
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
    """Exits, and again should the command go on: anybody may catch and drop an exception."""
    global _leaving
    if not _leaving:
        _leaving = 128 + signum
        # `threading` takes locks, which the code that the signal has interrupted may hold.
        _thread.start_new_thread(_send_again, (signum, _SECONDS_TO_LEAVE))
        raise SystemExit(_leaving)


def _send_dropped_again(dropped: sys.UnraisableHookArgs) -> None:
    """Sends a signal again whose exception Python has dropped."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signum = int(signal.SIGINT)
    elif issubclass(dropped.exc_type, SystemExit) and _leaving:
        signum = _leaving - 128
    else:
        sys.__unraisablehook__(dropped)
        return
    _thread.start_new_thread(_send_again, (signum, _SECONDS_TO_COME_AGAIN))


def _send_again(signum: int, seconds: float) -> None:
    """Sends the main thread a signal in a while, unless it has left by then."""
    global _leaving
    time.sleep(seconds)
    if not _left:
        if _leaving == 128 + signum:
            _leaving = 0
        signal.pthread_kill(threading.main_thread().ident or 0, signum)


def _note_end() -> None:
    global _left
    _left = True
