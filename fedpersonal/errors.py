"""The one exception that stands for a user's mistake."""


class UserError(ValueError):
    """A mistake of the caller that one line explains; binaries print it and exit with status 2."""
