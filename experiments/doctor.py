"""Says whether experiments can run on this machine, and what to do where they cannot.

python -m experiments.doctor
python -m experiments.doctor --data_dir=path/to/data --output_dir=results --json

One line a check: ok, warning or failed. Exit status: 0 where nothing failed, else 1; 2 after a
mistake in the flags.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import NoReturn

from experiments.health import computing, machine
from experiments.health.examination import FAILED, WARNING, Asked, Finding, examine

_MISTAKE = 2
_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """absl's flags are a package, which may be missing."""

    def error(self, message: str) -> NoReturn:
        self.exit(_MISTAKE, f"error: {message}\n")


def main() -> int:
    """Makes all checks and prints what they find; returns the exit status."""
    parser = _Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--data_dir", help="A folder of data, to see what is there.")
    parser.add_argument("--output_dir", default="results", help="Where runs are to be written.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument("--helpfull", action="help", help="The same as --help.")
    given = parser.parse_args()
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # As in `launch`.
    checks, entries = (*machine.CHECKS, *computing.CHECKS), []
    for check, finding, seconds in examine(checks, Asked(given.output_dir, given.data_dir)):
        seconds = round(seconds, 3)
        entries.append({"check": check.name, **finding._asdict(), "seconds": seconds})
        if not given.json:
            print(_line(check.name, finding), flush=True)
    counts = [sum(e["status"] == status for e in entries) for status in (FAILED, WARNING)]
    if given.json:
        json.dump({"failed": counts[0], "warnings": counts[1], "checks": entries}, sys.stdout)
        print()
    else:
        print(f"{len(entries)} checks: {counts[0]} failed, {counts[1]} warnings")
    return int(counts[0] > 0)


def _line(name: str, finding: Finding) -> str:
    """Returns a finding in one line."""
    line = f"{finding.status:8} {name}: {finding.what.rstrip('.')}"
    return f"{line}; {finding.advice}" if finding.advice else line


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
