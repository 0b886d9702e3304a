"""FURL and rivals on subreddits of comments, or films liked. The same as `fedpersonal reddit`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("reddit")
