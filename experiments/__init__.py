"""The commands of fedpersonal, one absl binary per task; flags and wiring only."""

import sys
from types import TracebackType

_usual = sys.excepthook


def _without_interruption(
    kind: type[BaseException], error: BaseException, trace: "TracebackType | None"
) -> None:
    """Replaces the traceback of Ctrl-C during imports, before a program starts, by one line."""
    if issubclass(kind, KeyboardInterrupt):
        print("Stopped before the program started.", file=sys.stderr)
    else:
        _usual(kind, error, trace)


sys.excepthook = _without_interruption
