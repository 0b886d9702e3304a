"""PFedRec and rivals on the next film of MovieLens. The same as `fedpersonal interactions`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("interactions")
