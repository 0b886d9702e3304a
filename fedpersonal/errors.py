"""Users' mistakes, and checks that find them."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake of the caller that one line explains; binaries print it and exit with status 2."""


def check_choice(owner: str, option: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises a ValueError that names the option unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{owner}: {option} must be one of {list(choices)}, not {value!r}.")
