"""One absl binary a task; flags and wiring only."""

import sys
from types import TracebackType

_usual = sys.excepthook


def _without_interruption(
    kind: type[BaseException], error: BaseException, trace: "TracebackType | None"
) -> None:
    """Leaves Ctrl-C to the shell, also while modules are imported, before a program begins."""
    if not issubclass(kind, KeyboardInterrupt):
        _usual(kind, error, trace)


sys.excepthook = _without_interruption
