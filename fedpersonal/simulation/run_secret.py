"""What a run keeps to itself: the secret that private noise, and who is drawn, follow from."""

from __future__ import annotations

import hashlib
import os
import pathlib
import secrets

from fedpersonal.errors import UserError
from fedpersonal.files import OWNER_ONLY, damaged, explained, read_json, write_json

SECRET = "privacy_secret.json"
_BITS = 126


def new_secret() -> int:
    """Returns a secret that the operating system draws."""
    return secrets.randbits(_BITS)


def derived(secret: int, purpose: str) -> int:
    """Returns a number of as many bits for a purpose; none tells another purpose's."""
    digest = hashlib.sha256(f"{secret:x} {purpose}".encode()).digest()
    return int.from_bytes(digest, "big") % 2**_BITS


def settle_secret(folder: pathlib.Path, secret: int) -> int:
    """Returns the secret of a run that goes on in a folder; of a new one, that which is given.

    For as long as the run has not ended, its owner alone can read it in the folder.

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
            f"{damaged(path)} Without it the run cannot go on exactly as it began. Remove the file "
            "to go on with a new secret."
        ) from error


def forget_secret(folder: pathlib.Path) -> None:
    """Removes the secret of a run that has ended, if there is one."""
    path = folder / SECRET
    with explained(path):
        path.unlink(missing_ok=True)
