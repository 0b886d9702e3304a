"""Compares finished runs of several methods on one page. The same as `fedpersonal compare`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("compare")
