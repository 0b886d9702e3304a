"""The help of every task's program: the flags that matter, and all of them in groups."""

from __future__ import annotations

import re

import pytest

from fedpersonal.suite.commands.subcommands import DATA_COMMANDS
from fedpersonal.suite.tasks.find import all_tasks

_FLAG = re.compile(r"^  --(?:\[no\])?(\w+)", re.MULTILINE)


@pytest.fixture(name="shown_help")
def _shown_help(run_program, tmp_path):
    """Returns the help of a program, which is that of the module that Python is started with."""

    def run(binary, kind):
        output, errors, status = run_program("-m", f"experiments.{binary}", kind, cwd=tmp_path)
        assert (errors, status) == ("", 0)
        return output

    return run


@pytest.mark.exhaustive(but=("tv_shows",))
@pytest.mark.parametrize("binary", sorted(all_tasks()))
def test_help_shows_flags_that_matter_and_helpfull_every_option_once(binary, shown_help):
    output = shown_help(binary, "--help")
    shown = _FLAG.findall(output)
    assert shown.pop() == "flagfile"
    assert len(shown) == len(set(shown)) == 11
    declared = set(all_tasks()[binary].options.declarations())
    usual = {"method", "total_rounds", "clients_per_round", "seed", "client_learning_rate"}
    usual |= {"dataset", "data_dir"} & declared
    assert usual | {"output_dir", "size"} < set(shown)
    assert max(map(len, output.splitlines())) <= 100

    output = shown_help(binary, "--helpfull")
    everything = _FLAG.findall(output)
    assert len(everything) == len(set(everything))
    assert declared | {"output_dir", "experiment_name", "flagfile", "verbosity"} < set(everything)
    groups = [line for line in output.splitlines()[3:] if line.endswith(":") and line[0] != " "]
    assert len(groups) == len(set(groups)) > 10 and groups[-1] == "Every program:"


@pytest.mark.exhaustive(but=("ratings",))
@pytest.mark.parametrize("name", DATA_COMMANDS)
def test_help_of_a_command_for_own_data_begins_with_the_table(name, run_program, tmp_path):
    output, errors, status = run_program("-m", "fedpersonal", name, "--help", cwd=tmp_path)
    own, shown = DATA_COMMANDS[name], _FLAG.findall(output)
    assert (errors, status) == ("", 0) and own.columns in output
    declared = all_tasks()[own.task].options.declarations()
    # The columns of which the first lines speak are what options call them.
    columns = [n for n in shown if n.endswith("_column")]
    assert {declared[n].default for n in columns} == {
        *re.findall(r"\w+(?=,|$| \()", own.columns)
    } | {"time"}
    format = ["separator", "header", "quoting", "encoding"]
    first = [own.file_flag, *columns, *format, "num_users", "users_file", "size"]
    assert shown[: len(first)] == first and not {"dataset", "data_dir"} & {*shown}
    assert max(map(len, output.splitlines())) <= 100


def test_an_option_of_several_tasks_is_one_flag_and_what_rows_settle_is_none(shown_help):
    shown = _FLAG.findall(shown_help("reproduce", "--helpfull"))
    assert shown.count("text_column") == 1
    assert "label_column" in shown and "vocab_size" not in shown
