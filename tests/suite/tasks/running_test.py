"""No method of any task raises an alarm; AUDIT_ALL=1 looks at all, which takes half an hour."""

from __future__ import annotations

import os

import pytest

from fedpersonal.model.mixing import find_mixing
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.running import audit_experiment

TASKS = all_tasks()
ALL = [
    (name, method)
    for name, task in TASKS.items()
    for method in task.methods
    if method != "fedperc_projected"  # It does not go without users' vectors.
]
SOME = [(name, None) for name in TASKS]


@pytest.mark.parametrize(("task", "method"), ALL if "AUDIT_ALL" in os.environ else SOME)
def test_no_alarm(tiny, task, method):
    experiment = tiny.built(TASKS[task], method=method or tiny.main[task])
    for training in (False, True):  # The clients of a shard are computed at once.
        mixing = find_mixing(experiment.model.base, training=training)
        assert not mixing.rows and mixing.functions == ()
    audit = audit_experiment(experiment, rounds=2)
    assert audit.leaks == []
    crossing = [c.name for c in audit.crossings]
    for variable in experiment.model.global_variables if experiment.method.trains else ():
        assert sum(name.endswith(variable.name) for name in crossing) >= 2
