"""How the process of a command ends, whatever ends it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import warnings

import pytest

from fedpersonal.suite.commands import startup

_BEGIN = """
import atexit, os, signal, sys, time
from fedpersonal.suite.commands import startup
startup.start()
atexit.register(print, "hook")
class Trap:
    def __del__(self):
        print("taken apart")
trap = Trap()
"""
_KILL = "os.kill(os.getpid(), signal.{}); time.sleep(60)"


def _run(program):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        # Under `nohup` this process, and so its children, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    return process.returncode, process.stdout.split("\n")[:-1], process.stderr


_CAUGHT = """
try:
    {}
except SystemExit:
    startup.leave(1)
"""


@pytest.mark.parametrize(
    ("ending", "status", "output"),
    [
        ("sys.exit(3)", 3, ["hook", "taken apart"]),
        ("startup.leave(3)", 3, ["hook"]),
        (_KILL.format("SIGINT"), -2, ["hook", "taken apart"]),
        (_KILL.format("SIGTERM"), 143, ["hook", "taken apart"]),
        (_KILL.format("SIGHUP"), 129, ["hook", "taken apart"]),
        (
            "try:\n    " + _KILL.format("SIGTERM") + "\nexcept SystemExit:\n    startup.leave(1)",
            143,
            ["hook"],
        ),
    ],
)
def test_exit_hooks_run_however_it_ends(ending, status, output):
    assert _run(_BEGIN + ending)[:2] == (status, output)


def test_a_second_signal_does_not_disturb_the_end():
    ending = f"""
try:
    {_KILL.format("SIGTERM")}
finally:
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0.1)
    print("saved")
"""
    assert _run(_BEGIN + ending) == (143, ["saved", "hook", "taken apart"], "")


def test_a_program_that_drops_the_exit_is_told_again():
    ending = f"""
startup._SECONDS_TO_LEAVE = 0.5
try:
    {_KILL.format("SIGTERM")}
except BaseException:
    time.sleep(60)
"""
    assert _run(_BEGIN + ending)[0] == 143


@pytest.mark.parametrize(("sent", "status"), [("SIGINT", -2), ("SIGTERM", 143)])
def test_a_signal_that_the_garbage_collector_drops_comes_again(sent, status):
    ending = f"""
import gc
def collected(phase, info):
    gc.callbacks.remove(collected)
    os.kill(os.getpid(), signal.{sent})
class Broken:
    def __del__(self):
        raise ValueError("as ever")
gc.callbacks.append(collected)
gc.collect()
broken = Broken()
del broken
time.sleep(10)
"""
    found, output, errors = _run(_BEGIN + ending)
    assert (found, output) == (status, ["hook", "taken apart"])
    assert errors.startswith("Exception ignored in: <function Broken.__del__")


def test_a_handler_of_the_program_is_kept():
    before = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    assert _run(before + _BEGIN + _KILL.format("SIGTERM"))[0] == 7


@pytest.mark.parametrize("given", [None, "0"])
def test_a_log_level_that_is_set_is_kept(monkeypatch, given):
    monkeypatch.setattr(os, "environ", {"TF_CPP_MIN_LOG_LEVEL": given} if given else {})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    level = logging.getLogger("tensorflow").level
    with warnings.catch_warnings():
        startup._quiet_logs()
    logging.getLogger("tensorflow").setLevel(level)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == (given or "3")
    assert ("GRPC_VERBOSITY" in os.environ) == (given is None)


_TENSORFLOW = """
import os, signal, sys
def log(line):
    os.write(2, line.encode() + b"\\n")
log("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR")
log("I0000 00:00:1795650902.973057   28177 port.cc:153] oneDNN custom operations are on.")
log("E0000 00:00:1795650902.977360   28177 cuda_dnn.cc:8310] Unable to register cuDNN.")
log("I am no notice")
print("nor am I", file=sys.stderr)
"""
_SEEN = [
    "E0000 00:00:1795650902.977360   28177 cuda_dnn.cc:8310] Unable to register cuDNN.",
    "I am no notice",
    "nor am I",
]


@pytest.mark.parametrize(
    ("ending", "status", "after"),
    [
        ("", 0, ["I0000 00:00:1795650903.000000   28177 late.cc:1] and no more"]),
        ("raise ImportError('no such library')", 1, ["ImportError: no such library"]),
        ("os.abort()", -6, ["nor am I"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ["nor am I"]),
        (_KILL.format("SIGTERM"), 143, ["nor am I"]),
    ],
)
def test_an_import_of_tensorflow_drops_its_notices_alone(tmp_path, ending, status, after):
    late = "I0000 00:00:1795650903.000000   28177 late.cc:1] and no more"
    (tmp_path / "tensorflow.py").write_text(f"{_TENSORFLOW}\nimport time\n{ending}\n")
    importing = f"sys.path.insert(0, {str(tmp_path)!r})\nimport tensorflow as tf\ntf.log({late!r})"
    found, _, errors = _run(_BEGIN + importing)
    lines = errors.splitlines()
    assert (found, lines[:3], lines[-1:]) == (status, _SEEN, after)


def test_whoever_sets_a_log_level_sees_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    (tmp_path / "tensorflow.py").write_text(_TENSORFLOW)
    _, _, errors = _run(_BEGIN + f"sys.path.insert(0, {str(tmp_path)!r})\nimport tensorflow")
    assert len(errors.splitlines()) == 5


_FEWER = """
import sys
from fedpersonal.suite.commands import startup
with startup.fewer_imports():
    from fedpersonal import tff
assert not any(type(finder).__name__ == "_Postponing" for finder in sys.meta_path)
late = {name for name, module in sys.modules.items() if type(module).__name__ == "_LazyModule"}
assert late == startup._LATER, startup._LATER ^ late
assert "jax" not in sys.modules
import jax, scipy.signal, tensorflow as tf, tensorflow_federated, tensorflow_probability
assert jax.__name__ == "jax"
assert scipy.signal.fftconvolve([1.0, 2.0], [3.0]).tolist() == [3.0, 6.0]
assert tensorflow_probability.distributions.Normal(0.0, 1.0).prob(0.0) > 0.39
assert tensorflow_federated.jax.computation and tensorflow_federated.learning.programs.train_model
assert tensorflow_federated.simulation.baselines.emnist
assert tensorflow_federated.analytics.data_processing
assert tf.lite.TFLiteConverter
print("done")
"""


def test_what_a_command_does_not_import_comes_when_it_is_used():
    status, output, errors = _run(_FEWER)
    assert (status, output) == (0, ["done"]), errors
