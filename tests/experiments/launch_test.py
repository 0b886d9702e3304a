from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

_PROGRAM = '''
"""Trains a toy.

This program stands for a binary.
"""
import json
import os
import sys

from absl import flags
from absl import logging

from experiments import common_flags
from experiments import launch
from fedpersonal.errors import UserError

flags.DEFINE_enum("algorithm", "fed_recon", ["fed_recon", "fed_avg"], "What to train.")
common_flags.define_common_flags(total_rounds=7, experiment_name="toy")


def main():
    heavy = [name for name in ("tensorflow", "numpy", "pandas") if name in sys.modules]
    logging.info("too much")
    values = common_flags.flag_values()
    print(json.dumps({"flags": values, "folder": os.getcwd(), "heavy": heavy,
                      "level": os.environ["TF_CPP_MIN_LOG_LEVEL"],
                      "output": common_flags.run_folder_path()}), flush=True)
    exec(os.environ.get("TOY", ""), {"UserError": UserError})


if __name__ == "__main__":
    launch.run(main)
'''


@pytest.fixture(name="start")
def _start(tmp_path):
    """Returns a function that starts the program in a folder of its own."""
    program = tmp_path / "toy.py"
    program.write_text(_PROGRAM)

    def start(*arguments, cwd=tmp_path, **environment):
        return subprocess.Popen(
            [sys.executable, program, *arguments],
            cwd=cwd,
            env={
                **{name: value for name, value in os.environ.items() if name[:3] != "TF_"},
                "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(name="run")
def _run(start):
    """Returns a function that runs the program: its status, what it said, what it complained."""

    def run(*arguments, **options):
        process = start(*arguments, **options)
        output, errors = process.communicate(timeout=600)
        return process.returncode, output, errors

    return run


def test_main_sees_the_flags_and_nothing_heavy_is_loaded_before(run, tmp_path):
    status, output, errors = run("--seed=5", "--algorithm=fed_avg")
    assert (status, errors) == (0, "")
    seen = json.loads(output)
    assert seen["heavy"] == []
    assert seen["level"] == "3"
    assert seen["folder"] == str(tmp_path)
    assert seen["output"] == "results/toy"
    assert set(seen["flags"]) == {
        "algorithm", "data_dir", "output_dir", "experiment_name", "total_rounds",
        "clients_per_round", "client_batch_size", "client_learning_rate", "server_optimizer",
        "server_learning_rate", "reconstruction_learning_rate", "rounds_per_eval",
        "rounds_per_checkpoint", "execution", "seed",
    }  # fmt: skip
    assert (seen["flags"]["seed"], seen["flags"]["total_rounds"]) == (5, 7)
    assert seen["flags"]["algorithm"] == "fed_avg"


def test_help_comes_at_once(run):
    status, output, imported = run("--help", PYTHONPROFILEIMPORTTIME="1")
    assert "absl.flags" in imported
    assert not any(heavy in imported for heavy in ("tensorflow", "numpy", "pandas"))
    status, output, errors = run("--help")
    assert (status, errors) == (0, "")
    assert "Trains a toy." in output
    assert "--clients_per_round" in output and "--algorithm" in output
    assert "logtostderr" not in output
    status, output, _ = run("--helpfull")
    assert status == 0
    assert "--seed" in output and "logtostderr" in output


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--sed=1", "Unknown command line flag 'sed'. Did you mean: seed,"),
        ("--seed=x", "flag --seed=x: invalid literal for int() with base 10: 'x'"),
        ("--seed=-1", "flag --seed=-1: -1 is not a non-negative integer"),
        ("--total_rounds=0", "flag --total_rounds=0: 0 is not a positive integer"),
        ("--server_learning_rate=0", "a finite number above 0 is needed"),
        ("--client_learning_rate=inf", "a finite number above 0 is needed"),
        ("--execution=fast", "value should be one of <packed|per_client>"),
        ("--server_optimizer=lamb", "value should be one of <sgd|momentum|adam|yogi|adagrad>"),
        ("movielens", "unexpected argument 'movielens'; flags are written --name=value."),
        ("--flagfile=absent.flags", "absent.flags"),
    ],
)
def test_mistakes_in_flags_are_one_line(run, argument, complaint):
    status, output, errors = run(argument)
    assert (status, output) == (2, "")
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert complaint in errors


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
        assert seen["flags"]["seed"] == seed


def test_mistake_of_the_user_is_one_line(run):
    status, _, errors = run(TOY="raise UserError('--data_dir: no ratings\\nin data')")
    assert (status, errors) == (2, "error: --data_dir: no ratings in data\n")


def test_other_errors_keep_their_traceback(run):
    status, _, errors = run(TOY="raise ValueError('a bug')")
    assert status == 1
    assert errors.startswith("Traceback") and errors.endswith("ValueError: a bug\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_the_run_and_says_how_to_go_on(start, tmp_path, number, status):
    toy = textwrap.dedent(
        """
        import time, types
        from fedpersonal.simulation import loop, run_folder
        class Process:
            def initialize(self):
                return 0
            def next(self, state, cohort):
                time.sleep(0.03)
                return types.SimpleNamespace(state=state + 1, metrics={"loss": 1.0})
        print(loop.run_rounds(
            process=Process(), cohort_fn=lambda round_number: None, total_rounds=100,
            run_folder=run_folder.RunFolder.open("run", {}), rounds_per_checkpoint=1000,
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
    output, errors = process.communicate(timeout=600)
    assert process.returncode == status
    last = errors.splitlines()[-1]
    assert last.startswith("Stopped after round ")
    assert last.endswith("; the same command goes on from there.")
    assert "Traceback" not in errors
    process = start(TOY=toy)
    output, errors = process.communicate(timeout=600)
    assert output.splitlines()[-1] == "100"
    assert errors.startswith("Going on after round ")
