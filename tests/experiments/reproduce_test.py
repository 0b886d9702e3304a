"""The command that reproduces tables: its flags, and one small table by it."""

from __future__ import annotations

import re


def test_flags_are_told_and_mistakes_are_one_line(run_commands, tmp_path):
    commands = [
        ["reproduce", "--helpfull"],
        ["reproduce", "--target=table1", "--text_file=a.csv"],
        ["reproduce", "--target=table2", "--dataset=tv_shows"],
        ["reproduce", "--target=figure2", "--vocab_sizes=10,many"],
        ["reproduce", "--target=table3", "--rows=Nobody", "--dataset=generated"],
    ]
    help_text, *mistakes = run_commands(commands, modules=["pandas"], cwd=tmp_path)
    assert help_text[2] == 0
    # An option of several tasks is one flag; what rows settle is none.
    assert len(re.findall(r"^  --text_column\b", help_text[0], re.MULTILINE)) == 1
    assert not re.search(r"--vocab_size\b", help_text[0]) and "--label_column" in help_text[0]
    expected = [
        "--text_file is no option of --target=table1",
        "--dataset is tv_shows; it must be one of auto, generated, stack_overflow",
        "--vocab_sizes=10,many: whole numbers above 0 are needed",
        "'Nobody' is no row of table 3",
    ]
    for (_, errors, status), message in zip(mistakes, expected):
        assert status == 2 and message in errors.splitlines()[-1], errors
