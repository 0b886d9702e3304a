"""One absl binary a task; flags and wiring only."""

import sys
from types import TracebackType

_usual = sys.excepthook


def _without_interruption(
    kind: type[BaseException], error: BaseException, trace: "TracebackType | None"
) -> None:
    """Says of Ctrl-C while modules are imported, before a program begins, that nothing was done."""
    if issubclass(kind, KeyboardInterrupt):
        print("Stopped: nothing was begun.", file=sys.stderr)
    else:
        _usual(kind, error, trace)


sys.excepthook = _without_interruption
