from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import VariableSpec
from fedpersonal.runs.store import LocalStateStore, SavedRun


def variable(name, shape, dtype=tf.float32):
    return VariableSpec(name, name.split("/")[0], tuple(shape), dtype, True, None)


USER = [variable("user/embeddings", [1, 4])]
# Sizes that are no multiples of each other's: views of unaligned columns would fail.
MIXED = [
    variable("flag", [3], tf.bool),
    variable("scale", [], tf.float64),
    variable("table", [2, 3], tf.float32),
    variable("nothing", [0, 5], tf.float32),
    variable("half", [5], tf.bfloat16),
    variable("count", [1], tf.int64),
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextlib.contextmanager
def opened(path, variables=USER):
    store = LocalStateStore.open(path, variables)
    try:
        yield store
    finally:
        store.close()


def row(number):
    """A row of USER."""
    return np.full(4, number, np.float32).tobytes()


def draw(variables, count):
    random = np.random.default_rng(3)
    return {
        v.name: random.integers(0, 2 if v.dtype == tf.bool else 100, [count, *v.shape]).astype(
            v.dtype.as_numpy_dtype
        )
        for v in variables
    }


def assert_same(actual, desired):
    assert list(actual) == list(desired)
    for name, value in desired.items():
        assert (actual[name].dtype, actual[name].shape) == (value.dtype, value.shape)
        assert actual[name].tobytes() == value.tobytes()


def assert_intact(store):
    """It holds the first round of the tests below, and a commit is possible."""
    assert store.saved() == SavedRun(1, b"one")
    assert store.saved_round == 1
    assert store.read(["a", "b", "c"]) == [row(1), row(2), None]
    store.commit({"c": row(3)}, SavedRun(2, b"two"))
    assert store.saved() == SavedRun(2, b"two")
    assert store.read(["a", "b", "c"]) == [row(1), row(2), row(3)]


def test_values_come_back_bit_for_bit(path):
    values = draw(MIXED, 3)
    values["table"][1, 0] = [np.nan, -0.0, np.inf]
    with opened(path, MIXED) as store:
        rows = store.pack(values)
        store.commit(dict(zip("abc", rows)), SavedRun(7, b"\0state"))
    with opened(path, MIXED) as store:
        assert store.saved_round == 7
        assert store.saved() == SavedRun(7, b"\0state")
        known, found = store.unpack(store.read(["c", "unknown", "a"]))
    assert known.tolist() == [True, False, True]
    zeros = {v.name: np.zeros(v.shape, v.dtype.as_numpy_dtype) for v in MIXED}
    assert_same(
        found, {n: np.stack([column[2], zeros[n], column[0]]) for n, column in values.items()}
    )


@pytest.mark.parametrize("size", [1, 300])
def test_rows_are_unpacked_some_at_a_time(path, monkeypatch, size):
    values = draw(MIXED, 7)
    with opened(path, MIXED) as store:
        rows = store.pack(values)
        assert len(rows[0]) < 150
        monkeypatch.setattr("fedpersonal.runs.store._BYTES_AT_ONCE", size)
        known, found = store.unpack([*rows[:3], None, *rows[4:]])
    assert known.tolist() == [place != 3 for place in range(7)]
    for column in values.values():
        column[3] = 0
    assert_same(found, values)


def test_nobody_is_known_at_first(path):
    with opened(path, MIXED) as store:
        assert (store.saved(), store.saved_round, store.num_clients) == (None, None, 0)
        known, values = store.unpack(store.read(["a", "b"]))
        assert known.tolist() == [False, False]
        assert_same(values, {n: np.zeros_like(column) for n, column in draw(MIXED, 2).items()})
        assert store.read([]) == []
        known, values = store.unpack([])
        assert known.shape == (0,) and values["table"].shape == (0, 2, 3)


def test_an_update_replaces_the_row(store):
    store.commit({"a": row(5), "c": row(6)}, SavedRun(2, b"two"))
    assert store.read("abc") == [row(5), row(2), row(6)]
    assert store.num_clients == 3
    assert store.saved_round == 2


def test_reads_more_clients_than_a_query_takes(path):
    ids = [f"client{number}" for number in range(2503)]
    with opened(path) as store:
        store.commit({i: row(number) for number, i in enumerate(ids)}, SavedRun(1, b""))
        # In another order, some of them twice and some unknown.
        asked = [*ids[::-1], "nobody", *ids[:7]]
        expected = [*map(row, range(2502, -1, -1)), None, *map(row, range(7))]
        assert store.read(asked) == expected
        assert store.read(np.array(asked, object)) == expected
        assert store.num_clients == 2503


def test_odd_names_are_kept_apart(path):
    names = [
        "",
        " ",
        "a",
        "A",
        "a ",
        "a\0b",
        "a\0",
        "\u00e9",
        "e\u0301",
        "ß",
        "7",
        "07",
        "%",
        "'; --",
        "名\n",
    ]
    names += ["x" * 10_000, "😀"]
    rows = {name: row(number) for number, name in enumerate(names)}
    with opened(path) as store:
        store.commit(rows, SavedRun(1, b""))
    with opened(path) as store:
        assert store.read(names) == list(rows.values())
        assert store.read([np.str_("ß")]) == [rows["ß"]]
        assert store.num_clients == len(names)


def test_a_name_that_no_file_can_hold_is_one_line(store):
    with pytest.raises(UserError, match="surrogates not allowed"):
        store.commit({"b": row(9), "\ud800": row(9)}, SavedRun(2, b"two"))
    with pytest.raises(UserError, match="surrogates not allowed"):
        store.read(["\ud800"])
    assert_intact(store)


class Breaking(dict):
    """A mapping that breaks off when it is read for the second time."""

    reads = 0

    def items(self):
        self.reads += 1
        for number, item in enumerate(super().items()):
            if self.reads > 1 and number == 2:
                raise KeyboardInterrupt
            yield item


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": row(9), "b": row(9)[:-1]}, ValueError, "the row of 'b' has 15 bytes, not 16"),
        ({"a": row(9), 7: row(9)}, TypeError, "client 7 must be named by a str"),
        (Breaking({"a": row(9), "new": row(9), "b": row(9)}), KeyboardInterrupt, None),
    ],
)
def test_an_error_within_a_commit_changes_nothing(path, store, changes, error, message):
    with pytest.raises(error, match=message):
        store.commit(changes, SavedRun(2, b"two"))
    assert store.read(["new"]) == [None]
    assert_intact(store)
    store.close()
    with opened(path) as again:
        assert again.num_clients == 3


def test_a_state_that_cannot_be_written_takes_the_rows_with_it(store):
    with pytest.raises(UserError, match="local state store .*local_state.sqlite: "):
        store.commit({"a": row(9)}, SavedRun(2, object()))
    assert_intact(store)


def test_a_full_disk_is_one_line_and_loses_nothing(path, store):
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    many = {"a": row(9), "b": row(9), **{f"client{i}": row(9) for i in range(1000)}}
    with pytest.raises(
        UserError, match=f"^local state store {path}: the disk is full, .*free space"
    ):
        store.commit(many, SavedRun(2, b"two"))
    assert store.num_clients == 2
    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert_intact(store)
    store.commit(many, SavedRun(3, b"three"))
    assert store.num_clients == 1003
    store.close()
    with opened(path) as again:
        assert again.read(["a", "client999"]) == [row(9), row(9)]


def run_program(program, *, timeout=600):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# What programs of other processes begin with.
PROGRAM = """
import os, resource, sys, tempfile
import tensorflow as tf
from fedpersonal.errors import UserError
from fedpersonal.model.partition import VariableSpec
from fedpersonal.runs.store import LocalStateStore, SavedRun
USER = [VariableSpec("user/embeddings", "user", (1, 4), tf.float32, True, None)]
def refused(function, *arguments):
    try:
        function(*arguments)
    except UserError as error:
        return str(error)
"""


@pytest.mark.exhaustive
def test_a_limit_on_files_is_one_line_and_loses_nothing(path, store):
    store.close()
    # In a process of its own, as the limit holds for all files.
    finished = run_program(f"""
store = LocalStateStore.open({os.fspath(path)!r}, USER)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize({os.fspath(path)!r}) + 5000, hard))
many = {{f"client{{i}}": b"x" * 16 for i in range(100_000)}}
print(refused(store.commit, {{**many, "a": b"y" * 16}}, SavedRun(2, b"two")))
print(store.saved(), store.num_clients, store.saved_round)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.commit({{"b": {row(2)!r}}}, SavedRun(1, b"one"))
""")
    lines = finished.stdout.splitlines()
    assert lines[0].startswith(f"local state store {path}: the disk does not work or a limit"), (
        lines
    )
    assert lines[1:] == ["SavedRun(round_number=1, state=b'one') 2 1"]
    assert finished.returncode == 0, finished.stderr
    with opened(path) as again:
        assert_intact(again)


@pytest.mark.exhaustive
def test_a_store_is_one_process_only(path, store):
    store.close()
    program = f"""
store = LocalStateStore.open({os.fspath(path)!r}, USER)
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as other:
        try:
            assert other.stdout.readline() == "open\n"
            with pytest.raises(
                UserError, match=f"^local state store {path}: another process has it"
            ):
                LocalStateStore.open(path, USER)
        finally:
            other.send_signal(signal.SIGKILL)
    with opened(path) as again:
        assert_intact(again)
        with pytest.raises(UserError, match="another process has it open; wait or end it"):
            LocalStateStore.open(path, USER)
        again.commit({}, SavedRun(3, b""))


@pytest.mark.exhaustive
def test_a_folder_that_is_read_only_is_one_line():
    # Everybody must get at the folder, as the program gives up the rights of root.
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/local_state.sqlite"
        with opened(path) as store:
            store.commit({"a": row(1), "b": row(2)}, SavedRun(1, b"one"))
        os.chmod(path, 0o444)
        shutil.copyfile(path, f"{folder}/writable.sqlite")
        os.chmod(f"{folder}/writable.sqlite", 0o666)
        os.chmod(folder, 0o555)
        finished = run_program(f"""
if os.geteuid() == 0:
    try:
        os.setuid(65534)
    except OSError:  # There is nobody else in a sandbox.
        sys.exit("root for ever")
print(refused(LocalStateStore.open, {folder + "/new.sqlite"!r}, USER))
print(refused(LocalStateStore.open, {folder + "/writable.sqlite"!r}, USER))
print(refused(LocalStateStore.open, {path!r}, USER))
""")
        os.chmod(folder, 0o755)
        os.chmod(path, 0o644)
        if "root for ever" in finished.stderr:
            pytest.skip("root may write anywhere")
        missing, *others = finished.stdout.splitlines()
        assert missing == (
            f"local state store {folder}/new.sqlite: it cannot be opened; its folder must exist "
            "and be writable."
        ), finished.stderr
        assert others == [
            f"local state store {folder}/{name}.sqlite: it cannot be written to; check the "
            "permissions of the file and its folder."
            for name in ("writable", "local_state")
        ]
        assert sorted(os.listdir(folder)) == ["local_state.sqlite", "writable.sqlite"]
        with opened(path) as store:
            assert_intact(store)


def test_nobody_else_may_read_it(path, store):
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_becomes_its_owners_alone_again(path, store):
    store.close()
    path.chmod(0o644)
    with opened(path) as again:
        assert path.stat().st_mode & 0o777 == 0o600
        again._connection.execute("BEGIN")
        again._connection.execute("DELETE FROM local_state")
        journals = [p for p in path.parent.iterdir() if p != path]
        assert journals and all(p.stat().st_mode & 0o777 == 0o600 for p in journals)
        again._connection.execute("ROLLBACK")


def test_a_row_that_is_changed_meanwhile_is_refused_when_it_is_read(store):
    store._connection.execute("UPDATE local_state SET value = zeroblob(16) WHERE client = 'b'")
    assert store.read(["a"]) == [row(1)]
    with pytest.raises(UserError, match="local_state.sqlite is damaged or was changed: restore"):
        store.read(["a", "b"])


def test_many_commits_later_the_sums_are_right(path):
    random = np.random.default_rng(0)
    with opened(path) as store:
        for number in range(1, 20):
            clients = {f"client{i}" for i in random.integers(0, 700, 600)}
            store.commit({c: row(random.normal()) for c in clients}, SavedRun(number, b""))
        count = store.num_clients
    with opened(path) as again:
        assert (again.num_clients, again.saved_round) == (count, 19)


def test_a_read_looks_at_its_rows_alone(path, store):
    many = {f"client{number}": row(number) for number in range(20_000)}
    store.commit(many, SavedRun(2, b"two"))
    steps = []
    store._connection.set_progress_handler(lambda: steps.append(1), 1)
    assert store.read(["client19999"]) == [row(19999)]
    # A client is found by an index.
    assert 0 < len(steps) < 100
    steps.clear()
    store.commit({"client7": row(8)}, SavedRun(3, b"three"))
    assert 0 < len(steps) < 500


def test_commits_wait_for_the_disk_and_can_be_rolled_back(store):
    """SQLite then keeps a commit whole, whatever kills the process or the machine."""
    for pragma, value in (("synchronous", 2), ("journal_mode", "delete")):
        assert store._connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)
