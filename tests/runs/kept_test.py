from __future__ import annotations

import contextlib
import importlib.util
import pathlib

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs import folder as run_folder
from fedpersonal.runs.checkpoints import StoreCheckpoints
from fedpersonal.runs.kept import KeptState, Rounds, read_kept
from fedpersonal.runs.store import LocalStateStore
from fedpersonal.training import loop

_HERE = pathlib.Path(__file__).parent


def _import_toy():
    # Folders of tests are on no path; the program that kills runs imports it, too.
    spec = importlib.util.spec_from_file_location("toy_process", _HERE.parent / "toy_process.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


toy = _import_toy()


class Stopping(toy.Process):
    """Stops before a round, or after it while its results are on their way."""

    def __init__(self, *, before=None, after=None):
        self._before, self._after = before, after

    def next(self, state, shards):
        if state.rounds + 1 == self._before:
            raise KeyboardInterrupt
        output = super().next(state, shards)
        if output.state.rounds == self._after:
            raise KeyboardInterrupt
        return output


def _evaluate(state, round_number):
    return {"rmse": float(np.abs(state.server.weights).sum())}


@contextlib.contextmanager
def _opened(path):
    store = LocalStateStore.open(path / "local_state.sqlite", toy.VARIABLES)
    try:
        yield store
    finally:
        store.close()


def _run_with(store, path, **options):
    defaults = {
        "process": Rounds(toy.Process(), store),
        "cohort_fn": toy.cohort,
        "run_folder": run_folder.RunFolder.open(path, {}),
        "total_rounds": 10,
        "evaluate_fn": _evaluate,
        "rounds_per_eval": 4,
        "rounds_per_checkpoint": 3,
        "progress": False,
        "saved_in": StoreCheckpoints(store),
    }
    return loop.run_rounds(**{**defaults, **options})


def _run(path, process=None, **options):
    """Returns the result and everybody's rows on disk."""
    path.mkdir(exist_ok=True)
    with _opened(path) as store:
        with_store = Rounds(process or toy.Process(), store)
        result = _run_with(store, path, process=with_store, **options)
    return result, _rows_on_disk(path)


def _rows_on_disk(path):
    with _opened(path) as store:
        assert store.num_clients == sum(row is not None for row in store.read(toy.IDS))
        return store.read(toy.IDS)


def _assert_same_run(path, run, undisturbed_path, undisturbed):
    tables = [
        pd.read_csv(p / "metrics.csv", float_precision="round_trip").drop(columns="seconds")
        for p in (path, undisturbed_path)
    ]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    (result, rows), (expected, expected_rows) = run, undisturbed
    assert result.state.server.weights.tobytes() == expected.state.server.weights.tobytes()
    assert result.state.server.rounds == expected.state.server.rounds
    assert result.state.round_number == expected.state.round_number
    assert None not in rows and rows == expected_rows


def _computed(rounds):
    """Returns the weights and what everybody has kept, client by client."""
    weights, kept = np.zeros(3, np.float32), {}
    for round_number in range(1, rounds + 1):
        cohort = toy.cohort(round_number)
        total = np.zeros(3, np.float32)
        for shard in cohort.shards:
            for place, example in zip(shard.places, shard.examples):
                if place < 0:
                    continue
                vector, visits = kept.get(cohort.client_ids[place], (np.float32(0.5), 0))
                vector = vector * np.float32(0.7) + weights + example
                kept[cohort.client_ids[place]] = vector, visits + 1
                total += vector
        weights = weights * np.float32(0.9) + total * np.float32(0.1)
    return weights, kept


@pytest.fixture(name="undisturbed", scope="module")
def _undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed")
    return path, _run(path)


def test_what_a_client_keeps_reaches_it_again(undisturbed):
    path, (result, _) = undisturbed
    weights, kept = _computed(10)
    np.testing.assert_allclose(result.state.server.weights, weights, rtol=1e-5)
    with _opened(path) as store:
        known, values = read_kept(store, result.state, [*toy.IDS, "nobody"])
    assert known.tolist() == [True] * len(toy.IDS) + [False]
    for number, client in enumerate(toy.IDS):
        np.testing.assert_allclose(values["vector"][number], kept[client][0], rtol=1e-4, atol=1e-6)
        assert values["visits"][number] == kept[client][1]
    # Some came back one round later, others after several.
    assert set(values["visits"][:-1]) >= {3, 4}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stop_in", [1, 4, 10])
def test_stopped_run_goes_on_to_the_same_bits(tmp_path, undisturbed, when, stop_in):
    path = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        _run(path, Stopping(**{when: stop_in}))
    run = _run(path)
    assert run[0].resumed_from == stop_in - 1
    assert run[0].rounds_run == 11 - stop_in
    _assert_same_run(path, run, *undisturbed)


def _stop(function, stop_in):
    def stopping(*arguments):
        if arguments[-1] == stop_in:
            raise KeyboardInterrupt
        return function(*arguments)

    return stopping


def test_stop_in_evaluation_repeats_its_round(tmp_path, undisturbed):
    path = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        _run(path, evaluate_fn=_stop(_evaluate, 8))
    run = _run(path)
    assert run[0].resumed_from == 7
    _assert_same_run(path, run, *undisturbed)


@pytest.mark.parametrize("stop_in", [1, 4, 5])
def test_stop_in_the_making_of_a_cohort(tmp_path, undisturbed, stop_in):
    path = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        _run(path, cohort_fn=_stop(toy.cohort, stop_in))
    run = _run(path)
    assert run[0].resumed_from == stop_in - 1
    _assert_same_run(path, run, *undisturbed)


@pytest.mark.parametrize(
    "stop_at", ["BEGIN", "INSERT INTO local_state", "DELETE", "COMMIT", "done"]
)
def test_stop_in_a_commit(tmp_path, undisturbed, stop_at, monkeypatch):
    path = tmp_path / "stopped"
    path.mkdir()
    commits = []

    class Stopped(LocalStateStore):
        def commit(self, changes, saved):
            commits.append(saved.round_number)
            if commits == [0, 3, 6]:
                self._connection = _Interrupting(self._connection, stop_at)
            super().commit(changes, saved)

    monkeypatch.setitem(globals(), "LocalStateStore", Stopped)
    with pytest.raises(KeyboardInterrupt):
        _run(path)
    monkeypatch.undo()
    # What stops a commit is followed by another try.
    assert commits == [0, 3, 6, 6]
    run = _run(path)
    assert run[0].resumed_from == 6
    _assert_same_run(path, run, *undisturbed)


class _Interrupting:
    """A connection in which Ctrl-C comes once, before a statement or after COMMIT."""

    def __init__(self, connection, stop_at):
        self._connection, self._stop_at = connection, stop_at

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, *arguments):
        self._stop_before(statement)
        found = self._connection.execute(statement, *arguments)
        if statement == "COMMIT":
            self._stop_before("done")
        return found

    def executemany(self, statement, rows):
        self._stop_before(statement)
        return self._connection.executemany(statement, rows)

    def _stop_before(self, statement):
        if self._stop_at and statement.startswith(self._stop_at):
            self._stop_at = None
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds_per_checkpoint", [1, 4, 10, 99])
def test_how_often_is_committed_changes_nothing(tmp_path, undisturbed, rounds_per_checkpoint):
    path = tmp_path / "run"
    run = _run(path, rounds_per_checkpoint=rounds_per_checkpoint)
    _assert_same_run(path, run, *undisturbed)


def test_finished_run_may_be_prolonged(tmp_path, undisturbed):
    first = _run(tmp_path / "run", total_rounds=4)
    again = _run(tmp_path / "run", total_rounds=4)
    assert (again[0].rounds_run, again[0].resumed_from) == (0, 4)
    assert again[1] == first[1]
    _assert_same_run(tmp_path / "run", _run(tmp_path / "run"), *undisturbed)


def test_a_state_holds_what_is_not_committed_and_no_more(tmp_path):
    held = []

    class Watched(Rounds):
        def next(self, state, cohort):
            before = dict(state.changes)
            output = super().next(state, cohort)
            # A state that was there before stays as it was.
            assert state.changes == before
            held.append(set(output.state.changes))
            return output

    with _opened(tmp_path) as store:
        _run_with(store, tmp_path, process=Watched(toy.Process(), store))
        assert store.saved_round == 10
    for round_number, clients in enumerate(held, start=1):
        since = (round_number - 1) // 3 * 3
        rounds = range(since + 1, round_number + 1)
        assert clients == {toy.IDS[c] for r in rounds for c in toy.clients_of(r)}


def test_a_round_leaves_the_store_alone(tmp_path):
    with _opened(tmp_path) as store:
        process = Rounds(toy.Process(), store)
        first = process.initialize()
        outputs = [process.next(first, toy.cohort(1)) for _ in range(2)]
        assert outputs[0].state.changes == outputs[1].state.changes
        assert (store.num_clients, store.saved_round) == (0, None)
        known, _ = read_kept(store, first, toy.IDS)
        assert not known.any()
        known, values = read_kept(store, outputs[0].state, toy.IDS)
        assert set(np.flatnonzero(known)) == set(toy.clients_of(1))
        # The same is read from the store.
        StoreCheckpoints(store).save(1, {"state": outputs[0].state, "seconds": 1.5})
        again, committed = read_kept(store, outputs[0].state, toy.IDS)
        assert again.tolist() == known.tolist()
        assert all(committed[name].tobytes() == column.tobytes() for name, column in values.items())
        restored = StoreCheckpoints(store).restore(like=first)
        assert (restored.round_number, restored.state["seconds"]) == (1, 1.5)
        assert isinstance(restored.state["state"], KeptState)
        assert restored.state["state"].changes == {}


def test_a_full_disk_stops_a_run_that_goes_on_later(tmp_path, undisturbed):
    path = tmp_path / "full"
    path.mkdir()

    with _opened(path) as store:
        commit_whole = store.commit

        def commit(changes, saved):
            if saved.round_number > 3:
                pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
                store._connection.execute(f"PRAGMA max_page_count = {pages}")
                saved = saved._replace(state=bytes(100_000))
            commit_whole(changes, saved)

        store.commit = commit
        with pytest.raises(UserError, match="the disk is full"):
            _run_with(store, path)
        assert store.saved_round == 3
    run = _run(path)
    assert run[0].resumed_from == 3
    _assert_same_run(path, run, *undisturbed)
