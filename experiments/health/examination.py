"""Checks of a machine, each with a time limit.

They are made one after another in another process. Where one hangs or ends that process, such as by
a processor's illegal instruction, the next ones are made in a new one. Nothing but the standard
library is imported here: the packages may be what is ill.
"""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

OK, WARNING, FAILED = "ok", "warning", "failed"
_SECONDS_TO_END = 20.0
_LONGEST = 400  # Characters of what others say.
_REASONS: dict[int, str] = {
    signal.SIGILL: "take a processor with AVX, which TensorFlow's packages need",
    signal.SIGABRT: "take a processor with AVX, if that is what it complains of",
    signal.SIGKILL: "make sure that there is memory left",
}


class Asked(NamedTuple):
    """What the user has named.

    Attributes:
        output_dir: Where runs are to be written.
        data_dir: A folder of data, if any.
    """

    output_dir: str = "results"
    data_dir: str | None = None


class Finding(NamedTuple):
    """What a check has found.

    Attributes:
        status: `OK`, `WARNING` or `FAILED`.
        what: What there is.
        advice: What to do about it.
    """

    status: str
    what: str
    advice: str = ""


class Check(NamedTuple):
    """A check.

    Attributes:
        name: What is looked at.
        find: Looks; what it raises counts as a failure.
        seconds: Its time limit.
        needs: The name of a former check without whose success this one is not tried.
    """

    name: str
    find: Callable[[Asked], Finding]
    seconds: float = 20.0
    needs: str = ""


def examine(checks: Sequence[Check], asked: Asked) -> Iterator[tuple[Check, Finding, float]]:
    """Yields each check with what it has found and the seconds that it took."""
    failed, examiner, patience = set(), None, 0.0
    try:
        for number, check in enumerate(checks):
            began = time.monotonic()
            if check.needs in failed:
                finding = Finding(FAILED, f"not tried, as the check of {check.needs} failed")
            else:
                examiner = examiner or _Examiner(checks, asked)
                finding = examiner.ask(number)
                examiner = None if examiner.has_ended else examiner
            if finding.status == FAILED:
                failed.add(check.name)
            yield check, finding, time.monotonic() - began
        patience = _SECONDS_TO_END
    finally:
        if examiner is not None:
            examiner.end(patience)


def line_of(said: object) -> str:
    """Returns what an error says in one line of moderate length."""
    return " ".join(str(said).split())[:_LONGEST]


class _Examiner:
    """The process that makes checks."""

    def __init__(self, checks: Sequence[Check], asked: Asked):
        self.has_ended = False
        self._checks = checks
        self._output = _nameless_file()
        # Forked: nothing that hangs or has threads has been imported yet.
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._pipe, self._output, checks, asked)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, number: int) -> Finding:
        """Has a check made; the process has ended afterwards if the check hung or ended it."""
        seconds = self._checks[number].seconds
        try:
            self._pipe.send_bytes(str(number).encode())
            if self._pipe.poll(seconds):
                return Finding(*json.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            self._process.join(_SECONDS_TO_END)
            finding = self._how_it_ended()
        else:
            finding = Finding(FAILED, f"it hangs: no answer within {seconds:g} s")
        self.end(0.0)
        return finding

    def end(self, seconds: float) -> None:
        """Ends the process, and what it has started, by force after so many seconds."""
        self.has_ended = True
        self._pipe.close()
        self._process.join(seconds)
        if self._process.is_alive() and self._process.pid is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.join(_SECONDS_TO_END)
        os.close(self._output)

    def _how_it_ended(self) -> Finding:
        code = self._process.exitcode or 0
        size = os.fstat(self._output).st_size
        said = os.pread(self._output, 4096, max(0, size - 4096)).decode(errors="replace")
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        what = f"Python was ended {how}" + (f": {line_of(last)}" if last else "")
        return Finding(FAILED, what, _REASONS.get(-code, ""))


def _serve(
    pipe: Connection, other_end: Connection, output: int, checks: Sequence[Check], asked: Asked
) -> None:
    """Makes the checks that are asked for, until nobody is left to ask."""
    other_end.close()
    atexit._clear()  # What the other process does at its end.
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    while True:
        try:
            check = checks[int(pipe.recv_bytes())]
        except EOFError:
            break
        # For the case that the other process is no more.
        signal.alarm(math.ceil(check.seconds) + 5)
        pipe.send_bytes(json.dumps(_find(check, asked)).encode())
        signal.alarm(0)
    atexit._run_exitfuncs()
    # Threads of TensorFlow outlive its work, and finalizing the interpreter may crash in them.
    os._exit(0)


def _find(check: Check, asked: Asked) -> Finding:
    try:
        return check.find(asked)
    except ImportError as error:
        return Finding(FAILED, line_of(f"{type(error).__name__}: {error}"), "type: make install")
    except BaseException as error:  # Also SystemExit: whatever a package does, it is a finding.
        kind = type(error).__name__
        return Finding(FAILED, line_of(error if kind == "UserError" else f"{kind}: {error}"))


def _nameless_file() -> int:
    """Returns a descriptor for what others print; it needs no disk, which may be full."""
    create = getattr(os, "memfd_create", None)
    return os.open(os.devnull, os.O_RDWR) if create is None else create("doctor")
