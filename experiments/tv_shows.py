"""FedPerC and rivals on utterances of characters. The same as `fedpersonal tv_shows`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("tv_shows")
