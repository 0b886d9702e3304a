"""TFF's worker behind a closed door: its results, who reaches it, and its end."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import psutil
import pytest

from fedpersonal.runtime import worker

needs_own_network = pytest.mark.usefixtures("own_network")

# Starts a worker without TFF, which takes seconds to import.
_IDLE = """
import os, signal, sys, time
import psutil
from fedpersonal import runtime
runtime.use_runtime("worker")
runtime.use_runtime("worker")
(supervisor,) = psutil.Process().children()
deadline = time.monotonic() + 60
while runtime.rss_mb() < psutil.Process().memory_info().rss / 2**20 + 5:  # The worker's.
    assert time.monotonic() < deadline
    time.sleep(0.01)
print(supervisor.pid, supervisor.children()[0].pid, flush=True)
"""

_TFF = """
import os, signal, sys, threading, time
import psutil
from fedpersonal import runtime
runtime.use_runtime("worker")
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

@tff.tensorflow.computation(tf.int32)
def double(x):
    return x * 2

@tff.tensorflow.computation(tf.int32)
def endless(x):
    return tf.while_loop(lambda i: i < 2, lambda i: i * 1, [x])

def soon(function, *arguments):
    threading.Thread(
        target=lambda: (time.sleep(0.5), function(*arguments)), daemon=True
    ).start()
"""
_WHO = """
assert double(4) == 8
(supervisor,) = psutil.Process().children()
(worker,) = supervisor.children()
print(supervisor.pid, worker.pid, flush=True)
"""

# The test looks who reaches the worker before it lets the program go on.
_LOOKED_AT = (
    _WHO
    + """
sys.stdin.read(1)
for step in range(50):
    assert double(step) == 2 * step
"""
)

# A fork gets a worker of its own, which ends with it.
_FORKED = """
fork = os.fork()
if fork == 0:
    runtime.use_runtime("worker")
    (own,) = psutil.Process().children()
    print(own.pid, flush=True)
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 5
time.sleep(0.5)
assert supervisor.status() != psutil.STATUS_ZOMBIE
"""

# TFF's own context, and other clients in number than before.
_COMPARED = """
@tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [7])))
def train(batches):
    return batches.reduce(tf.zeros([7]), lambda total, x: tf.tanh(total * 1.7 + x)), 3.0

@tff.federated_computation(
    tff.FederatedType(tff.SequenceType(tff.TensorType(np.float32, [7])), tff.CLIENTS),
    tff.FederatedType(tff.TensorType(np.float32, [7]), tff.SERVER),
)
def round_(data, state):
    update, weight = tff.federated_map(train, data)
    return tff.federated_mean(update, weight), tff.federated_sum(update), state

@tff.federated_computation
def nobody():
    return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

def rounds():
    found = [nobody()]
    for clients in (3, 1, 0, 3):
        random = np.random.default_rng(clients)
        draws = [random.normal(size=(5, 7)).astype(np.float32) for _ in range(clients)]
        data = [tf.data.Dataset.from_tensor_slices(draw) for draw in draws]
        found.append(round_(data, np.ones(7, np.float32)))
    return found

def flat(results):
    return [np.asarray(part).tobytes() for part in tf.nest.flatten(results)]

closed = rounds()
kinds = [type(result) for result in closed]
own = tff.backends.native.create_sync_local_cpp_execution_context()
with tff.framework.get_context_stack().install(own):
    again = rounds()
assert flat(again) == flat(closed) and len(flat(closed)) == 13
assert [type(result) for result in again] == kinds
print(*[child.pid for child in psutil.Process().children()])
"""

_KILLED = """
from fedpersonal.errors import UserError
soon(worker.kill)
began = time.monotonic()
try:
    endless(1)
except UserError as error:
    print(error, file=sys.stderr)
assert time.monotonic() - began < 10
try:
    double(3)
except UserError:
    runtime.use_runtime("worker")
    assert double(3) == 6
"""

_WITH_TFF = {
    "compared": _COMPARED,
    "killed": _WHO + _KILLED,
    "SIGTERM": _WHO + "soon(os.kill, os.getpid(), signal.SIGTERM)\nendless(1)",
    "SIGINT": _WHO + "soon(os.kill, os.getpid(), signal.SIGINT)\nendless(1)",
}


def _begin(program, *arguments):
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _finish(process):
    """Waits until nobody holds the pipes; returns status, processes that were named, errors."""
    try:
        output, errors = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, [int(pid) for pid in output.split()], errors


@needs_own_network
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("runtime.leave(3)", 3),
        ("os._exit(3)", 3),
        ("raise ValueError('a bug')", 1),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -signal.SIGINT),
        ("os.killpg(0, signal.SIGINT); time.sleep(30)", -signal.SIGINT),  # As a terminal does.
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", 143),
        ("os.kill(os.getpid(), signal.SIGHUP); time.sleep(30)", 129),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_worker_and_supervisor_end_with_the_program(ending, status, gone):
    found, pids, errors = _finish(_begin(_IDLE + ending))
    assert (found, len(pids)) == (status, 2)
    assert errors.count("Traceback") == ("raise" in ending or "SIGINT" in ending)
    if "_exit" in ending or "SIGKILL" in ending:  # Nobody has waited for them.
        assert gone(*pids)
    else:
        assert not any(psutil.pid_exists(pid) for pid in pids)


@needs_own_network
def test_a_fork_leaves_its_parents_worker_alone():
    found, pids, errors = _finish(_begin(_IDLE + _FORKED))
    assert (found, len(pids), errors) == (0, 3, "")
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("length", [20, 99])
def test_its_socket_has_a_path_that_the_system_takes(length, monkeypatch):
    place = "/" + "f" * length
    monkeypatch.setattr(tempfile, "tempdir", place)
    assert worker._short_place() == (place if length == 20 else "/tmp")


@needs_own_network
def test_no_file_is_left_of_a_killed_supervisor(tmp_path):
    program = """
from fedpersonal.runtime import worker
with open(sys.argv[1] + "/path", "w") as file:
    file.write(worker._workers[False]._listen()[1])
os.kill(supervisor.pid, signal.SIGKILL)
"""
    process = _begin(_IDLE + program, str(tmp_path))
    assert _finish(process)[0] == 0
    path = pathlib.Path((tmp_path / "path").read_text())
    assert path.name == "worker" and not path.parent.exists()


@needs_own_network
def test_it_ends_with_a_program_that_ignores_signals():
    found, pids, _ = _finish(_begin("import signal\nsignal.signal(2, signal.SIG_IGN)\n" + _IDLE))
    assert (found, len(pids)) == (0, 2)
    assert not any(psutil.pid_exists(pid) for pid in pids)


@needs_own_network
def test_where_it_cannot_be_shut_off_it_is_refused_unless_told(forbid_own_network):
    program = """
from fedpersonal import runtime
from fedpersonal.errors import UserError
try:
    runtime.use_runtime("worker")
except UserError as error:
    assert "--runtime=local" in str(error) and "--runtime=open_worker" in str(error)
    assert "No space left" in str(error) and "\\n" not in str(error)
    runtime.use_runtime("open_worker")
else:
    raise AssertionError
"""
    assert _finish(_begin(forbid_own_network + program)) == (0, [], "")


@pytest.fixture(name="with_tff", scope="module")
def _with_tff(tells_threads):
    # All at once, since each spends its time importing TFF.
    processes = {name: _begin(tells_threads + _TFF + ending) for name, ending in _WITH_TFF.items()}
    return {name: _finish(process) for name, process in processes.items()}


@needs_own_network
def test_results_are_those_of_tffs_own_context(with_tff, gone):
    status, pids, errors = with_tff["compared"]
    assert (status, len(pids), errors) == (0, 2, "")
    assert gone(*pids)


@needs_own_network
def test_a_killed_worker_is_told_of_and_can_be_replaced(with_tff, gone):
    status, pids, errors = with_tff["killed"]
    assert status == 0, errors
    assert errors == "TFF's worker is gone: it ended by signal 9; was the memory short?\n"
    assert gone(*pids)


@needs_own_network
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", -signal.SIGINT)])
def test_a_signal_ends_a_computation(with_tff, name, status):
    found, pids, errors = with_tff[name]
    assert (found, len(pids)) == (status, 2)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert "Exception ignored" not in errors
    assert errors == "" or errors.endswith("\nKeyboardInterrupt\n")


def _connect(address):
    with socket.create_connection(address, timeout=5):
        pass


@needs_own_network
def test_nobody_else_reaches_the_worker_while_it_computes(listening, own_address):
    process = _begin(_TFF + _LOOKED_AT)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    supervisor, computing = pids
    port = int(psutil.Process(computing).cmdline()[-1].split("=")[1])
    assert not set().union(*[listening(pid) for pid in (process.pid, supervisor, computing)])
    for host in ("127.0.0.1", own_address):
        with pytest.raises(ConnectionRefusedError):
            _connect((host, port))
    sockets = psutil.Process(process.pid).net_connections("unix")
    assert not [path for *_, path, _, _ in sockets if path and os.path.exists(path)]
    assert _finish(process)[::2] == (0, "")
    assert not any(psutil.pid_exists(pid) for pid in pids)
