"""The end of TFF's services: of what starts its workers, and of gRPC's threads that reach them.

This module loads neither TensorFlow nor TFF.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_TFF = "tensorflow_federated"
_FACTORY = f"{_TFF}.python.core.impl.executor_stacks.executor_factory"
_SECONDS_TO_START = 10.0
_SECONDS_TO_CLOSE = 5.0
_SECONDS_TO_UNWATCH = 1.0
_GRPC_THREADS = ("event_engine\n", "grpc_global_tim\n", "grpc_shutdown\n")


def retire_services() -> None:
    """Disarms the objects through which TFF starts its workers and, too late, ends them.

    A computation that loses its worker, to Ctrl-C say, asks its `ServiceManager` for another one,
    in a thread that may be halfway when the program ends. And a manager's `__del__` would print an
    'Exception ignored': the modules that it needs are gone when the interpreter finalizes it.
    """
    factory: Any = sys.modules.get(_FACTORY)
    if factory is None:
        return
    factory.subprocess = types.SimpleNamespace(Popen=_refuse)
    gc.unfreeze()  # What is frozen is not among the objects.
    for item in gc.get_objects():
        kind = type(item)
        if kind.__name__ == "ServiceManager" and kind.__module__.startswith(_TFF):
            item.get_stub = _refuse
            if hasattr(kind, "__del__"):
                del kind.__del__
    _wait_while(_is_starting_worker, _SECONDS_TO_START)


def close_channels() -> None:
    """Closes TFF's channels to its workers, and waits for the end of gRPC's threads.

    Otherwise they run on while the interpreter is taken apart, which crashes now and then.
    """
    if _FACTORY not in sys.modules:
        return
    channels = _watched_channels()
    if not channels:
        return
    deadline = time.monotonic() + _SECONDS_TO_CLOSE
    while True:
        _close(channels)
        if _wait_while(_has_grpc_threads, 0.2) or time.monotonic() > deadline:
            return
        gc.collect()  # The traceback of a call that failed keeps it, in a cycle.
        # A thread that was starting a worker may have opened another channel meanwhile.
        channels += _watched_channels()


def _close(channels: Sequence[Any]) -> None:
    """Closes channels when the threads that watch them have ended."""
    states = [channel._connectivity_state for channel in channels]
    for channel in channels:
        channel._unsubscribe_all()
    _wait_while(lambda: any(s.polling or s.delivering for s in states), _SECONDS_TO_UNWATCH)
    for channel in channels:
        channel.close()


def _watched_channels() -> list[Any]:
    """Returns the channels of this process whose state TFF watches."""
    found = []
    for item in gc.get_objects():
        kind = type(item)
        if kind.__name__ == "Channel" and kind.__module__ == "grpc._channel":
            watching = item._connectivity_state.callbacks_and_connectivities
            if any(callback.__module__.startswith(_TFF) for callback, _ in watching):
                found.append(item)
    return found


def _has_grpc_threads() -> bool:
    """Looks for threads of C++, which Python does not list."""
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            with open(f"/proc/self/task/{task}/comm", encoding="utf-8", errors="replace") as name:
                if name.read() in _GRPC_THREADS:
                    return True
    return False


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("The program is ending; TFF starts no worker any more.")


def _is_starting_worker() -> bool:
    """Says whether a thread of TFF, which has lost its worker, is still about to start another."""
    for thread, frame in sys._current_frames().items():
        if thread == threading.get_ident():
            continue
        for caller, _ in traceback.walk_stack(frame):
            names = (caller.f_globals.get("__name__"), caller.f_code.co_name)
            if names == (_FACTORY, "start_process"):
                return True
    return False


def _wait_while(condition: Callable[[], bool], seconds: float) -> bool:
    """Says whether the condition has ended in time."""
    deadline = time.monotonic() + seconds
    while condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
