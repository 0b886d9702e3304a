from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from fedpersonal.runs.folder import RunFolder
from fedpersonal.suite.commands import launch

_PROGRAM = '''
"""Trains a toy.

This program stands for a binary.
"""
import json
import os
import sys

from absl import flags
from absl import logging

from fedpersonal.suite.commands import launch
from fedpersonal.suite.commands import option_flags
from fedpersonal.errors import UserError
from fedpersonal.options import Options, option


class Toys(Options):
    """What toys do."""

    method: str = option(
        "fed_recon", "What to train.", choices=("fed_recon", "fed_avg"), in_help=True
    )
    total_rounds: int = option(7, "Rounds.", at_least=1)
    clients_per_round: int = option(3, "Clients.", at_least=1)
    rate: float = option(0.5, "A rate.", above=0)
    seed: int = option(0, "A seed.", at_least=0)


flags.DEFINE_string("own", None, "No option.")
option_flags.define(Toys)


def main():
    heavy = [name for name in ("tensorflow", "numpy", "pandas") if name in sys.modules]
    logging.info("too much")
    values = option_flags.parse(Toys).values()
    print(json.dumps({"options": values, "folder": os.getcwd(), "heavy": heavy,
                      "level": os.environ["TF_CPP_MIN_LOG_LEVEL"]}), flush=True)
    exec(os.environ.get("TOY", ""), {"UserError": UserError})


if __name__ == "__main__":
    launch.run(main)
'''


@pytest.fixture(name="start")
def _start(tmp_path):
    """Returns a function that starts the program in a folder of its own."""
    program = tmp_path / "toy.py"
    program.write_text(_PROGRAM)

    def start(*arguments, cwd=tmp_path, stderr=subprocess.PIPE, preexec_fn=None, **environment):
        return subprocess.Popen(
            [sys.executable, program, *arguments],
            cwd=cwd,
            env={
                name: value
                for name, value in {
                    **{name: value for name, value in os.environ.items() if name[:3] != "TF_"},
                    "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
                    **environment,
                }.items()
                if value is not None
            },
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=preexec_fn,
        )

    return start


@pytest.fixture(name="run")
def _run(start):
    """Returns a function that runs the program: its status, what it said, what it complained."""

    def run(*arguments, **options):
        process = start(*arguments, **options)
        try:
            output, errors = process.communicate(timeout=600)
        finally:
            process.kill()
        return process.returncode, output, errors

    return run


def test_main_sees_the_options_and_nothing_heavy_is_loaded_before(run, tmp_path):
    status, output, errors = run("--seed=5", "--method=fed_avg")
    assert (status, errors) == (0, "")
    seen = json.loads(output)
    assert seen["heavy"] == [] and seen["level"] == "3" and seen["folder"] == str(tmp_path)
    assert seen["options"] == {
        "method": "fed_avg", "total_rounds": 7, "clients_per_round": 3, "rate": 0.5, "seed": 5,
    }  # fmt: skip


def test_help_comes_at_once(run):
    status, output, imported = run("--help", PYTHONPROFILEIMPORTTIME="1")
    assert "absl.flags" in imported
    assert not any(heavy in imported for heavy in ("tensorflow", "numpy", "pandas"))
    status, output, errors = run("--help")
    assert (status, errors) == (0, "")
    assert "Trains a toy." in output
    shown = re.findall("^  --([a-z_]+)", output, re.MULTILINE)
    assert shown == ["method", "own", "flagfile"]
    told = " ".join(output.split())
    assert "What to train. One of fed_recon, fed_avg. [default: fed_recon]" in told
    status, output, errors = run("--helpfull")
    assert (status, errors) == (0, "")
    options, own, others = (part.splitlines() for part in output.split("\n\n")[-3:])
    assert options[0] == "What toys do:" and own[0] == "This program:"
    assert sum(line.startswith("  --") for line in own) == 1
    assert [line.split()[0] for line in options if line.startswith("  --")] == [
        "--method", "--total_rounds", "--clients_per_round", "--rate", "--seed",
    ]  # fmt: skip
    assert others[0] == "Every program:" and "logtostderr" in "".join(others)


def test_a_flagfile_twice_is_no_circle(run, tmp_path):
    (tmp_path / "seed.flags").write_text("--seed=4\n")
    (tmp_path / "both.flags").write_text("--flagfile=seed.flags\n--flagfile=seed.flags\n")
    status, output, errors = run("--flagfile", "both.flags", "--rate=2", "--flagfile=seed.flags")
    assert (status, errors) == (0, "")
    options = json.loads(output)["options"]
    assert (options["seed"], options["rate"]) == (4, 2.0)


def test_relative_paths_mean_the_calling_folder_under_bazel(run, tmp_path):
    root, called, runfiles = tmp_path / "root", tmp_path / "root" / "sub", tmp_path / "runfiles"
    for folder in (root, called, runfiles):
        folder.mkdir()
    (called / "here.flags").write_text("--seed=11\n")
    (root / "presets").mkdir()
    (root / "presets" / "x.flags").write_text("# A comment\n--seed=12\n--total_rounds=3\n")
    bazel = {"BUILD_WORKING_DIRECTORY": str(called), "BUILD_WORKSPACE_DIRECTORY": str(root)}
    for flagfile, seed in [("here.flags", 11), ("presets/x.flags", 12)]:
        status, output, errors = run(f"--flagfile={flagfile}", cwd=runfiles, **bazel)
        assert (status, errors) == (0, "")
        seen = json.loads(output)
        assert seen["folder"] == str(called)
        assert seen["options"]["seed"] == seed


@pytest.mark.parametrize(
    ("toy", "status", "begins", "ends"),
    [
        (
            "raise UserError('--data_dir: no ratings\\nin data')",
            *(2, "error: --data_dir: no ratings in data\n", ""),
        ),
        (
            "open('/dev/full', 'w', buffering=1).write('x\\n')",
            *(2, "error: a file: No space left on device.\n", ""),
        ),
        ("open('/', 'w')", 2, "error: /: Is a directory.\n", ""),
        ("import os; os.mkdir('/dev/null/x')", 2, "error: /dev/null/x: Not a directory.\n", ""),
        # It is not the pipe to a reader that has gone.
        (
            "raise BrokenPipeError(32, 'Broken pipe')",
            *(1, "Traceback", "BrokenPipeError: [Errno 32] Broken pipe\n"),
        ),
        ("raise ValueError('a bug')", 1, "Traceback", "ValueError: a bug\n"),
    ],
)
def test_mistakes_are_a_line_and_bugs_a_traceback(run, toy, status, begins, ends):
    returned, _, errors = run(TOY=toy)
    assert returned == status
    assert errors.startswith(begins) and errors.endswith(ends)


@pytest.mark.parametrize("arguments", [[], ["--helpfull"]])
def test_output_that_nobody_reads_any_more_ends_the_program_quietly(start, arguments):
    process = start(*arguments)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == ("", 141)


def test_a_mistake_that_the_full_disk_does_not_let_it_tell(start):
    with open("/dev/full", "w") as full:
        process = start(stderr=full, TOY="raise UserError('no')")
        process.communicate(timeout=60)
    assert process.returncode == 2


def test_a_full_disk_is_no_matter_of_the_import(tmp_path):
    program = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
import fedpersonal
"""
    environment = {"PYTHONPATH": os.getcwd(), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_a_temporary_folder_a_line_says_so(start):
    process = start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("error: No usable temporary directory found in ['")
    assert errors.endswith("; is the disk full (df, ulimit -f)?\n")


def test_ctrl_c_while_modules_are_imported_is_one_line():
    program = (
        "import os, signal\n"
        "from fedpersonal.suite.commands import command\n"
        "command.find_main = lambda name: os.kill(os.getpid(), signal.SIGINT)\n"
        "command.run('movielens')"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == b"Stopped before the program started.\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit(143), ValueError])
@pytest.mark.parametrize("has_rounds", [None, False, True])
def test_what_ends_before_the_first_round_has_begun_nothing(tmp_path, capsys, error, has_rounds):
    folder = None if has_rounds is None else RunFolder.open(tmp_path, {})
    if has_rounds:
        folder.metrics_csv.write_text("")
    with pytest.raises((KeyboardInterrupt, SystemExit, ValueError)):
        with launch._reporting_early_end(folder):
            raise error
    says = error is not ValueError and not has_rounds
    assert capsys.readouterr().err == "Stopped before the first round.\n" * says


@pytest.mark.exhaustive(but=("15-143",))
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_the_run_and_says_how_to_go_on(start, tmp_path, number, status):
    toy = textwrap.dedent(
        """
        import time, types
        from fedpersonal.runs import folder
        from fedpersonal.training import loop
        class Process:
            def initialize(self):
                return 0
            def next(self, state, cohort):
                time.sleep(0.03)
                return types.SimpleNamespace(state=state + 1, metrics={"loss": 1.0})
        print(loop.run_rounds(
            process=Process(), cohort_fn=lambda round_number: None, total_rounds=100,
            run_folder=folder.RunFolder.open("run", {}), rounds_per_checkpoint=1000,
        ).state)
        """
    )
    process = start(TOY=toy)
    deadline = time.monotonic() + 600
    metrics = tmp_path / "run" / "metrics.csv"
    while not (metrics.exists() and metrics.read_text().count("\n") > 20):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == status
    last = errors.splitlines()[-1]
    assert last.startswith("Stopped after round ")
    assert last.endswith("; the same command resumes the run.")
    assert "Traceback" not in errors
    process = start(TOY=toy)
    output, errors = process.communicate(timeout=60)
    assert output.splitlines()[-1] == "100"
    assert errors.startswith("Resuming after round ")
