"""On a Ray cluster: the same bits, whatever is killed, and one line where it cannot be used."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import types

import numpy as np
import psutil
import pytest

from fedpersonal import runtime, tff
from fedpersonal.errors import UserError
from fedpersonal.runtime.ray import RayContext, make_folder, run_function
from fedpersonal.suite.tasks.options import RunOptions

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: make cluster"
)
_PRESETS = pathlib.Path("experiments/presets").absolute()
# Each with an option that lets it last long enough to be hurt.
_RUNS = {
    "movielens": ("experiments.movielens", "movielens_quick", "--total_rounds=12"),
    "furl": ("experiments.reddit", "reddit_quick", "--total_rounds=40"),
}


def test_without_ray_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="^The runtime ray needs Ray, which is not installed here"):
        runtime.check_runtime("ray")


def test_an_address_needs_the_runtime():
    RunOptions(runtime="ray", ray_address="auto")
    with pytest.raises(UserError, match="--ray_address is auto, but --runtime is local"):
        RunOptions(ray_address="auto")


def test_the_folder_of_a_local_ray_is_ours_alone_and_short(tmp_path, monkeypatch):
    """Its sockets' paths have at most 107 bytes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 90)))
    folder = make_folder()
    os.rmdir(folder)
    session = f"r/session_2026-11-23_18-09-35_547114_{2**22}/sockets/plasma_store"
    assert len(f"{folder}/{session}") <= 107
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    folder = pathlib.Path(make_folder())
    assert (str(folder.parent), folder.stat().st_mode & 0o777) == ("/var/tmp", 0o700)
    folder.rmdir()


def test_shards_are_tasks(monkeypatch):
    """Also where Ray is not installed, in whose place stands what runs tasks at once."""
    keys = []

    def start(key, *arguments):
        keys.append(key)
        return run_function(key, *arguments)

    task = types.SimpleNamespace(remote=start)
    ray = types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **settings: None,
        shutdown=lambda: None,
        get_runtime_context=lambda: types.SimpleNamespace(gcs_address="here:1"),
        cluster_resources=lambda: {"CPU": 2.0},
        remote=lambda function: types.SimpleNamespace(options=lambda **options: task),
        put=lambda value: value,
        wait=lambda tasks, timeout: (tasks, []),
        get=list,
        exceptions=types.SimpleNamespace(RayTaskError=KeyError, RayError=LookupError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    double = tff.tf_computation(np.float32)(lambda x: x * 2)
    at_clients = tff.FederatedType(np.float32, tff.CLIENTS)
    mapped = tff.federated_computation(lambda x: tff.federated_map(double, x), at_clients)
    context = RayContext(None)
    with tff.get_context_stack().install(context):
        assert [mapped([1.0, 2.5, 3.0]), mapped([4.0])] == [[2.0, 5.0, 6.0], [8.0]]
    context.close()
    assert len(keys) == 4 and len({*keys}) == 1


_PROGRAM = """
from fedpersonal import runtime
import numpy as np
import tensorflow as tf
from fedpersonal import tff
from fedpersonal.errors import UserError

AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)

@tff.tf_computation(np.float32, np.float32)
def add(x, y):
    return x + y

@tff.tf_computation(np.float32)
def as_text(x):
    return tf.strings.join([tf.strings.as_string(x, precision=1), "\u00e4"])

@tff.tf_computation(np.float32)
def below_two(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 2.0, message="too much")]):
        return tf.identity(x)

@tff.tf_computation(np.float32)
def of_file(x):
    return x * tf.raw_ops.ImmutableConst(
        dtype=tf.float32, shape=[1], memory_region_name="/nowhere/frozen.float32")[0]

def mapped(function):
    return tff.federated_computation(lambda xs: tff.federated_map(function, xs), AT_CLIENTS)

pair = tff.federated_computation(lambda x: [as_text(x), add(x, x)], np.float32)

@tff.federated_computation(AT_CLIENTS, np.float32)
def with_another(xs, t):
    plus = tff.federated_computation(lambda x: add(x, t), np.float32)
    return tff.federated_map(plus, xs)

def tell(function, *arguments):
    try:
        print(function(*arguments))
    except UserError as error:
        print("mistake:", error)
    except tf.errors.InvalidArgumentError as error:
        print("fault:", "too much" in str(error))

for name in ("ray", "local", "ray"):
    runtime.use_runtime(name)
    tell(mapped(pair), [1.0, 2.5, 3.0])
    tell(with_another, [1.0, 2.0], 3.0)
    tell(mapped(pair), [])
tell(mapped(below_two), [1.0, 2.0])
tell(mapped(of_file), [1.0])
"""


@needs_ray
def test_values_functions_and_faults_travel(run_program, tmp_path):
    output, errors, status = run_program("-c", _PROGRAM, cwd=tmp_path)
    assert status == 0, errors
    assert "runs in this process, not on Ray's nodes: it uses values that are not" in errors
    lines = re.sub(r"np\.float32\((.*?)\)", r"\1", output).splitlines()  # As NumPy 2 has it.
    assert "1.0" in lines[0] and "b'2.5\\xc3\\xa4', 5.0" in lines[0]
    assert lines[1:3] == ["[4.0, 5.0]", "[]"]
    assert lines[:3] == lines[3:6] == lines[6:9]
    assert lines[9] == "fault: True"
    assert lines[10].startswith("mistake: A Ray node lacks a file") and "/nowhere" in lines[10]


_STRANGER = """
import sys
from fedpersonal import runtime
from fedpersonal.errors import UserError
try:
    runtime.use_runtime("ray", ray_address=sys.argv[1])
except UserError as error:
    print(error)
"""


@needs_ray
def test_strangers_are_refused(ray_nodes, run_program, tmp_path, monkeypatch):
    with ray_nodes(1) as nodes:
        for name, value in nodes.environment.items():
            monkeypatch.setenv(name, value)
        told = {}
        for token, mode in ((None, "token"), ("0" * 64, "token"), (None, "disabled")):
            monkeypatch.setenv("RAY_AUTH_TOKEN", token or "")
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
            monkeypatch.setenv("HOME", str(tmp_path))  # Without a token's file.
            output, errors, status = run_program("-c", _STRANGER, nodes.address, cwd=tmp_path)
            assert status == 0, errors
            told[token, mode] = output.strip()
    refused = "There is no Ray cluster at 127.0.0.1:"
    assert told[None, "token"].startswith(refused)
    assert (
        told["0" * 64, "token"].startswith(refused) and "another token" in told["0" * 64, "token"]
    )
    assert told[None, "disabled"].endswith(
        "RAY_AUTH_MODE is 'disabled'; it must be token, or not set."
    )


class _Run:
    """A run in a process of its own."""

    def __init__(self, name, folder, *options, environment=None, shards=4):
        module, preset, rounds = _RUNS[name]
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, f"--flagfile={_PRESETS / preset}.flags", rounds]
            + ["--rounds_per_eval=20", "--rounds_per_checkpoint=5", f"--shards={shards}"]
            + [f"--output_dir={folder}", *options],
            env={
                **os.environ,
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_round(self, number):
        metrics = self.folder / "metrics.csv"
        deadline = time.monotonic() + 120
        while not metrics.exists() or len(metrics.read_text().splitlines()) <= number:
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.stderr
            time.sleep(0.02)

    def end(self, timeout=300):
        try:
            _, errors = self.process.communicate(timeout=timeout)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, errors


def _outcome(folder):
    """Returns what a run has written, without times; a store byte for byte."""
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]
    with np.load(folder / "model.npz", allow_pickle=False) as file:
        model = {name: file[name].tobytes() for name in file.files}
    store = None
    if (folder / "local_state.sqlite").exists():
        with sqlite3.connect(folder / "local_state.sqlite") as connection:
            store = connection.execute("SELECT rowid, * FROM local_state").fetchall()
        connection.close()
    files = [(folder / name).read_bytes() for name in ("per_client.csv", "boundary.json")]
    return rows, model, store, files


@pytest.fixture(name="local", scope="module")
def _local(tmp_path_factory):
    """Outcomes of the local runtime."""
    folder = tmp_path_factory.mktemp("local")
    runs = {name: _Run(name, folder / name) for name in _RUNS}
    outcomes = {}
    for name, run in runs.items():
        assert run.end()[0] == 0
        outcomes[name] = _outcome(folder / name)
    return outcomes


def _on(nodes, name, folder, *options):
    options = ("--runtime=ray", f"--ray_address={nodes.address}", *options)
    return _Run(name, folder, *options, environment=nodes.environment)


def _workers(nodes, number):
    return [p for p in nodes.family(number) if p.cmdline()[:1] and "ray::" in p.cmdline()[0]]


@pytest.fixture(name="ray_nodes", scope="module")
def _ray_nodes():
    from examples.ray_nodes import ray_nodes

    return ray_nodes


@needs_ray
def test_one_node_gives_the_bits_of_one_process(ray_nodes, local, tmp_path):
    with ray_nodes(2) as nodes:
        run = _on(nodes, "movielens", tmp_path / "run")
        status, errors = run.end()
        assert status == 0, errors
        assert _outcome(run.folder) == local["movielens"]


@needs_ray
def test_a_killed_process_and_a_killed_node_change_nothing(ray_nodes, local, tmp_path):
    with ray_nodes(1, 1, 2) as nodes:
        run = _on(nodes, "furl", tmp_path / "run")
        run.wait_for_round(5)
        for worker in _workers(nodes, 1):
            with contextlib.suppress(psutil.NoSuchProcess):  # Ray ends some that have no work.
                worker.kill()
        run.wait_for_round(12)
        nodes.kill(2)
        status, errors = run.end()
        assert status == 0, errors
        assert _outcome(run.folder) == local["furl"]


@needs_ray
def test_with_no_node_left_a_run_ends_in_a_line_and_goes_on_later(ray_nodes, local, tmp_path):
    with ray_nodes(0, 2) as nodes:
        run = _on(nodes, "furl", tmp_path / "run")
        run.wait_for_round(12)
        nodes.kill(1)
        status, errors = run.end()
        assert status == 2, errors
        line = errors.splitlines()[-1]
        assert line.startswith("error: No node of the Ray cluster at "), errors
        nodes.start(2)
        run = _on(nodes, "furl", tmp_path / "run")
        status, errors = run.end()
        assert status == 0, errors
        assert _outcome(run.folder) == local["furl"]


@needs_ray
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_is_left_of_a_local_ray(signum, status, tmp_path):
    others = {*pathlib.Path("/tmp").glob("fp-ray-*")}
    run = _Run("furl", tmp_path / "run", "--runtime=ray", shards=2, environment={"TMPDIR": "/tmp"})
    run.wait_for_round(3)
    (folder,) = {*pathlib.Path("/tmp").glob("fp-ray-*")} - others
    assert list(folder.glob("r/session_*/sockets/raylet"))
    assert folder.stat().st_mode & 0o777 == 0o700
    family = psutil.Process(run.process.pid).children(recursive=True)
    assert any("raylet" in process.name() for process in family)
    # The terminal sends Ctrl-C to all.
    (os.killpg if signum == signal.SIGINT else os.kill)(run.process.pid, signum)
    assert run.end()[0] == status
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive and not folder.exists()
