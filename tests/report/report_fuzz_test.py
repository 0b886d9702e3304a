"""Files of a run that were changed, with a right checksum, give a page or one line.

So many cases a test are tried as the environment says: FEDPERSONAL_FUZZ_CASES=20000.
"""

from __future__ import annotations

import json

import pytest
from damage import BYTES, change_bytes, other_json, outcome, with_checksum
from hypothesis import given
from hypothesis import strategies as st

from fedpersonal.report.run_data import read_run
from fedpersonal.report.write import report_page

CHECKED = ("config.json", "summary.json", "model.json")


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory, make_run):
    path = make_run(tmp_path_factory.mktemp("run"), rounds=3, clients=3, use_biases=True)
    return Written(path)


class Written:
    """A run's folder, and what its files held."""

    def __init__(self, path):
        self.path = path
        self.files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def look(path):
    return report_page(read_run(path)).partition("<title>")[0]


@pytest.mark.parametrize("name", [*CHECKED, "boundary.json"])
@given(drawn=st.data())
def test_other_values_give_a_page_or_one_line(run, name, drawn):
    path, files = run.path, run.files
    value = json.loads(files[name])
    if name in CHECKED:
        value.pop("checksum")
    changed = drawn.draw(other_json(value))
    is_checked = name in CHECKED and isinstance(changed, dict)
    (path / name).write_text(with_checksum(changed) if is_checked else json.dumps(changed))
    try:
        outcome(lambda: look(path), path)
    finally:
        (path / name).write_bytes(files[name])


@pytest.mark.parametrize("name", ["per_client.csv", "metrics.csv"])
@given(changes=BYTES)
def test_other_tables_give_a_page_or_one_line(run, name, changes):
    path, files = run.path, run.files
    (path / name).write_bytes(change_bytes(files[name], changes))
    try:
        outcome(lambda: look(path), path)
    finally:
        (path / name).write_bytes(files[name])
