"""This program's connection to a Ray cluster, or to a Ray of its own."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from typing import Any

from fedpersonal.errors import UserError
from fedpersonal.runtime.processors import count_processors

# Without its cluster, Ray may end a program from within, with no word and no exit hooks.
_LAST_WORDS = (
    "error: The program has ended at once. Ray does so where it is stopped on the machine of the "
    "program; a run with a folder goes on from its last checkpoint."
)
# Ray's switch, named after its first use, and read when Ray is imported: 0 makes it listen on the
# loopback device alone.
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

# The path of a socket has at most 107 bytes, of which Ray's session and our own names take 84.
_LONGEST_FOLDER = 23


class Connection:
    """A connection, of which a program has one at a time.

    Attributes:
        address: Where the cluster's head is, as `host:port`.
    """

    def __init__(self, address: str | None):
        """Connects this process; arguments and errors are those of `ray_cluster.Cluster`."""
        if address is not None and address.startswith("ray://"):
            raise UserError(
                f"ray_address is {address!r}; it must be host:port of a node: the program runs on "
                "a machine of the cluster."
            )
        self._is_local = address is None
        self._folder = _make_folder() if address is None else None
        try:
            _connect(address, self._folder)
        except BaseException:
            self._remove_folder()
            raise
        import ray

        self.address: str = ray.get_runtime_context().gcs_address
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", f"read bye || echo '{_LAST_WORDS}' >&2"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.close)
        if self._is_local and not self.address.startswith("127."):
            self.close()
            raise UserError("Ray would listen to the network: import ray after use_runtime.")

    def close(self) -> None:
        """Leaves the cluster, with which its actors end, and ends a Ray of this program's own."""
        import ray

        atexit.unregister(self.close)
        self._watch.communicate(b"bye\n")
        if ray.is_initialized():
            ray.shutdown()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder() -> str:
    """Makes the folder of a local Ray's session, with its sockets, for this user alone."""
    usual = tempfile.gettempdir()
    short = usual if len(os.fsencode(usual)) <= _LONGEST_FOLDER else "/tmp"
    return tempfile.mkdtemp(prefix="fp-ray-", dir=short)


def _connect(address: str | None, folder: str | None) -> None:
    """Connects this process; SIGTERM keeps what it did before.

    Ray lets everybody write to the folder of its sessions, so this lies in `folder`.
    """
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token":
        raise UserError(f"RAY_AUTH_MODE is {mode!r}; it must be token, or not set.")
    settings: dict[str, Any] = {"address": address}
    if address is None:
        os.environ[_LOOPBACK] = "0"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads it once.
        own = {"include_dashboard": False, "num_cpus": count_processors()}
        settings = {"address": "local", "_temp_dir": os.path.join(folder or "", "r"), **own}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    if ray.is_initialized():
        raise UserError("This program uses Ray already: call ray.shutdown() before use_runtime.")
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        where = "on this machine" if address is None else f"at {address}"
        raise UserError(
            f"There is no Ray cluster {where} to use, or it has another token: {line_of(error)}"
        ) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)


def line_of(error: BaseException) -> str:
    """Returns what an error says in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]
