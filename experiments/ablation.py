"""Makes each layer local in turn. The same as `fedpersonal ablation`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("ablation")
