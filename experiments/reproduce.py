"""Makes a paper's table or figure. The same as `fedpersonal reproduce`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("reproduce")
