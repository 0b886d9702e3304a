"""What goes wrong with data that others keep, in one line."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator

from fedpersonal.errors import UserError


@contextlib.contextmanager
def one_line(what: str, advice: str) -> Iterator[None]:
    """Turns whatever another library raises into a `UserError` of one line.

    Args:
        what: What cannot be done.
        advice: What else to do.
    """
    try:
        yield
    except Exception as error:  # Of many kinds: network, checksum, disk, parsing.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{what} ({reason[:120]}): {advice}") from None


def check_reachable(url: str, advice: str) -> None:
    """Raises a `UserError` unless a server answers: a download without a network waits minutes.

    Args:
        url: What is asked for, of which only the head is read.
        advice: What else to do.
    """
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        pass  # A server answered; let the download find out.
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url} cannot be reached ({reason}): {advice}") from None
