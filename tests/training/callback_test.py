"""What a user's own callback sees, and how it ends a run."""

from __future__ import annotations

import types

import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs.folder import RunFolder
from fedpersonal.training import loop
from fedpersonal.training.callbacks import Callback


class Process:
    def initialize(self):
        return 0

    def next(self, state, cohort):
        return types.SimpleNamespace(state=state + 1, metrics={"loss": 1 / (state + 1)})


def _run(path, *callbacks, **options):
    defaults = {
        "process": Process(),
        "cohort_fn": lambda round_number: None,
        "run_folder": RunFolder.open(path, {}),
        "total_rounds": 10,
        "evaluate_fn": lambda state, round_number: {"rmse": state},
        "rounds_per_eval": 5,
        "rounds_per_checkpoint": 4,
        "progress": False,
        "callbacks": callbacks,
    }
    return loop.run_rounds(**{**defaults, **options})


class Diary(Callback):
    """Writes down what it sees; `error` is raised, or asked for as a stop, after round 7."""

    def __init__(self, name="", *, error=None, stop=None, seen=None):
        self.seen = [] if seen is None else seen
        self._name, self._error, self._stop = name, error, stop

    def on_start(self, run):
        self.seen.append(f"{self._name}start {run.round_number}/{run.total_rounds}")

    def on_round_end(self, run):
        rows = len(pd.read_csv(run.folder.metrics_csv))
        assert rows == run.round_number == run.state
        assert run.metrics["train/loss"] == 1 / run.round_number
        assert ("eval/rmse" in run.metrics) == (run.round_number in (5, run.total_rounds))
        self.seen.append(f"{self._name}{run.round_number} {run.saved_round}")
        if run.round_number == 7 and self._error:
            raise self._error
        if run.round_number == 7 and self._stop:
            run.stop(self._stop)

    def on_end(self, run, error):
        kind = type(error).__name__ if error else "-"
        self.seen.append(f"{self._name}end {run.round_number} {run.saved_round} {kind}")


def test_sees_each_round_after_its_row_and_before_its_checkpoint(tmp_path):
    diary = Diary()
    _run(tmp_path, diary)
    assert diary.seen == [
        "start 0/10", "1 0", "2 0", "3 0", "4 0", "5 4", "6 4", "7 4", "8 4", "9 8", "10 8",
        "end 10 10 -",
    ]  # fmt: skip


def test_takes_part_in_the_order_given_and_ends_in_the_opposite(tmp_path):
    seen = []
    _run(tmp_path, Diary("a ", seen=seen), Diary("b ", seen=seen), total_rounds=1)
    assert seen == [
        "a start 0/1", "b start 0/1", "a 1 0", "b 1 0", "b end 1 1 -", "a end 1 1 -"
    ]  # fmt: skip


def test_may_end_the_run_for_good(tmp_path):
    result = _run(tmp_path, Diary(stop="enough."))
    assert (result.rounds_run, result.state, result.stop_reason) == (7, 7, "enough.")
    again = _run(tmp_path)
    assert (again.rounds_run, again.state, again.stop_reason) == (0, 7, "enough.")


@pytest.mark.parametrize("error", [UserError("no"), ValueError(), KeyboardInterrupt()])
def test_an_error_ends_the_session_and_its_round_is_run_again(tmp_path, error):
    diary = Diary(error=error)
    with pytest.raises(type(error)):
        _run(tmp_path, diary)
    assert diary.seen[-1] == f"end 7 6 {type(error).__name__}"
    diary = Diary()
    result = _run(tmp_path, diary)
    assert (result.resumed_from, result.state) == (6, 10)
    assert diary.seen[:2] == ["start 6/10", "7 6"]
    assert list(RunFolder.read(tmp_path).metrics["round"]) == list(range(1, 11))


def test_an_error_at_the_start_ends_those_that_have_started(tmp_path):
    class Refusing(Callback):
        def on_start(self, run):
            raise UserError("not here")

    diary = Diary()
    with pytest.raises(UserError, match="not here"):
        _run(tmp_path, diary, Refusing())
    assert diary.seen == ["start 0/10", "end 0 0 UserError"]
    assert _run(tmp_path).resumed_from == 0


def test_what_it_remembers_is_what_was_known_at_the_checkpoint(tmp_path):
    class Sum(Callback):
        remembers = ("total",)

        def __init__(self, stop_in=None):
            self.total, self._stop_in = 0, stop_in

        def on_round_end(self, run):
            self.total += run.round_number
            if run.round_number == self._stop_in:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, Sum(stop_in=6))
    resumed = Sum()
    assert _run(tmp_path, resumed).resumed_from == 5
    assert resumed.total == 55


def test_may_join_a_run_later_or_leave_it(tmp_path):
    class Rounds(Callback):
        remembers = ("count",)
        count = 0

        def on_round_end(self, run):
            self.count += 1

    _run(tmp_path, total_rounds=4)
    joined = Rounds()
    _run(tmp_path, joined, total_rounds=6)
    assert joined.count == 2
    assert _run(tmp_path, total_rounds=8).state == 8
