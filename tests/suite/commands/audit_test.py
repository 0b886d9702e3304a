"""The audit as a program: what it takes, what it says, and its exit status."""

from __future__ import annotations

import json

import pytest

_FURL = ["--task=movielens", "--ratings_file=ratings.csv", "--embedding_dim=3"]
_FURL += ["--audit_rounds=1", "--nocompile"]
COMMANDS = {
    "furl": [*_FURL, "--clients_per_round=4", "--flagfile=own.flags", "--output=out/audit.json"],
    "local_only": [*_FURL, "--method=local_only"],
}


@pytest.fixture(name="ran", scope="module")
def _ran(run_commands, tmp_path_factory):
    """Output, errors and status of each command, and where it ran."""
    folder = tmp_path_factory.mktemp("audit")
    rows = [f"u{u},i{(u * 5 + i) % 11},{1 + (u + i) % 5},{i}" for u in range(12) for i in range(11)]
    (folder / "ratings.csv").write_text("\n".join(["user,item,rating,time", *rows]))
    (folder / "own.flags").write_text("--method=furl\n--experiment_name=other\n")
    commands = [["audit", *arguments] for arguments in COMMANDS.values()]
    ran = run_commands(commands, modules=["fedpersonal.suite.tasks.experiment"], cwd=folder)
    return dict(zip(COMMANDS, ran)), folder


@pytest.mark.exhaustive
def test_a_task_that_holds(ran):
    (output, errors, status), folder = ran[0]["furl"], ran[1]
    assert status == 0, errors
    lines = output.splitlines()
    assert "up: 8 tensors, 176 bytes a client" in lines
    assert "  updates.item_embedding/embeddings: float32 11x3, 132 bytes" in lines
    for check in ("names", "broadcast", "severed", "reference", "declared"):
        assert sum(line.startswith(f"{check}: holds. ") for line in lines) == 1
    place = next(i for i, line in enumerate(lines) if line.startswith("inherent: "))
    assert "change's direction and its user_embedding/vector is" in lines[place + 1]
    assert lines[-2].startswith("guarantee: no formal guarantee")
    assert lines[-1] == "audit passed: no leak was found by 5 checks in 1 round"
    found = json.loads((folder / "out" / "audit.json").read_text())
    assert found["holds"] and found["aggregated_bytes_per_client"] == 176
    assert [own["cohort"] for own in found["inherent"]] == [1, 10]
    assert not (folder / "results").exists()


def test_local_training_sends_nothing(ran):
    output, errors, status = ran[0]["local_only"]
    assert status == 0, errors
    assert "up: 0 tensors, 0 bytes a client" in output and "nothing is ever sent" in output


_LEAK = """
import sys
from unittest import mock

import tensorflow as tf
from fedpersonal.suite.commands import audit, launch
from fedpersonal.federated import process

honest = process.train_and_sum

def leaky(*arguments, local, **options):
    sums, after = honest(*arguments, local=local, **options)
    sums["weight"] += tf.reduce_sum(local["user_embedding/vector"])
    return sums, after

process.train_and_sum = leaky
launch.run(audit.main)
"""


@pytest.mark.exhaustive
def test_a_leak_is_status_1(ran, run_program):
    output, errors, status = run_program("-c", _LEAK, *_FURL, "--method=furl", cwd=ran[1])
    assert status == 1, errors
    assert "severed: LEAK. " in output and "  round 1: weight changes by " in output


def test_presets_are_taken():
    """Whatever a task's binary takes, the audit does."""
    from fedpersonal.suite.commands import audit
    from fedpersonal.suite.tasks.find import all_tasks

    audit.main.define(["audit"])
    shared = audit._TASK.shared
    for task in all_tasks().values():
        assert set(task.options.declarations()) <= set(shared)
        assert all(task.options in shared[name] for name in task.options.declarations())
    assert {"experiment_name", "output_dir"} <= set(audit.FLAGS)
