"""Former names still work, and warn."""

from __future__ import annotations

import pytest

import fedpersonal as fp
from fedpersonal import former
from fedpersonal.files import write_json
from fedpersonal.optimizers import build_client_optimizer
from fedpersonal.options import Options, option
from fedpersonal.runs import record
from fedpersonal.suite.tasks.task import Task

SGD = build_client_optimizer("sgd", 0.1)


class Renamed(Options):
    """Options one of which has a former name."""

    jobs: int = option(1, "How many.")


class Present(Options):
    """Options one of which has a name that others had formerly."""

    start: str = option("here", "Where.")


def test_former_option_sets_the_present_one():
    with pytest.warns(FutureWarning, match="'at_once' is now called 'jobs'"):
        options = Renamed(at_once=3)
    assert options.jobs == 3


def test_option_named_like_a_former_one_is_kept():
    assert Present(start="there").start == "there"


def test_former_argument_of_a_method():
    with pytest.warns(FutureWarning, match="'dynamic' is now called 'feddyn_alpha'"):
        algorithm = fp.fed_dyn(client_optimizer=SGD, dynamic=0.7)
    assert algorithm == fp.fed_dyn(client_optimizer=SGD, feddyn_alpha=0.7)


def test_former_public_name(monkeypatch):
    monkeypatch.setitem(former.PUBLIC, "Person", "Trainer")
    with pytest.warns(FutureWarning, match="'Person' is now called 'Trainer'"):
        assert fp.Person is fp.Trainer


def test_former_attribute():
    class Renamed:
        baseline = 1
        guess = former.FormerAttribute("baseline")

    with pytest.warns(FutureWarning, match="'guess' is now called 'baseline'"):
        assert Renamed().guess == 1


def test_run_folder_with_former_options_opens(tmp_path):
    path = tmp_path / "config.json"
    options = {"dynamic": 0.5, "seed": 1, "task": "fedpersonal.tasks.interactions.task"}
    write_json(path, record.merge_config(path, options), checked=True)
    task = "fedpersonal.suite.tasks.ranking.task"
    assert record.read_config(path)["options"] == {"feddyn_alpha": 0.5, "seed": 1, "task": task}


def test_options_of_a_program_keep_their_names(tmp_path):
    for _ in range(2):
        with fp.RunFolder.open(tmp_path, {"start": 1, "beside": 2}) as folder:
            assert folder.config["options"] == {"start": 1, "beside": 2}


def test_warnings_name_the_line_of_the_caller():
    uses = [
        lambda: Renamed(at_once=3),
        lambda: fp.fed_dyn(client_optimizer=SGD, dynamic=0.7),
        lambda: fp.Run,
        lambda: fp.Layers().own,
        lambda: fp.Layers(own_items=("items",)),
    ]
    for use in uses:
        with pytest.warns(FutureWarning) as caught:
            use()
        places = [(warning.filename, warning.lineno) for warning in caught]
        assert places == [(__file__, use.__code__.co_firstlineno)]


def test_former_names_of_the_suite():
    with pytest.warns(FutureWarning, match="'Task' is now called 'suite.Task'"):
        assert fp.Task is Task


def test_command_with_a_former_flag(run_program, tmp_path):
    command = ("-m", "fedpersonal", "sweep", "movielens", "--grid=seed=0", "--beside=-1")
    output, errors, status = run_program(*command, cwd=tmp_path)
    assert (status, output) == (2, "")
    assert "warning: --beside is now called --runners_up" in errors
    assert "--runners_up is -1" in errors


def test_former_members_of_a_task():
    with pytest.warns(FutureWarning, match="'own_options' is now called 'extra_options'"):

        class Houses(Task):
            own_options = fp.Options

    assert Houses.extra_options is fp.Options


def test_former_argument_of_results():
    columns = {"loss": [[1.0, 2.0]]}
    with pytest.warns(FutureWarning, match="'guess' is now called 'baseline'"):
        results = fp.ClientResults(["a"], [2.0], None, columns, None, (), guess={"loss": [3.0]})
    assert results.baseline == {"loss": [3.0]}
