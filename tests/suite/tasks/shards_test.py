"""A run keeps its number of shards on a machine with other processors."""

from __future__ import annotations

import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.running import open_experiment
from fedpersonal.training import trainer

TASK = all_tasks()["movielens"]


def test_a_run_keeps_its_shards(tiny, tmp_path, monkeypatch):
    def open_on(processors, **asked):
        monkeypatch.setattr(trainer, "default_num_shards", lambda: processors)
        options = tiny.options(TASK, method="fed_avg", **asked)
        experiment, folder = open_experiment(
            TASK,
            tiny.source(TASK, options),
            options,
            tmp_path,
            config=options.values(),
            may_differ=["total_rounds"],
            data="these",
        )
        return experiment.trainer.num_shards, len(experiment.trainer.cohort(0).shards)

    assert open_on(2) == (2, 2)
    assert open_on(3) == (2, 2)
    with pytest.raises(UserError, match="shards was null and is now 3"):
        open_on(3, shards=3)
