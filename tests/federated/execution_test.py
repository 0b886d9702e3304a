"""How cohorts are divided, and executions that do not exist."""

from __future__ import annotations

import os
import pathlib

import pytest

from fedpersonal.errors import UserError
from fedpersonal.federated.cohort import Execution, default_num_shards
from fedpersonal.runtime import processors


@pytest.mark.parametrize(
    ("clients", "clients_per_shard"), [(1, 1), (3, 1), (4, 1), (5, 2), (100, 25), (101, 26)]
)
def test_a_cohort_has_a_shard_a_processor_that_the_process_may_use(
    monkeypatch, clients, clients_per_shard
):
    monkeypatch.setattr(processors, "_CGROUP", pathlib.Path("/nowhere"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 3, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    divided = Execution.for_cohorts(clients, batch_size=5, packing="pooled")
    assert divided == Execution(5, clients_per_shard, "pooled")
    # Where there is no affinity, a processor is one of the machine's.
    monkeypatch.delattr(os, "sched_getaffinity")
    assert default_num_shards() == 64
    assert Execution.for_cohorts(10, batch_size=5, shards=3).clients_per_shard == 4
    with pytest.raises(UserError, match="at least 1 shard, not 0"):
        Execution.for_cohorts(10, batch_size=5, shards=0)


@pytest.mark.parametrize(
    ("files", "shards"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_a_container_s_quota_counts(monkeypatch, tmp_path, files, shards):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(processors, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert default_num_shards() == shards


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"packing": "dense"}, r"packing must be one of \['stacked', 'pooled'\], not 'dense'"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"clients_per_shard": 0}, "clients_per_shard must be at least 1, not 0"),
    ],
)
def test_mistakes(options, said):
    with pytest.raises(ValueError, match=f"Execution: .*{said}"):
        Execution(**{"batch_size": 3, "clients_per_shard": 2, **options})


def test_a_cohort_of_nobody_is_refused():
    with pytest.raises(ValueError, match="a cohort must have at least 1 client, not 0"):
        Execution.for_cohorts(0, batch_size=3)
