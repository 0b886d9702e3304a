"""The help of every task's program: ten flags that matter, and all of them in groups."""

from __future__ import annotations

import re

import pytest

from fedpersonal.options import Options, option
from fedpersonal.tasks.task import all_tasks

_FLAG = re.compile(r"^  --(?:\[no\])?(\w+)", re.MULTILINE)


@pytest.mark.parametrize("binary", sorted(all_tasks()))
def test_help_shows_ten_flags_that_matter_and_helpfull_every_option_once(
    binary, run_program, tmp_path
):
    output, errors, status = run_program("-m", f"experiments.{binary}", "--help", cwd=tmp_path)
    assert (errors, status) == ("", 0)
    shown = _FLAG.findall(output)
    assert shown.pop() == "flagfile"
    assert len(shown) == len(set(shown)) == 10
    usual = {"method", "dataset", "data_dir", "total_rounds", "clients_per_round", "seed"}
    assert usual | {"client_learning_rate", "output_dir"} < set(shown)
    assert max(map(len, output.splitlines())) <= 100

    output, errors, status = run_program("-m", f"experiments.{binary}", "--helpfull", cwd=tmp_path)
    assert (errors, status) == ("", 0)
    everything = _FLAG.findall(output)
    assert len(everything) == len(set(everything))
    declared = set(all_tasks()[binary].options.declarations())
    assert declared | {"output_dir", "experiment_name", "flagfile", "verbosity"} < set(everything)
    groups = [line for line in output.splitlines()[3:] if line.endswith(":") and line[0] != " "]
    assert len(groups) == len(set(groups)) > 10 and groups[-1] == "Every program:"


def test_an_option_keeps_its_group_and_its_place_in_help_when_declared_anew():
    class First(Options):
        """The first group."""

        data: str = option("auto", "Data.", in_help=True)
        rate: float = option(0.1, "Rate.")

    class Second(First, defaults={"rate": 0.2}):
        """The second group.

        It has a paragraph more.
        """

        data: str = option("all", "All data.", choices=("all", "none"))
        own: int = option(1, "Its own.")

    found = Second.declarations()
    assert [(n, d.group, d.rule.in_help) for n, d in found.items()] == [
        ("data", "The first group.", True),
        ("rate", "The first group.", False),
        ("own", "The second group.", False),
    ]
    assert found["data"].rule.choices == ("all", "none") and found["rate"].default == 0.2
