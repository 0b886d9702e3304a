"""The folder of a run: its config, its results, its lock, and the secret of its noise."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import pathlib
import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from fedpersonal.errors import UserError
from fedpersonal.files import (
    OWNER_ONLY,
    atomic_write,
    damaged,
    read_json,
    report_write_errors,
    to_json,
    write_json,
)
from fedpersonal.runs import record as run_config
from fedpersonal.runs.description import describe, flat
from fedpersonal.runs.record import RunRecord

_LOCK = ".lock"
# Options that may change between the sessions of one run.
MAY_DIFFER = frozenset({"output_dir", "total_rounds", "rounds_per_checkpoint"})

# Locks that this process holds.
_locks: list[_Lock] = []
_registry = threading.Lock()


def check_writable(path: str | os.PathLike) -> None:
    """Checks, without creating anything, that a run folder can be created or written.

    Raises:
        UserError: If it cannot.
    """
    folder = pathlib.Path(path).absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    code = errno.EACCES if folder.is_dir() else errno.ENOTDIR
    if code == errno.ENOTDIR or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"Cannot write to the run folder {path}: {os.strerror(code)} ({folder}).")


class RunFolder(RunRecord):
    """One run on disk. Open it with `RunFolder.open` to write, or `RunFolder.read` to read.

    Until it is closed, other processes and other threads cannot open it to write.
    """

    _lock: _Lock | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike,
        options: Mapping[str, Any],
        *,
        ignore: Collection[str] = MAY_DIFFER,
        about: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Creates the folder of a run, or opens it to resume the run.

        Args:
            path: The folder.
            options: The options of the run by name.
            ignore: The options that may differ from those of the run's earlier sessions.
            about: Further entries of the config, all optional: `data`, a fingerprint of the data,
                or one for each part by name, and `num_shards`, which must be the same in all
                sessions; `runtime`, which may differ.

        Returns:
            The folder, with `config.json` written.

        Raises:
            UserError: The folder belongs to a run with other options or data, or to one that is
                still running.
        """
        try:
            folder = cls(pathlib.Path(path).resolve())
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._lock = _acquire(folder.path)
        except BlockingIOError as error:
            raise UserError(f"Another {error} is running in {path}; wait or end it.") from error
        except OSError as error:
            raise UserError(f"Cannot write to the run folder {path}: {error.strerror}.") from error
        try:
            if folder.metrics_csv.exists() and not folder.config_json.exists():
                raise UserError(
                    f"{folder.path} has a metrics.csv that is not a run's; give another folder."
                )
            config = run_config.merge_config(
                folder.config_json, options, ignore=ignore, about=about
            )
            write_json(folder.config_json, config, checked=True)
        except BaseException:
            folder.close()
            raise
        return folder

    def close(self) -> None:
        """Unlocks the folder; this object must not write any more."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _release(lock)

    def __enter__(self) -> RunFolder:
        """Returns the folder, which is closed at the end of a `with` statement."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the folder."""
        self.close()

    def check_is_ours(self) -> None:
        """Raises a UserError if the folder was moved, copied in place or replaced meanwhile."""
        if self._lock is not None and not self._lock.is_there():
            raise UserError(
                f"{self.path} is not the folder in which this run began: it was moved, removed or "
                "replaced meanwhile. Nothing more is written to it; begin again."
            )

    def check_data(self, data: Mapping[str, Any]) -> None:
        """Writes a description of the training data to `config.json`, or compares it with that.

        Args:
            data: A description that identifies the data, such as that of `describe_clients`.

        Raises:
            UserError: Earlier sessions had other data; the message names the parts that differ.
        """
        self._check(run_config.TRAINING_DATA, "data", data)

    def check_training(self, training: Any) -> None:
        """Writes a description of a program's training to `config.json`, or compares it with that.

        Args:
            training: The parts of the training, which `describe` takes.

        Raises:
            UserError: Earlier sessions had another training; the message names the differences.
        """
        self._check(run_config.TRAINING, "options", flat(to_json(describe(training))))

    def _check(self, entry: str, kind: str, parts: Mapping[str, Any]) -> None:
        config = self.config
        previous = config.setdefault(entry, to_json(parts))
        run_config.check_same(kind, previous, to_json(parts), self.path)
        write_json(self.config_json, config, checked=True)

    @staticmethod
    def read(path: str | os.PathLike) -> RunRecord:
        """Opens a folder to read its files, whether or not its run has ended.

        Args:
            path: The folder; nothing in it is written or locked.

        Raises:
            UserError: It is not the folder of a run.
        """
        record = RunRecord(pathlib.Path(path).resolve())
        run_config.read_config(record.config_json)
        return record

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`, with the digests of the folder's tables."""
        digests = run_config.table_digests(self)
        entry = {run_config.DIGESTS: digests} if digests else {}
        write_json(self.path / "summary.json", {**summary, **entry}, checked=True)

    def write_boundary(self, boundary: Sequence[Any]) -> None:
        """Writes `boundary.json`, with an object for each tensor."""
        write_json(self.path / "boundary.json", boundary)

    def write_per_client(self, columns: Mapping[str, Any]) -> None:
        """Writes `per_client.csv`: columns of equal length by name, NaN as an empty cell."""
        with atomic_write(self.path / "per_client.csv") as file:
            pd.DataFrame(columns).to_csv(file, index=False, lineterminator="\n")


@dataclasses.dataclass(eq=False)
class _Lock:
    """A folder's lock file, locked for all `RunFolder`s of one thread of this process."""

    folder: pathlib.Path
    file: int
    thread: int
    holders: int = 0

    def is_there(self) -> bool:
        """Reports whether the folder's lock file is the locked one."""
        try:
            return os.path.samestat(os.stat(self.folder / _LOCK), os.fstat(self.file))
        except OSError:
            return False


def _acquire(folder: pathlib.Path) -> _Lock:
    """Locks a run folder, or raises a BlockingIOError that names the holder of its lock."""
    with _registry:
        # Closing any descriptor of a file releases its lock: keep one descriptor per file.
        if _find(folder) is None:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                is_held = isinstance(error, BlockingIOError)
                raise (BlockingIOError("process") if is_held else error) from None
            _locks.append(_Lock(folder, descriptor, threading.get_ident()))
        lock = _find(folder)
        if lock is None:  # The file was removed at this moment.
            raise BlockingIOError("process")
        if (lock.folder, lock.thread) != (folder, threading.get_ident()):
            raise BlockingIOError("run of this program")
        lock.holders += 1
        return lock


def _find(folder: pathlib.Path) -> _Lock | None:
    """Returns this process's lock of the lock file that is in a folder now, or None."""
    with contextlib.suppress(FileNotFoundError):
        file = os.stat(folder / _LOCK)
        return next((one for one in _locks if os.path.samestat(file, os.fstat(one.file))), None)
    return None


def _release(lock: _Lock) -> None:
    with _registry:
        lock.holders -= 1
        if not lock.holders:
            os.close(lock.file)
            _locks.remove(lock)


SECRET = "privacy_secret.json"
_BITS = 126


def new_secret() -> int:
    """Returns a random secret from the operating system."""
    return secrets.randbits(_BITS)


def derive_secret(secret: int, purpose: str) -> int:
    """Returns a number of the same size for a purpose; it reveals nothing about other purposes."""
    digest = hashlib.sha256(f"{secret:x} {purpose}".encode()).digest()
    return int.from_bytes(digest, "big") % 2**_BITS


def load_or_create_secret(folder: pathlib.Path, secret: int) -> int:
    """Returns the secret in a run's folder; for a new run, stores and returns `secret`.

    The file stays until the run has ended, and only its owner can read it.

    Raises:
        UserError: If the file is damaged, or cannot be written.
    """
    path = folder / SECRET
    if not os.path.lexists(path):
        write_json(path, {"secret": f"{secret:x}"}, checked=True, permissions=OWNER_ONLY)
        return secret
    try:
        return int(read_json(path, {"secret": str}, checked=True)["secret"], 16)
    except ValueError as error:
        raise UserError(
            f"{damaged(path)} Without it the run cannot resume exactly as it began. Remove the "
            "file to resume with a new secret."
        ) from error


def remove_secret(folder: pathlib.Path) -> None:
    """Removes the secret of a run that has ended, if there is one."""
    path = folder / SECRET
    with report_write_errors(path):
        path.unlink(missing_ok=True)
