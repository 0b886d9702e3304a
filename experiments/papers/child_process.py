"""Work in a process of its own, whose memory comes back when the work is done.

A TFF computation stays in its worker for as long as the worker lives, about 200 MB a run: many
runs in one process would make it grow with each.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any

from fedpersonal import runtime
from fedpersonal.errors import UserError

# What `runtime.quiet_logs` sets, and takes for the user's wish where it finds it set.
_LOG_LEVEL = ("TF_CPP_MIN_LOG_LEVEL", "3")


def run_in_child(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function in a new process and waits for its end.

    When this process is interrupted or ended meanwhile, the child is ended by SIGTERM, which lets
    it save its run.

    Args:
        function: A function of a module; it hands its results on in files.
        *arguments: Its arguments; they are pickled.

    Raises:
        UserError: That of the function, or the child was killed.
        RuntimeError: The function has raised another error, which the child has printed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # Unpickling imports TensorFlow, which must not come before `runtime.start`.
    call = pickle.dumps((function, arguments))
    child = context.Process(target=_main, args=(sender, call), daemon=True)
    child.start()
    sender.close()
    try:
        child.join()
    except BaseException:
        child.terminate()
        child.join()
        raise
    if receiver.poll():
        try:
            raise UserError(receiver.recv())
        except EOFError:
            pass
    code = child.exitcode
    assert code is not None  # It has ended.
    if code < 0:
        raise UserError(
            f"the process of a run was ended by signal {-code}; was the memory short? "
            "The same command goes on from there."
        )
    if code:
        raise RuntimeError(f"{function.__name__} has failed in its process.")


def _main(sender: Any, call: bytes) -> None:
    # Ctrl-C reaches the whole group; the parent alone answers it, with SIGTERM to the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name, value = _LOG_LEVEL
    if os.environ.get(name) == value:
        del os.environ[name]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # For `start`, which leaves other handlers alone.
    runtime.start()
    try:
        function, arguments = pickle.loads(call)
        function(*arguments)
    except UserError as error:
        sender.send(str(error))
    except Exception:
        traceback.print_exc()
        runtime.leave(1)
    runtime.leave(0)
