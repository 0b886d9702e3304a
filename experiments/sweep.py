"""Chooses options of a task on validation clients. The same as `fedpersonal sweep`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("sweep")
