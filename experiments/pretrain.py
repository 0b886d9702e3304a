"""Makes a small GPT-2 from texts, as a base model. The same as `fedpersonal pretrain`."""

from fedpersonal.suite.commands.command import run

if __name__ == "__main__":
    run("pretrain")
