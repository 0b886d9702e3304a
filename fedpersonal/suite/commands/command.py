"""All programs of fedpersonal as one command, with the flags of each.

fedpersonal movielens --total_rounds=100
fedpersonal movielens --help
"""

from __future__ import annotations

import concurrent.futures
import difflib
import importlib
import re
import runpy
import subprocess
import sys
from types import TracebackType
from typing import Any

from fedpersonal.suite.commands.subcommands import DATA_COMMANDS, SUBCOMMANDS, TASKS

PACKAGE = "fedpersonal.suite.commands"
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
# `complete` is a command of bash; in zsh, its completion system must be loaded first.
_SCRIPTS["zsh"] = f"""\
(( $+functions[compdef] )) || {{{{ autoload -U compinit && compinit; }}}}
autoload -U bashcompinit && bashcompinit
{_SCRIPTS["bash"]}"""


def main() -> None:
    """Runs the program that the first argument names, with the other arguments."""
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
        run(name)
    else:
        near = difflib.get_close_matches(name, [*_names(), _COMPLETION], 1)
        advice = f"did you mean {near[0]}?" if near else "`fedpersonal --help` lists all."
        _complain(f"{ascii(name[:60])} is no subcommand; {advice}")


def run(name: str) -> None:
    """Runs a subcommand with the flags in `sys.argv`, and exits.

    Args:
        name: One of `SUBCOMMANDS`.
    """
    sys.excepthook = _without_interruption
    if _task(name) not in TASKS:
        runpy.run_module(f"{PACKAGE}.{name}", run_name="__main__", alter_sys=True)
        return
    from absl import flags

    from fedpersonal.suite.commands import launch

    flags.disclaim_key_flags()  # They belong to the binary.
    launch.run(find_main(name))


def find_main(name: str) -> Any:
    """Returns what `launch.run` runs for a subcommand.

    Args:
        name: One of `SUBCOMMANDS`.
    """
    task = _task(name)
    if task not in TASKS:
        return importlib.import_module(f"{PACKAGE}.{name}").main
    module = importlib.import_module(f"fedpersonal.suite.tasks.{TASKS[task]}.task")
    from fedpersonal.suite.commands import launch

    return launch.task_main(module.TASK, name)


def _task(name: str) -> str:
    return DATA_COMMANDS[name].task if name in DATA_COMMANDS else name


def _without_interruption(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints one line where Ctrl-C interrupts the imports before a program begins."""
    if issubclass(kind, KeyboardInterrupt):
        print("Stopped before the program started.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _names() -> list[str]:
    return [name for group in SUBCOMMANDS.values() for name in group]


def _usage() -> str:
    lines = ["fedpersonal SUBCOMMAND --flag=value ...: partially local federated learning"]
    for group, members in SUBCOMMANDS.items():
        lines += ["", f"{group}:", *(f"  {name:14} {help}" for name, help in members.items())]
    lines += [
        "\nBegin with: fedpersonal ratings --ratings_file=ratings.csv --size=quick",
        "It prints the folder of the run; open report.html there in a browser.",
        "fedpersonal SUBCOMMAND --help shows the main flags, --helpfull all of them.",
        "fedpersonal completion bash|zsh prints a script that completes names and flags.",
    ]
    return "\n".join(lines)


def _completion(shell: str) -> str:
    """Returns the completion script of a shell, with the flags in each program's help."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        flags = dict(zip(_names(), pool.map(_flags, _names())))
    cases = "\n".join(f'      {name}) words="{" ".join(f)}" ;;' for name, f in flags.items())
    return _SCRIPTS[shell].format(names=" ".join([*_names(), _COMPLETION]), cases=cases)


def _flags(name: str) -> list[str]:
    """Returns the flags of a program."""
    command = [sys.executable, "-m", "fedpersonal", name, "--helpfull"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [f"--{flag}" for flag in _FLAG.findall(done.stdout)]


def _complain(line: str) -> None:
    print("error:", line, file=sys.stderr)
    sys.exit(_MISTAKE)


if __name__ == "__main__":
    main()
