import types

import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.federated import memory

MB = 2**20


def model_of(*shapes):
    variables = [types.SimpleNamespace(dtype=tf.float32, shape=shape) for shape in shapes]
    return types.SimpleNamespace(global_variables=variables)


@pytest.fixture(autouse=True)
def container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    free = types.SimpleNamespace(available=100 * MB)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: free)
    return tmp_path


def test_a_round_that_fits_is_let_through():
    memory.check_memory(model_of([MB, 3], [MB // 4]), num_shards=2)  # 7 copies of 13 MB.


def test_one_that_does_not_is_refused_by_how_much_it_needs():
    with pytest.raises(UserError, match="at least 117 MB.* 13 MB .* 3 shards; 100 MB are free"):
        memory.check_memory(model_of([MB, 3], [MB // 4]), num_shards=3)


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
