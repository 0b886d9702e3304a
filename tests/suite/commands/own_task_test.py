"""A task of one's own, by its module, in the commands that take a task."""

from __future__ import annotations

import re
import shlex

import pytest

from fedpersonal.errors import UserError
from fedpersonal.files import read_json
from fedpersonal.runs.folder import RunFolder
from fedpersonal.suite.tasks.find import find_task

HOUSES = '''
"""Houses, which are digits, by a method of their own."""
import fedpersonal as fp
from fedpersonal.suite.commands import launch
from fedpersonal.suite.tasks.digits.task import DigitTask


@fp.register
class Turns(fp.Method, name="turns", local_variables="kept", local_part="head"):
    """Trains the head, then the rest."""

    def phases(self):
        return self.phase("local"), self.phase("global")


class Houses(DigitTask):
    """Which house an image shows."""

    name = "houses"
    metrics = ("loss", "accuracy")
    defaults = {"method": "turns", "num_clients": 12, "total_rounds": 2, "rounds_per_eval": 2}


TASK = Houses()
main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
'''
MODULE = "my_package.houses"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """A folder with a package that has the task."""
    folder = tmp_path_factory.mktemp("own")
    package = folder / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "houses.py").write_text(HOUSES)
    (package / "broken.py").write_text("import fedpersonal\n\nTASK = fedpersonal.Tusk()\n")
    (package / "wrong.py").write_text("TASK = (\n")
    (package / "lacks.py").write_text("import absent_package\n")
    return folder


@pytest.fixture(name="sweep", scope="module")
def _sweep(folder, run_program):
    """What a sweep of the task prints."""
    grid = ["--grid=hidden_dim=4,8", "--seeds=1", "--jobs=1", "--output_dir=out"]
    asked = ["-m", "experiments.sweep", MODULE, *grid, "--nocompile"]
    output, errors, status = run_program(*asked, cwd=folder)
    assert (errors, status) == ("", 0)
    return output


def test_a_sweep_takes_an_own_task_by_its_module(folder, sweep):
    runs = {size: folder / "out" / f"hidden_dim={size}" / "seed_0" for size in ("4", "8")}
    validated = {
        size: read_json(path / "validation.json", checked=True) for size, path in runs.items()
    }
    assert not any(one["diverged"] for one in validated.values())
    (line,) = re.findall("^    python -m (.*)$", sweep, re.MULTILINE)
    (chosen,) = re.findall(r"hidden_dim=(\d)", line)
    assert chosen == min(runs, key=lambda size: validated[size]["metrics"]["loss"])
    options = RunFolder.read(runs[chosen]).config["options"]
    assert (options["task"], options["method"]) == (MODULE, "turns")


@pytest.mark.exhaustive
def test_commands_take_an_own_task_by_its_module(folder, sweep, run_commands):
    output = sweep
    (line,) = re.findall("^    python -m (.*)$", output, re.MULTILINE)
    runs = ["out/hidden_dim=4/seed_0", "out/hidden_dim=8/seed_0"]
    commands = [
        shlex.split(line),
        ["audit", f"--task={MODULE}", "--audit_rounds=1", "--nocompile"],
        ["compare", *runs, f"--task={MODULE}"],
        ["compare", *runs],
    ]
    modules = ["fedpersonal.suite.tasks.experiment"]
    repeated, audited, compared, by_accuracy = run_commands(commands, modules=modules, cwd=folder)
    assert repeated[2] == audited[2] == compared[2] == by_accuracy[2] == 0, audited[1]
    assert "severed: holds" in audited[0]
    assert compared[0].startswith("loss of ") and by_accuracy[0].startswith("accuracy of ")
    # The command of the chosen setting does as the sweep did, and its folder says whose it is.
    chosen = RunFolder.read(folder / "out" / "chosen")
    (size,) = re.findall(r"hidden_dim=(\d)", line)
    of_sweep = RunFolder.read(folder / f"out/hidden_dim={size}/seed_0")
    assert chosen.summary["test"] == of_sweep.summary["test"]
    for record in (chosen, of_sweep):
        options = record.config["options"]
        assert (options["task"], options["method"]) == (MODULE, "turns")


@pytest.fixture(name="importable")
def _importable(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("movielen", "there is no task 'movielen', .*; did you mean movielens. There are .*digits"),
        ("my_package.house", "there is no task 'my_package.house', and no module of this name"),
        ("", "there is no task ''"),
        ("my_package", "the module my_package has no TASK"),
        (
            "my_package.broken",
            r"cannot be imported: AttributeError: .*Tusk.* \(broken.py, line 3",
        ),
        ("my_package.wrong", r"cannot be imported: SyntaxError: .* \(wrong.py, line 1\)\."),
        ("my_package.lacks", r"cannot be imported: ModuleNotFoundError: .*\(lacks.py, line 1\)"),
    ],
)
def test_what_is_no_task_is_told_in_one_line(importable, name, why):
    with pytest.raises(UserError, match=why) as refusal:
        find_task(name)
    assert "\n" not in str(refusal.value)


def test_an_own_task_is_an_entry_of_the_leaderboard_at_its_defaults(importable, monkeypatch):
    from fedpersonal.suite.leaderboard.tasks import QUICK, user_entry

    task = find_task("examples.own_task")
    entry = user_entry("examples.own_task")
    assert (entry.library, entry.metric, entry.is_seen, entry.lower) == (
        *(task, "accuracy", True, False),
    )
    method = task.methods["fed_rep"]
    assert entry.values(QUICK, method, {}) == {"method": "fed_rep"}
    monkeypatch.setattr(type(task), "metrics", ("cosiness",))
    with pytest.raises(UserError, match="unknown whether lower or higher cosiness is better"):
        user_entry("examples.own_task")
