import types

import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.process import memory

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


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_containers_limit_counts(container, name):
    container.joinpath(name).parent.mkdir(exist_ok=True)
    container.joinpath(name).write_text(f"{50 * MB}\n")
    with pytest.raises(UserError, match="50 MB are free"):
        memory.check_memory(model_of([MB, 3]), num_shards=2)


def test_a_container_without_a_limit_has_what_the_system_has(container):
    container.joinpath("memory.max").write_text("max\n")
    memory.check_memory(model_of([MB, 3]), num_shards=2)
