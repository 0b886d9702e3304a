"""Signals wake the main thread, whichever thread the system gives them to.

Python runs the handlers of signals in the main thread. But it does not wake it for a signal that
another thread was given: a main thread that waits for a lock, as it does while TFF computes, would
not see Ctrl-C before the computation is done.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# Nothing comes with it, and programs must expect it at any time.
_WAKING = signal.SIGURG


def wake_main_thread_for_signals() -> None:
    """Interrupts the main thread at each signal; call it there.

    It leaves everything as it is where somebody else, an event loop say, is told of signals.
    """
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    others = signal.set_wakeup_fd(sending, warn_on_full_buffer=False)
    if others != -1:
        signal.set_wakeup_fd(others)
        os.close(receiving)
        os.close(sending)
        return
    if signal.getsignal(_WAKING) == signal.SIG_DFL:  # It would not interrupt.
        signal.signal(_WAKING, lambda *_: None)
    threading.Thread(
        target=_wake, args=(receiving, threading.get_ident()), name="wakeup", daemon=True
    ).start()


def _wake(receiving: int, main: int) -> None:
    while signums := os.read(receiving, 64):
        if any(signum != _WAKING for signum in signums):
            for seconds in (0.0, 0.1):  # The first may come just before the wait.
                time.sleep(seconds)
                signal.pthread_kill(main, _WAKING)
