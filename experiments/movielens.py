"""FedRecon and rivals on ratings of MovieLens. The same as `fedpersonal movielens`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("movielens")
