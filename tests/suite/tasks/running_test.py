"""No method of any task raises an alarm; of all of them --exhaustive takes half an hour."""

from __future__ import annotations

import pytest

from fedpersonal.model.mixing import find_mixing
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.running import audit_experiment

TASKS = all_tasks()
ROWS = [(name, None) for name in TASKS]
ROWS += [
    (name, method)
    for name, task in TASKS.items()
    for method in task.methods
    if method != "fedperc_projected"  # It does not go without users' vectors.
]


# Tests of the audit plant leaks; this is of what no task must raise.
@pytest.mark.exhaustive(but=("digits-None",))
@pytest.mark.parametrize(("task", "method"), ROWS)
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
