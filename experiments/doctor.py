"""Checks whether experiments can run on this machine. The same as `fedpersonal doctor`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("doctor")
