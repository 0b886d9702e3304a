from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from fedpersonal import runtime

# A stand-in for TFF's worker: a child of that name that inherits stdout and would stay for ever.
_STAND_IN = """
import os, signal, subprocess, sys, time
from fedpersonal import runtime
runtime.start()
runtime.start()
print(subprocess.Popen([sys.argv[1], "1000"]).pid, flush=True)
"""

_TFF = """
import os, signal, subprocess, sys, threading, time
from fedpersonal import runtime
import psutil
{before}
runtime.start()
with runtime.quick_imports():
    import tensorflow as tf
    import tensorflow_federated as tff

tff.backends.native.set_sync_local_cpp_execution_context()  # TFF's own, with an open worker.

@tff.tensorflow.computation(tf.int32)
def double(x):
    return x * 2

@tff.tensorflow.computation(tf.int32)
def endless(x):
    return tf.while_loop(lambda i: i < 2, lambda i: i * 1, [x])

assert double(4) == 8
(worker,) = [p for p in psutil.Process().children() if p.name() == "worker_binary"]
own, both = psutil.Process().memory_info().rss / 2**20, runtime.rss_mb()
assert abs(both - own - worker.memory_info().rss / 2**20) < 5, (both, own)
assert runtime.peak_rss_mb() >= both
print(worker.pid, flush=True)
"""

# The default context and one that the program holds to the end.
_HELD = """
context = tff.backends.native.create_sync_local_cpp_execution_context()
with tff.framework.get_context_stack().install(context):
    assert double(5) == 10
"""

# A call of gRPC that fails stays in its error's traceback.
_LOST = """
worker.kill()
assert double(5) == 10
"""

_IN_FLIGHT = """
main = threading.get_ident()
def soon():
    while sys._current_frames()[main].f_code.co_name != "wait":
        time.sleep(0.1)
    time.sleep(0.5)
    END
threading.Thread(target=soon, daemon=True).start()
endless(1)
"""

# As the terminal does it: to the worker as well, and from elsewhere.
_CTRL_C = "subprocess.run(['sh', '-c', f'kill -INT {os.getpid()} {worker.pid}'])"

# Leaves TFF the time to notice that its worker is gone and to start another.
_SLOW_END = """
wait_procs = psutil.wait_procs
psutil.wait_procs = lambda processes: (time.sleep(2), wait_procs(processes))
"""

# The signal comes while TFF, whose worker has been lost, is about to start another.
_LATE_START = """
import portpicker
pick = portpicker.pick_unused_port
def pick_late():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    return pick()
portpicker.pick_unused_port = pick_late
worker.kill()
endless(1)
"""

# What comes before `runtime.start`, and after the first computation.
_WITH_TFF = {
    "end": ("", _HELD),
    "end after a lost worker": ("", _LOST),
    "SIGTERM": (_SLOW_END, _IN_FLIGHT.replace("END", "os.kill(os.getpid(), signal.SIGTERM)")),
    "SIGTERM in a start": (_SLOW_END, _LATE_START),
    "SIGINT": ("", _IN_FLIGHT.replace("END", _CTRL_C)),
}


@dataclasses.dataclass
class _Outcome:
    status: int
    worker: int
    errors: str


def _begin(program, *arguments):
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process):
    """Waits until nobody holds the pipes any more, as `program | cat` does."""
    try:
        output, errors = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail("Somebody keeps the output open.")
    return _Outcome(process.returncode, int(output), errors)


@pytest.fixture(name="stand_in", scope="module")
def _stand_in(tmp_path_factory):
    path = tmp_path_factory.mktemp("bin") / "worker_binary"
    shutil.copy(shutil.which("sleep"), path)
    return str(path)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("runtime.leave(3)", 3),
        ("raise ValueError('a bug')", 1),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", 143),
        ("os.kill(os.getpid(), signal.SIGHUP); time.sleep(30)", 129),
    ],
)
def test_no_worker_outlives_its_program(stand_in, ending, status):
    outcome = _finish(_begin(_STAND_IN + ending, stand_in))
    assert outcome.status == status
    assert not psutil.pid_exists(outcome.worker)


def test_worker_that_ignores_sigint_is_ended(stand_in):
    program = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _STAND_IN
    outcome = _finish(_begin(program, stand_in))
    assert not psutil.pid_exists(outcome.worker)


def test_other_children_are_left_alone():
    silent = '"1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL'
    program = _STAND_IN.replace('"1000"]', silent)
    outcome = _finish(_begin(program, "sleep"))
    child = psutil.Process(outcome.worker)
    assert child.name() == "sleep"
    child.kill()


def test_a_signal_handler_of_the_program_is_kept(stand_in):
    program = f"""
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
{_STAND_IN}
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert _finish(_begin(program, stand_in)).status == 7


@pytest.mark.parametrize(("signum", "status"), [("SIGINT", -2), ("SIGTERM", 143)])
def test_a_signal_that_another_thread_is_given_ends_a_wait(signum, status):
    program = f"""
import signal, threading, time
from fedpersonal import runtime
runtime.start()
print(0, flush=True)
def soon():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.{signum})
threading.Thread(target=soon, daemon=True).start()
threading.Event().wait()
"""
    assert _finish(_begin(program)).status == status


def test_who_is_told_of_signals_already_stays_so():
    program = """
import os, signal
from fedpersonal import runtime
receiving, sending = os.pipe()
os.set_blocking(sending, False)
signal.set_wakeup_fd(sending)
runtime.start()
assert signal.set_wakeup_fd(-1) == sending
print(0)
"""
    outcome = _finish(_begin(program))
    assert (outcome.status, outcome.errors) == (0, "")


@pytest.fixture(name="with_tff", scope="module")
def _with_tff(tells_threads):
    # All at once, since each spends its time importing TFF.
    processes = {
        name: _begin(tells_threads + _TFF.replace("{before}", before) + ending)
        for name, (before, ending) in _WITH_TFF.items()
    }
    return {name: _finish(process) for name, process in processes.items()}


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("end", 0),
        ("end after a lost worker", 0),
        ("SIGTERM", 143),
        ("SIGTERM in a start", 143),
        ("SIGINT", -2),
    ],
)
def test_programs_with_tff_end_cleanly_and_quietly(with_tff, ending, status):
    outcome = with_tff[ending]
    assert outcome.status == status
    assert not psutil.pid_exists(outcome.worker)
    if ending == "SIGINT":
        assert outcome.errors.startswith("Traceback")
        assert outcome.errors.endswith("\nKeyboardInterrupt\n")
        assert "Exception ignored" not in outcome.errors
    else:
        assert outcome.errors == ""


# A signal whose exit is dropped, and an end that a second signal must not disturb.
_DROPPED = """
import atexit, gc, os, signal, sys, time
from fedpersonal import runtime
runtime.start()
atexit.register(print, "hook")

def kill(signum):
    os.kill(os.getpid(), signum)
    time.sleep(0.1)

def callback(phase, info):
    gc.callbacks.clear()
    kill(signal.{first})

class Trap:
    def __del__(self):
        kill(signal.{first})

try:
    {lost}
    time.sleep(60)
finally:
    kill(signal.{second})
    print("saved", end=" ")
"""


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [("SIGTERM", "SIGHUP", 143), ("SIGHUP", "SIGTERM", 129), ("SIGINT", "SIGWINCH", -2)],
)
@pytest.mark.parametrize("lost", ["gc.callbacks.append(callback); gc.collect()", "Trap()"])
def test_a_signal_ends_the_program_wherever_it_comes(first, second, status, lost):
    process = _begin(_DROPPED.format(first=first, second=second, lost=lost))
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (status, "saved hook\n")
    assert "Exception ignored" not in errors
    assert (errors == "") == (first != "SIGINT")


def test_a_program_that_drops_every_exit_is_told_again():
    program = (
        "import time\n"
        "from fedpersonal.runtime import program\n"
        "program._SECONDS_TO_LEAVE = 0.5\n"
        "program.start()\n"
        "try:\n"
        "    import os; os.kill(os.getpid(), 15)\n"
        "    time.sleep(60)\n"
        "except BaseException:\n"
        "    time.sleep(60)\n"
    )
    process = _begin(program)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_what_else_is_lost_is_reported_as_ever():
    program = (
        "from fedpersonal import runtime\n"
        "runtime.start()\n"
        "class Trap:\n"
        "    def __del__(self):\n"
        "        raise ValueError('a bug')\n"
        "Trap()\n"
    )
    process = _begin(program)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Exception ignored" in errors) == (0, True)


def test_leaving_runs_exit_hooks_and_takes_nothing_apart():
    program = (
        "import atexit\n"
        "from fedpersonal import runtime\n"
        "class Trap:\n"
        "    def __del__(self):\n"
        "        print('taken apart')\n"
        "trap = Trap()\n"
        "atexit.register(print, 'hook')\n"
        "print('work', end=' ')\n"
        "runtime.leave(4)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert (ended.returncode, ended.stdout) == (4, "work hook\n")


def test_a_log_level_that_is_set_is_kept(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    runtime.quiet_logs()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert "GRPC_VERBOSITY" not in os.environ


def test_memory_is_that_of_this_process_and_its_worker():
    # Other tests of the same session may have started a worker.
    family = [psutil.Process(), *psutil.Process().children()]
    own = sum(process.memory_info().rss for process in family) / 2**20
    assert runtime.rss_mb() == pytest.approx(own, abs=20)
    ballast = np.ones(2**26 // 8 * 4)  # 256 MiB
    with_ballast = runtime.rss_mb()
    assert with_ballast >= 256
    del ballast
    assert runtime.rss_mb() < with_ballast - 200
    assert runtime.peak_rss_mb() >= with_ballast - 1
