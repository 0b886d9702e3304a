"""The library leaves the program that imports it alone: what it imports, trains and keeps ends."""

from __future__ import annotations

_PROGRAM = """
import gc, logging, os, signal, sys, tempfile, threading, warnings

def state():
    found = {f"handler of {number.name}": signal.getsignal(number) for number in signal.Signals}
    hooks = ("excepthook", "unraisablehook", "displayhook", "meta_path", "path_hooks")
    found.update({name: str(getattr(sys, name)) for name in hooks})
    found.update({f"environment {name}": value for name, value in os.environ.items()})
    found["wake-up"] = wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    found["threads"] = {thread.name for thread in threading.enumerate()}
    own = ("__autograph_", "__pycache__")  # Keras has TensorFlow write some.
    names = os.listdir(tempfile.gettempdir())
    found["temporary files"] = [name for name in names if not name.startswith(own)]
    found["folder"], found["mask"] = os.getcwd(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    found["garbage"] = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)
    found["warnings"] = list(warnings.filters)
    found["logs"] = logging.root.level, logging.getLogger("tensorflow").level
    return found

def assert_same(what):
    now = state()
    changed = {name: (was.get(name), now.get(name)) for name in {*was, *now}
               if was.get(name) != now.get(name)}
    assert not changed, f"{what} has changed {changed}"

was = state()
import fedpersonal as fp
# Which Keras and kernels, and how much of its own work TensorFlow logs.
for name in ("TF_USE_LEGACY_KERAS", "TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL"):
    was["environment " + name] = os.environ.get(name)
assert_same("import")
fp.UserError, fp.use_runtime
assert_same("a name")

import numpy as np
from fedpersonal import tff  # What TensorFlow changes itself is not ours.
import tensorflow as tf
import pandas, sqlite3
tf.constant(1.0)
was = state()
fp.Trainer
assert_same("a name that needs TFF")

x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
data = fp.ClientDataset(["a", "b", "c"], [0, 4, 8, 12], {"x": x}, x.sum(1))
inputs = tf.keras.Input([2], name="x")
shared = tf.keras.layers.Dense(3, name="shared")(inputs)
model = tf.keras.Model({"x": inputs}, tf.keras.layers.Dense(1, name="own")(shared))
model.compile("sgd", "mse", metrics=["mae"])
model = fp.PartitionedModel(model, local_layers=["own"])
algorithm = fp.furl(client_optimizer=tf.keras.optimizers.SGD(0.1))
trainer = fp.Trainer(model, algorithm, data, clients_per_round=2, batch_size=2)
assert_same("a trainer")
trainer.fit(rounds=2, folder="run", progress=False).close()
assert_same("fit with a folder")
trained = trainer.fit(rounds=2, progress=False)
trained.evaluate(data)
trained.close()
assert_same("fit and evaluate")
"""


def test_import_and_fit_leave_the_program_as_it_was(run_program, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    _, errors, status = run_program("-c", _PROGRAM, cwd=tmp_path)
    assert status == 0, errors
