"""`python -m fedpersonal` is the command `fedpersonal`."""

from __future__ import annotations

if __name__ == "__main__":
    from fedpersonal.suite.commands.command import main

    main()
