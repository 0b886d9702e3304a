"""Compares all methods on all tasks, tuned alike. The same as `fedpersonal leaderboard`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("leaderboard")
