"""How a cohort is divided: into shards that hold each client once, with what is its own.

And who of it sent nothing finite, and whether it fits into memory.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.federated import memory
from fedpersonal.federated.cohort import (
    Cohort,
    Execution,
    Shard,
    default_num_shards,
    find_dropped,
    make_cohort,
)
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.runs.kept import Rounds
from fedpersonal.runtime import processors

COUNTS = (4, 9, 1, 6, 3)
PACKED = Execution(batch_size=4, clients_per_shard=2)
ALONE = Execution(batch_size=4)


@pytest.fixture(name="model", scope="module")
def _model():
    def build():
        x = tf.keras.Input([1], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(x))

    return PartitionedModel(build, local_layers=["own"])


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    """A client's number is in all of its examples."""
    return make_dataset(
        [({"x": np.full([n, 1], i, np.float32)}, np.full(n, i)) for i, n in enumerate(COUNTS)]
    )


def labels_of(shard):
    """The sorted labels of each client of a shard."""
    masks = shard.examples["mask"] > 0
    return [labels[mask].tolist() for labels, mask in zip(shard.examples["labels"], masks)]


@pytest.mark.parametrize("execution", [PACKED, ALONE], ids=["many", "alone"])
def test_places_are_those_of_the_examples(model, dataset, execution):
    chosen = [3, 0, 4, 2, 1]
    cohort = make_cohort(model, dataset, chosen, execution=execution)
    assert list(cohort.client_ids) == [f"client{number}" for number in chosen]
    known = np.array([True, False, True, True, True])
    values = {"own/bias": np.array(chosen, np.float32)[:, np.newaxis]}
    seen = []
    for shard, given in zip(cohort.shards, cohort.with_local_state(known, values)):
        local = given["local"]
        assert shard.places.dtype == local["places"].dtype == np.int32
        assert len(shard.places) == execution.clients_per_shard
        for row, (place, labels) in enumerate(zip(shard.places, labels_of(shard))):
            if place < 0:
                assert labels == [] and not local["has_kept"][row]
                continue
            seen.append(place)
            assert labels == [chosen[place]] * COUNTS[chosen[place]]
            assert local["has_kept"][row] == known[place]
            assert local["values"]["own/bias"][row] == chosen[place]
            assert given["examples"] is shard.examples
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_shards_are_of_about_equal_size(model, dataset):
    cohort = make_cohort(model, dataset, range(5), execution=PACKED)
    # By size 9, 6, 4, 3, 1, dealt to three shards.
    assert [shard.places.tolist() for shard in cohort.shards] == [[1, 4], [3, 2], [0, -1]]


@pytest.mark.parametrize("execution", [PACKED, ALONE], ids=["many", "alone"])
def test_clients_that_are_refused(model, dataset, execution):
    with pytest.raises(UserError, match="the cohort names client 'client2' 2 times, not once"):
        make_cohort(model, dataset, [2, 1, 2], execution=execution)
    numbers = np.array(range(5), object)
    with pytest.raises(UserError, match="client_ids must be str, got 0 of dtype int64"):
        make_cohort(
            model, dataclasses.replace(dataset, client_ids=numbers), [3], execution=execution
        )
    with pytest.raises(UserError, match="client 3 must be named by a str"):
        Cohort([3], [Shard(np.zeros([1], np.int32), None)])


@pytest.mark.parametrize("places", [[[0, 1], [1, -1]], [[0, -1], [-1, -1]], [[0, 1], [2, -1]]])
def test_wrong_places_are_refused(places):
    shards = [Shard(np.array(own, np.int32), None) for own in places]
    with pytest.raises(ValueError, match="shards must hold each of 2 clients once, not "):
        Cohort(["a", "b"], shards)


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
def test_executions_that_are_refused(options, said):
    with pytest.raises(ValueError, match=f"Execution: .*{said}"):
        Execution(**{"batch_size": 3, "clients_per_shard": 2, **options})
    with pytest.raises(ValueError, match="a cohort must have at least 1 client, not 0"):
        Execution.for_cohorts(0, batch_size=3)


def find(count, bad):
    """Returns the clients found, of `count` clients, and the places of each round that was run."""
    names = [f"c{place}" for place in range(count)]
    cohort, rounds = types.SimpleNamespace(client_ids=names, without_other_examples=list), []

    def next_round(state, places):
        rounds.append(places)
        lost = len({*places} & {*bad})
        return types.SimpleNamespace(metrics={"num_dropped_updates": lost})

    return find_dropped(next_round, None, cohort), rounds


@pytest.mark.parametrize(
    ("count", "bad", "most"),
    [(1, [0], 0), (2, [1], 1), (8, [0, 5, 6, 7], 10), (1_000, [999], 10), (1_000, [400], 12)],
)
def test_the_first_clients_are_found_by_halves(count, bad, most):
    found, rounds = find(count, bad)
    assert found == [f"c{place}" for place in bad[:3]]
    assert len(rounds) <= most
    assert [*range(count)] not in rounds  # What came of all of them is known.


def test_a_search_that_takes_long_ends():
    found, rounds = find(10_000, [0, 9_999])
    assert found == []
    assert len(rounds) == 12
    found, rounds = find(1_000, [0, 999])
    assert found == ["c0"]
    assert len(rounds) == 12


MB = 2**20


def model_of(*shapes):
    variables = [types.SimpleNamespace(dtype=tf.float32, shape=shape) for shape in shapes]
    return types.SimpleNamespace(global_variables=variables)


@pytest.fixture(name="container")
def _container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    free = types.SimpleNamespace(available=100 * MB)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: free)
    return tmp_path


@pytest.mark.usefixtures("container")
def test_a_round_that_does_not_fit_is_refused_by_how_much_it_needs():
    memory.check_memory(model_of([MB, 3], [MB // 4]), num_shards=2)  # 7 copies of 13 MB.
    with pytest.raises(UserError, match="at least 117 MB.* 13 MB .* 3 shards; 100 MB are free"):
        memory.check_memory(model_of([MB, 3], [MB // 4]), num_shards=3)


@pytest.mark.usefixtures("container")
def test_clients_copies_count():
    """Each is brought to the round and taken from it."""
    model = model_of([MB])
    model.local_variables = model.global_variables
    memory.check_memory(model, num_shards=1, clients=10)  # 5 copies of 4 MB, and 20.
    with pytest.raises(UserError, match="at least 108 MB.* 4 MB, 11 clients' copies 44 MB, and"):
        memory.check_memory(model, num_shards=1, clients=11)


def limit(folder, *names, value):
    texts = value, f"{30 * MB}\n", f"anon 7\ninactive_file {10 * MB}\n"
    for name, text in zip(names, texts):
        folder.joinpath(name).parent.mkdir(exist_ok=True)
        folder.joinpath(name).write_text(text)


@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_what_a_container_has_left_counts_without_files_that_it_can_let_go(container, names):
    limit(container, *names, value=f"{70 * MB}\n")
    with pytest.raises(UserError, match="50 MB are free"):
        memory.check_memory(model_of([MB, 3]), num_shards=2)


def test_a_container_without_a_limit_has_what_the_system_has(container):
    limit(container, "memory.max", "memory.current", "memory.stat", value="max\n")
    memory.check_memory(model_of([MB, 3]), num_shards=2)


@pytest.mark.parametrize("packing", ["stacked", "pooled"])
def test_who_sent_nothing_finite_is_found_in_a_round(make_dataset, packing):
    def build():
        x = tf.keras.Input([1], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1)(x))

    model, sgd = PartitionedModel(build), tf.keras.optimizers.SGD(0.1)
    examples = [({"x": np.ones([n, 1], np.float32)}, np.full(n, float(n))) for n in COUNTS]
    examples[3][1][0] = np.nan
    execution = Execution(4, clients_per_shard=5, packing=packing)
    algorithm = fed_avg(client_optimizer=sgd)
    rounds = Rounds(build_process(model, algorithm, execution=execution, server_optimizer=sgd))
    cohort = make_cohort(model, make_dataset(examples), range(5), execution=execution)
    assert find_dropped(rounds.next, rounds.initialize(), cohort) == ["client3"]
