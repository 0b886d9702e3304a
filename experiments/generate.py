"""Writes texts as a user of a FedPerC run would. The same as `fedpersonal generate`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("generate")
