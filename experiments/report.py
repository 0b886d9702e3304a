"""Writes the page of finished runs again. The same as `fedpersonal report`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("report")
