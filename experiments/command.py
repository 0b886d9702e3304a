"""All programs of fedpersonal as one command, with the flags of each.

fedpersonal movielens --total_rounds=100
fedpersonal movielens --help
"""

from __future__ import annotations

import concurrent.futures
import difflib
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple


class OwnData(NamedTuple):
    """What a command for one's own table runs.

    Attributes:
        task: The task, whose program of that name has the defaults of a data set.
        does: What it does with the table.
        file_flag: The flag that names the table.
        columns: The columns that the table must have.
        instead: What the task's program trains on where no table is named.
    """

    task: str
    does: str
    file_flag: str
    columns: str
    instead: str


# The commands for one's own table, by name; `sweep` and others take these names, too.
OWN_DATA: Mapping[str, OwnData] = {
    "ratings": OwnData(
        "movielens", "predict ratings", "ratings_file", "user, item, rating", "MovieLens"
    ),
    "ranking": OwnData(
        "interactions",
        "rank the item that a user chooses next",
        "interactions_file",
        "user, item",
        "MovieLens",
    ),
    "next_word": OwnData(
        "stackoverflow", "predict the next word", "text_file", "user, text", "generated texts"
    ),
    "labels": OwnData(
        "reddit",
        "predict labels of texts",
        "text_file",
        "user, text, context (the label; --label_column)",
        "generated comments",
    ),
    "utterances": OwnData(
        "tv_shows",
        "fit a language model to speakers",
        "text_file",
        "user, text, context (where it is said)",
        "generated dialogues",
    ),
}
# Nothing but the standard library is imported here: help comes at once, and `doctor` runs where
# packages are missing. By group and name of a subcommand, what it does; `experiments` has a module
# of its name, or of its task's.
SUBCOMMANDS: Mapping[str, Mapping[str, str]] = {
    "train on your own table": {
        name: f"{own.does}; columns {own.columns}" for name, own in OWN_DATA.items()
    },
    "train on public or made-up data": {
        "movielens": "ratings of MovieLens: FedRecon and rivals",
        "interactions": "the next film of MovieLens: PFedRec and rivals",
        "digits": "handwritten digits of unlike clients: Ditto and rivals",
        "stackoverflow": "next words of Stack Overflow: FedRecon and rivals",
        "reddit": "subreddits of comments, or films liked: FURL and rivals",
        "tv_shows": "utterances of characters: FedPerC and rivals",
        "pretrain": "make a small GPT-2 from texts, as a base model",
    },
    "look at runs": {
        "report": "write the page of finished runs again",
        "compare": "compare finished runs of several methods on one page",
        "generate": "write texts as a user of a FedPerC run would",
    },
    "check": {
        "doctor": "say whether experiments can run on this machine",
        "audit": "check by experiment what one client sends",
    },
    "choose and reproduce": {
        "leaderboard": "compare all methods on all tasks, tuned alike",
        "sweep": "choose options of a program on validation clients",
        "ablation": "make each layer local in turn",
        "reproduce": "make a paper's table or figure, published figures beside measured",
    },
}
# The name of a global of the module that runs: the subcommand by which it was called.
CALLED = "_called"
_COMPLETION = "completion"
_MISTAKE = 2
_FLAG = re.compile(r"^  --(?:\[no\])?(\w+)", re.MULTILINE)
_SCRIPTS = {
    "bash": """_fedpersonal() {{
  local words="{names}"
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
      *) words="" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _fedpersonal fedpersonal""",
}
# `complete` is bash's; zsh's own is loaded first, where the user has not done so.
_SCRIPTS["zsh"] = f"""\
(( $+functions[compdef] )) || {{{{ autoload -U compinit && compinit; }}}}
autoload -U bashcompinit && bashcompinit
{_SCRIPTS["bash"]}"""


def main() -> None:
    """Runs the program that the first argument names on the others."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(_usage())
    elif name == _COMPLETION:
        if rest[:1] and rest[0] in _SCRIPTS and not rest[1:]:
            print(_completion(rest[0]))
        else:
            _complain("completion is for bash or zsh: fedpersonal completion bash")
    elif name in _names():
        sys.argv = [sys.argv[0], *rest]
        module = OWN_DATA[name].task if name in OWN_DATA else name
        called = {CALLED: name}
        runpy.run_module(f"experiments.{module}", called, run_name="__main__", alter_sys=True)
    else:
        near = difflib.get_close_matches(name, [*_names(), _COMPLETION], 1)
        advice = f"did you mean {near[0]}?" if near else "`fedpersonal --help` lists all."
        _complain(f"{ascii(name[:60])} is no subcommand; {advice}")


def _names() -> list[str]:
    return [name for group in SUBCOMMANDS.values() for name in group]


def _usage() -> str:
    lines = ["fedpersonal SUBCOMMAND --flag=value ...: partially local federated learning"]
    for group, members in SUBCOMMANDS.items():
        lines += ["", f"{group}:", *(f"  {name:14} {help}" for name, help in members.items())]
    lines += [
        "\nBegin with: fedpersonal ratings --ratings_file=ratings.csv --size=quick",
        "It prints the folder of the run; open report.html there in a browser.",
        "fedpersonal SUBCOMMAND --help shows the flags that matter, --helpfull all of them.",
        "fedpersonal completion bash|zsh prints a script that completes names and flags.",
    ]
    return "\n".join(lines)


def _completion(shell: str) -> str:
    """Returns the script of a shell; flags are those of each program's help."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        flags = dict(zip(_names(), pool.map(_flags, _names())))
    cases = "\n".join(f'      {name}) words="{" ".join(own)}" ;;' for name, own in flags.items())
    return _SCRIPTS[shell].format(names=" ".join([*_names(), _COMPLETION]), cases=cases)


def _flags(name: str) -> list[str]:
    """Returns the flags of a program."""
    command = [sys.executable, "-m", "experiments.command", name, "--helpfull"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [f"--{flag}" for flag in _FLAG.findall(done.stdout)]


def _complain(line: str) -> None:
    print("error:", line, file=sys.stderr)
    sys.exit(_MISTAKE)


if __name__ == "__main__":
    main()
