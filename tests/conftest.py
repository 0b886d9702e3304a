"""What tests share; TensorFlow is not imported here, so that tests without it stay quick."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from fedpersonal import runtime
from fedpersonal.suite.commands import startup

startup.start()

# A background job is started with Ctrl-C ignored, and so would be the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Importing takes seconds: each program is run by a fork of one process that has imported all.
# Two commands define some flags alike, hence a fork imports its own.
_COMMANDS = """
import contextlib, importlib, io, json, os, runpy, sys
from fedpersonal.suite.commands import command, startup

startup.leave = sys.exit  # What a fork has printed is still to be handed on.
startup.start()  # As a command would, before anything heavy is imported.
modules, commands = json.load(sys.stdin)
for module in modules:
    importlib.import_module(module)
found = []
for binary, *arguments in commands:
    read, write = os.pipe()
    if os.fork() == 0:
        sys.argv = ["fedpersonal", binary, *arguments]
        output, errors, status = io.StringIO(), io.StringIO(), None
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                if "." not in binary:
                    command.main()
                sys.argv = sys.argv[1:]
                if binary.endswith(".py"):
                    runpy.run_path(binary, run_name="__main__")
                else:
                    runpy.run_module(binary, run_name="__main__", alter_sys=True)
                status = 0
            except SystemExit as end:
                status = end.code
            except BaseException as error:
                errors.write(repr(error))
        with os.fdopen(write, "w") as pipe:
            json.dump([output.getvalue(), errors.getvalue(), status], pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found.append(json.load(pipe))
    os.wait()
print(json.dumps(found))
"""


# Tracing makes millions of objects that live on; looking through them is a tenth of the time.
gc.set_threshold(100_000, 50, 100)

# What a process may have before it is looked through: that takes a second.
_MAX_BYTES = 5 << 29
_COMPILER = "tensorflow_federated.python.core.impl.execution_contexts.compiler_pipeline"


@pytest.fixture(autouse=True, scope="module")
def _memory_comes_back():
    """What a file leaves free goes back to the system: four processes share its memory."""
    yield
    if psutil.Process().memory_info().rss < _MAX_BYTES:
        return
    compiler = sys.modules.get(_COMPILER)
    if compiler is not None:  # It keeps the last 128 computations of all contexts together.
        compiler.CompilerPipeline.compile.cache_clear()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # Other C libraries have no such call.
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@pytest.fixture(scope="session")
def plain_context():
    """Where nothing is compiled; one for all tests, as it keeps what it has made."""
    from fedpersonal.runtime.context import LocalContext

    return LocalContext(compile=False)


@pytest.fixture(name="not_compiled", scope="module")
def _not_compiled(plain_context):
    """Compiling takes longer than a test's few rounds."""
    from fedpersonal.runtime.context import set_default_context

    set_default_context(plain_context)
    yield
    runtime.use_runtime("local")


# The groups that take longest; started last, one of them would keep the other processes waiting.
_LONGEST = (
    *("tasks tv_shows", "tasks movielens", "tasks reddit", "tasks interactions"),
    "suite/papers/runs_test.py",
    "examples_test.py",
    "tasks stackoverflow",
    "federated/reference_test.py",
    "suite/commands/binaries_test.py",
    "audit/leaks_test.py",
    "tasks digits",
    "suite/commands/sweep_test.py",
    "audit/personal_test.py",
    "client/pooled_test.py",
)
_TASKS = {
    "digits": "digits",
    "labels": "reddit",
    "next_word": "stackoverflow",
    "ranking": "interactions",
    "ratings": "movielens",
    "utterances": "tv_shows",
}


def _group(item):
    """Returns the group of one process: a file, or all tests of a task, which share its runs."""
    file = item.path.as_posix().rpartition("/tests/")[2]
    folder, _, inner = file.rpartition("suite/tasks/")
    if folder or not file.startswith("suite/tasks/"):
        return file
    params = item.callspec.params if hasattr(item, "callspec") else {}
    of_folder = _TASKS.get(inner.split("/")[0], "movielens")
    task = params.get("task")
    return f"tasks {task if isinstance(task, str) else of_folder}"


def pytest_addoption(parser):
    """Adds the option that also runs the tests and rows that `make test` leaves to `make fuzz`."""
    parser.addoption("--exhaustive", action="store_true", help="also run tests marked exhaustive")


def _is_exhaustive(item):
    """Whether a test is marked: it by itself, or its row is none that the mark keeps."""
    marks = [*item.iter_markers("exhaustive")]
    row = item.callspec.id if hasattr(item, "callspec") else None
    return any(row not in mark.kwargs.get("but", ()) for mark in marks)


def _check_marks(items, config):
    """Raises where a mark keeps rows that its table lacks; some rows may be asked for by name."""
    if any("::" in argument for argument in config.args):
        return
    rows, kept = collections.defaultdict(set), collections.defaultdict(set)
    for item in items:
        if hasattr(item, "callspec"):
            rows[item.path, item.originalname].add(item.callspec.id)
            for mark in item.iter_markers("exhaustive"):
                kept[item.path, item.originalname].update(mark.kwargs.get("but", ()))
    for (path, test), names in kept.items():
        if names - rows[path, test]:
            raise pytest.UsageError(
                f"{path}: {test} has no rows {sorted(names - rows[path, test])}"
            )


@pytest.hookimpl(tryfirst=True)  # Groups are read by a hook of the same name.
def pytest_collection_modifyitems(items, config):
    """Runs what takes longest first, and in one process what shares its fixtures."""
    _check_marks(items, config)
    if not config.getoption("exhaustive"):
        left_out = [item for item in items if _is_exhaustive(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_exhaustive(item)]
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    ranks = {name: rank for rank, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(groups[item], len(ranks)))


# Each fuzz test tries the same 25 cases, or as many new ones as this variable says.
_FUZZ_CASES = "FEDPERSONAL_FUZZ_CASES"


def pytest_pycollect_makemodule(module_path):
    """Tells Hypothesis, before a file with "fuzz" in its name imports it, how long to look."""
    if "fuzz" not in module_path.name:
        return  # Its import takes a moment.
    here = str(pathlib.Path(__file__).parent)
    if here not in sys.path:
        sys.path.append(here)  # They share `damage`.
    cases = os.environ.get(_FUZZ_CASES)
    # Beside pytest's own cache, where `make clean` finds it.
    storage = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "hypothesis"
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(storage))
    import hypothesis

    hypothesis.settings.register_profile(
        "fedpersonal",
        max_examples=int(cases or 25),
        derandomize=not cases,
        # Milliseconds. What takes longer hangs, unless the machine has much else to do.
        deadline=10_000 if cases else None,
        # Explaining a failure would trace every line of each case.
        phases=[phase for phase in hypothesis.Phase if phase != hypothesis.Phase.explain],
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("fedpersonal")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """Seeds what a fixture leaves unseeded."""
    del fixturedef
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """Seeds what a test leaves unseeded."""
    del item
    _seed()


def _seed():
    """Makes unseeded draws, such as of Keras' initializers, the same in every run."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def start_program():
    """Starts `python *arguments`; nothing of it outlives the test, whatever happens."""

    @contextlib.contextmanager
    def start(*arguments, cwd):
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "HF_HUB_OFFLINE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    return start


@pytest.fixture(scope="session")
def run_program(start_program):
    """Runs `python *arguments` and returns output, errors and status."""

    def run(*arguments, cwd, told=None):
        with start_program(*arguments, cwd=cwd) as process:
            return (*process.communicate(told, timeout=600), process.returncode)

    return run


@pytest.fixture(scope="session")
def run_commands(run_program):
    """Runs programs with their arguments; returns each one's output, errors and status.

    A program is a command's name, a file, or a module with a dot in its name. The modules named are
    imported once for all, in a process without threads of TensorFlow's.
    """

    def run(commands, *, modules, cwd):
        told = json.dumps([modules, commands])
        output, errors, status = run_program("-c", _COMMANDS, cwd=cwd, told=told)
        assert status == 0, errors
        return json.loads(output.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def real_data():
    """Returns the path of real data in the folder FEDPERSONAL_DATA_DIR, or skips the test."""

    def find(name):
        path = pathlib.Path(os.environ.get("FEDPERSONAL_DATA_DIR", os.devnull), name)
        if not path.exists():
            pytest.skip(f"needs FEDPERSONAL_DATA_DIR with {name}")
        return path

    return find


@pytest.fixture(scope="session")
def make_dataset():
    """Makes a `ClientDataset` of a list with, for each client, (features, labels)."""
    from fedpersonal.data.clients import ClientDataset

    def make(clients):
        features, labels = zip(*clients)
        return ClientDataset(
            client_ids=np.array([f"client{i}" for i in range(len(clients))], object),
            offsets=np.cumsum([0] + [len(column) for column in labels]),
            features={
                name: np.concatenate([np.asarray(own[name]) for own in features])
                for name in features[0]
            },
            labels=np.concatenate([np.asarray(column) for column in labels]),
        )

    return make


@pytest.fixture(scope="session")
def draw_ratings(make_dataset):
    """Draws clients with so many ratings each; items repeat within a client's ratings."""

    def draw(counts, *, num_items, seed=0):
        random = np.random.default_rng(seed)
        return make_dataset(
            [
                (
                    {
                        "user": np.full(count, user, np.int32),
                        "item": random.integers(0, num_items, count).astype(np.int32),
                    },
                    random.integers(1, 6, count).astype(np.float32),
                )
                for user, count in enumerate(counts)
            ]
        )

    return draw


@pytest.fixture(scope="session")
def make_run():
    """Writes the folder of a finished run that was never run; see `draw_run`."""
    from tests.drawn_run import draw_run

    return draw_run


@pytest.fixture(scope="session")
def dense_model():
    """Makes a model of two numbers: a hidden layer `shared`, and a local layer `own`."""
    import tensorflow as tf

    from fedpersonal.model.partition import PartitionedModel

    def build_keras_model(units):
        x = tf.keras.Input([2], name="x")
        hidden = tf.keras.layers.Dense(units, activation="tanh", name="shared")(x)
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(hidden))

    def make(*, units=3, **options):
        build = functools.partial(build_keras_model, units)
        return PartitionedModel(build, local_layers=["own"], **options)

    return make


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """A GPT-2 of one layer, drawn at random and read back from its folder."""
    from benchmarks.tiny import make_base

    return make_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(name="signalled", scope="session")
def _signalled():
    """Runs a program until it has child processes, and sends it a signal.

    Returns its status, its errors and its children.
    """

    def run(program, number, *, num_children=1, timeout=600):
        parent = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline, children = time.monotonic() + timeout, []
        while len(children) < num_children and time.monotonic() < deadline:
            time.sleep(0.05)
            everybody = psutil.Process(parent.pid).children()
            children = [c for c in everybody if "spawn_main" in " ".join(c.cmdline())]
        time.sleep(1.0)
        parent.send_signal(number)
        _, errors = parent.communicate(timeout=timeout)
        return parent.returncode, errors, children

    return run
