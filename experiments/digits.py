"""FedRep and rivals on handwritten digits of heterogeneous clients. As `fedpersonal digits`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("digits")
