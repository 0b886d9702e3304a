"""The command `fedpersonal`: its table, its help, its complaints, what it hands on."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import time

import pytest

from fedpersonal.suite.commands import command, subcommands

NAMES = [name for group in subcommands.SUBCOMMANDS.values() for name in group]
# It is no program of users.
WITHOUT = {
    "command",
    "methods_pages",
    "notebook",
    "options_page",
    "results_page",
    "results_pictures",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_subcommand_has_a_module(name):
    own = subcommands.DATA_COMMANDS.get(name)
    assert importlib.util.find_spec(f"experiments.{own.task if own else name}") is not None


def test_each_program_is_a_subcommand():
    files = pathlib.Path(command.__file__).parent.glob("*.py")
    programs = {file.stem for file in files if '\nif __name__ == "__main__"' in file.read_text()}
    assert programs - WITHOUT <= set(NAMES)
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("arguments", [["--help"], []])
def test_help_comes_at_once_and_lists_everything(arguments, run_program, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    python = ("-X", "importtime", "-m", "fedpersonal")
    output, imported, status = run_program(*python, *arguments, cwd=tmp_path)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert status == 0
    assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime < 0.3
    assert not re.search(r"\| +(absl|numpy|pandas|tensorflow)\b", imported)
    listed = re.findall(r"^  (\w+) +\w", output, re.MULTILINE)
    assert listed == NAMES
    assert [line[:-1] for line in output.splitlines() if line.endswith(":")] == [
        *subcommands.SUBCOMMANDS
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["movielnes"], "'movielnes' is no subcommand; did you mean movielens?"),
        (["tvshows", "--seed=1"], "'tvshows' is no subcommand; did you mean tv_shows?"),
        (["--seed=1"], "'--seed=1' is no subcommand; `fedpersonal --help` lists all."),
        (["\x1b[31m\n"], r"'\x1b[31m\n' is no subcommand; `fedpersonal --help` lists all."),
        (["completion"], "completion is for bash or zsh: fedpersonal completion bash"),
        (["completion", "fish"], "completion is for bash or zsh: fedpersonal completion bash"),
    ],
)
def test_mistakes_are_one_line(arguments, complaint, run_program, tmp_path):
    outcome = run_program("-m", "fedpersonal", *arguments, cwd=tmp_path)
    assert outcome == ("", f"error: {complaint}\n", 2)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("movielens", ["--help"]),
        ("generate", ["--user=a"]),
        ("doctor", ["--data=x"]),
    ],
)
def test_a_subcommand_is_the_program_of_its_name(name, arguments, run_program, tmp_path):
    ours = run_program("-m", "fedpersonal", name, *arguments, cwd=tmp_path)
    assert ours == run_program("-m", f"experiments.{name}", *arguments, cwd=tmp_path)
    assert ours[2] == (0 if arguments == ["--help"] else 2)


@pytest.fixture(name="script", scope="module")
def _script(run_program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    output, errors, status = run_program("-m", "fedpersonal", "completion", "bash", cwd=folder)
    assert (errors, status) == ("", 0)
    return output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash is installed")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fedpersonal", "mov"], ["movielens"]),
        (["fedpersonal", "re"], ["reddit", "report", "reproduce"]),
        (["fedpersonal", "ra"], ["ranking", "ratings"]),
        (["fedpersonal", "movielens", "--client_l"], ["--client_learning_rate"]),
        (["fedpersonal", "utterances", "--siz"], ["--size"]),
        (["fedpersonal", "stackoverflow", "--seed=1", "--vocab"], ["--vocab_size"]),
        (["fedpersonal", "doctor", "--da"], ["--data_dir"]),
        (["fedpersonal", "sweep", "--gri"], ["--grid"]),
        (["fedpersonal", "nothing", "--"], []),
    ],
)
def test_bash_completes_subcommands_and_flags(script, words, expected):
    asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _fedpersonal"
    program = f'{script}\n{asked}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == expected and not done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh is installed")
def test_zsh_completes_in_a_terminal(script, tmp_path):
    loading = command._SCRIPTS["zsh"].removesuffix(command._SCRIPTS["bash"]).format()
    (tmp_path / "completion.zsh").write_text(loading + script)
    (tmp_path / ".zshrc").write_text("source ~/completion.zsh; echo loaded\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(HOME=str(tmp_path), ZDOTDIR=str(tmp_path), TERM="dumb")
        os.execvp("zsh", ["zsh", "-i"])

    def shown(until):
        """Returns what the terminal shows, up to a text."""
        found, deadline = "", time.monotonic() + 60
        while until not in found and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1)[0]:
                found += os.read(terminal, 4096).decode(errors="replace")
        return found

    try:
        assert "not found" not in shown("loaded")
        os.write(terminal, b"fedpersonal mov\t")
        assert "movielens" in shown("movielens")
        os.write(terminal, b"--client_lear\t")
        assert "--client_learning_rate" in shown("--client_learning_rate")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
