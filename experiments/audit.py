"""Checks by experiment what one client sends. The same as `fedpersonal audit`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("audit")
