"""FedRecon and rivals on next words of Stack Overflow. The same as `fedpersonal stackoverflow`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("stackoverflow")
