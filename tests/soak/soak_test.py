"""That the soak sees what a run may not do; the programs here stand for runs."""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import sys

import numpy as np
import pytest

from tests.soak import faults
from tests.soak.runs import CASES, Case, Fault, Session, differences, outcome
from tests.soak.trials import Trial, draw_trials


@dataclasses.dataclass(frozen=True)
class _Toy(Case):
    """A program in place of a binary."""

    program: str = ""

    def arguments(self, folder):
        return ["-c", f"import os, pathlib, sys, time\nrun = {str(folder)!r}\n" + self.program]


def _toy(program, **options):
    return _Toy("toy", "toy", (), 10, 1, program=program, **options)


def test_faults_are_counted_and_all_runs_come_along():
    trials = draw_trials(0, 200, CASES)
    assert sum(trial.faults for trial in trials) == 200
    assert {trial.case for trial in trials} == set(CASES)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert draw_trials(0, 200, CASES) == trials != draw_trials(1, 200, CASES)


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("raise ValueError('no')", "a traceback"),
        ("sys.exit(2)", "refuses without a line"),
        ("sys.stderr.write('no line\\n'); sys.exit(2)", "refuses without a line"),
        ("pathlib.Path.home().joinpath('x').touch()", "leaves"),
        ("open(os.environ['TMPDIR'] + '/x', 'w')", "leaves"),
    ],
)
def test_what_a_run_may_not_do(tmp_path, program, complaint):
    with pytest.raises(Fault, match=complaint):
        Session(_toy(program), tmp_path / "run").end()


def test_an_orphan_is_found_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.soak.runs._ORPHAN_SECONDS", 0.5)
    program = (
        "import subprocess\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "os._exit(0)"
    )
    session = Session(_toy(program), tmp_path / "run")
    with pytest.raises(Fault, match="orphans: "):
        session.end()
    assert not session._orphans()


def test_a_run_that_counts_a_stop_is_not_as_undisturbed(tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "_BLOWS", (faults._signal(signal.SIGKILL, -signal.SIGKILL),))
    program = """
os.makedirs(run, exist_ok=True)
log = pathlib.Path(run, "metrics.csv")
done = len(log.read_text().splitlines()) - 1 if log.exists() else 0
if not done:
    log.write_text("round,seconds,loss\\n")
started = LOSS
for number in range(done + 1, 11):
    with log.open("a") as lines:
        lines.write(f"{number},{time.monotonic()},{started}\\n")
    time.sleep(0.05)
"""
    right, wrong = (_toy(program.replace("LOSS", loss)) for loss in ("0", "done"))
    (tmp_path / "undisturbed").mkdir()
    Session(right, tmp_path / "undisturbed/run").end()
    expected = outcome(tmp_path / "undisturbed/run")
    seed = next(s for s in range(99) if random.Random(f"{s} 0").random() and _early(s))
    Trial(0, right, 1).make(tmp_path / "right", expected, seed)
    with pytest.raises(Fault, match="metrics.csv: not as in the undisturbed run"):
        Trial(0, wrong, 1).make(tmp_path / "wrong", expected, seed)


def _early(seed):
    """Says whether a trial is hurt after a few of its ten rounds."""
    draw = random.Random(f"{seed} 0")
    draw.choice([0])
    draw.uniform(0, 8)
    return draw.random() < 0.7 and 2 < draw.randrange(10) < 7


@pytest.mark.parametrize("seed", range(12))
def test_damage_changes_one_file(tmp_path, seed):
    run, copied = tmp_path / "run", tmp_path / "copied"
    run.mkdir()
    for name in ("a.json", "b.csv", ".lock", "events.x", "c.png", "d.html"):
        (run / name).write_text("{}" * 9)
    shutil.copytree(run, copied)
    before = faults.files_of(run)
    what = faults.damage(run, random.Random(seed))
    after = faults.files_of(run)
    changed = {name for name in before if after.get(name) != before[name]}
    assert "protect" in what or changed == {what.split()[1]}
    faults.put_back(copied, run)
    assert faults.files_of(run) == before and not copied.exists()


@pytest.mark.parametrize("name", ["model.npz", "metrics.csv", "summary.json", "more"])
def test_outcomes_differ_where_folders_do_but_for_times(tmp_path, name):
    def write(folder, seconds, value):
        folder.mkdir()
        np.savez(folder / "model.npz", w=np.float32(value == "model.npz"))
        (folder / "metrics.csv").write_text(f"loss,seconds\n{value == 'metrics.csv'},{seconds}\n")
        (folder / "summary.json").write_text(f'{{"a": "{value}", "seconds": {seconds}}}')
        if value == "more":
            (folder / "more").touch()
        return outcome(folder)

    plain = write(tmp_path / "a", 1, "")
    assert not differences(write(tmp_path / "b", 2, ""), plain, is_exact=True)
    other = "names of files" if name == "more" else name
    assert other in differences(write(tmp_path / "c", 1, name), plain, is_exact=True)


@pytest.mark.parametrize(
    ("factor", "differ"), [(1 + 1e-5, []), (1.1, ["metrics.csv", "model.npz"])]
)
def test_last_digits_count_only_where_all_bits_do(factor, differ):
    def found(factor):
        row = {"round": "1", "loss": f"{0.5 * factor}", "accuracy": f"{0.3 * factor}"}
        return {
            "metrics.csv": [row],
            "model.npz": {"w": np.float32([3 * factor, 1])},
            "per_client.csv": f"{factor}".encode(),
        }

    assert differences(found(factor), found(1), is_exact=False) == differ
    exactly = ["metrics.csv", "model.npz", "per_client.csv"]
    assert differences(found(factor), found(1), is_exact=True) == exactly
    assert not differences(found(1), found(1), is_exact=True)
