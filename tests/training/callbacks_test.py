"""Callbacks: their order, early stopping and the best model."""

from __future__ import annotations

import types

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.state import Callback
from fedpersonal.training import loop
from fedpersonal.training.callbacks import BestModel, EarlyStopping


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


class WatchedProcess:
    """Counts; its state is a mapping of the round's number."""

    def initialize(self):
        return {"weights": np.zeros(2)}

    def next(self, state, cohort):
        if cohort is not None:
            raise cohort
        loss = float(state["weights"][0])
        return types.SimpleNamespace(
            state={"weights": state["weights"] + 1}, metrics={"loss": loss}
        )


def _run_watching(path, values, callbacks, *, stop_in=None, **options):
    """Runs as many rounds as there are values, of which each is an evaluation's."""
    defaults = {
        "process": WatchedProcess(),
        "cohort_fn": lambda r: KeyboardInterrupt() if r == stop_in else None,
        "run_folder": RunFolder.open(path, {}),
        "total_rounds": len(values),
        "evaluate_fn": lambda state, r: {"rmse": values[r - 1], "accuracy": 0.5},
        "rounds_per_eval": 1,
        "rounds_per_checkpoint": 100,
        "progress": False,
        "callbacks": callbacks,
    }
    return loop.run_rounds(**{**defaults, **options})


@pytest.mark.parametrize(
    ("values", "options", "rounds", "best"),
    [
        ([5, 4, 4, 3, 3, 3, 9, 1], {"patience": 2}, 6, (3, 4)),
        ([5, 4, 4, 3, 3, 3, 9, 1], {"patience": 4}, 8, (1, 8)),
        ([5, 4, 4, 3], {"patience": 1, "mode": "max"}, 2, (5, 1)),
        ([1, 2, 2.5, 3.4, 3], {"patience": 2, "mode": "max", "min_delta": 1}, 5, (2.5, 3)),
        ([1, 2, 1.5, 3], {"patience": 2, "mode": "max", "min_delta": 1}, 3, (1, 1)),
        ([np.nan, 5, np.nan, np.inf, 4], {"patience": 2}, 4, (5, 2)),
        ([np.inf, 5, -np.inf, 1], {"patience": 1}, 4, (-np.inf, 3)),
    ],
)  # fmt: skip
def test_stops_after_so_many_values_that_are_no_better(tmp_path, values, options, rounds, best):
    stopping = EarlyStopping("eval/rmse", **options)
    result = _run_watching(tmp_path, values, [stopping])
    assert result.state["weights"][0] == result.rounds_run == rounds
    assert (stopping.best, stopping.best_round) == best
    is_last = rounds == len(values)
    assert is_last or result.stop_reason == (
        f"eval/rmse has not improved since round {best[1]} ({float(best[0])})."
    )
    assert len(RunFolder.read(tmp_path).metrics) == rounds


def test_may_stop_without_ever_a_number(tmp_path, caplog):
    result = _run_watching(tmp_path, [np.nan] * 5, [EarlyStopping("eval/rmse", patience=3)])
    (said,) = caplog.messages
    assert said.startswith("EarlyStopping watches eval/rmse, which is not a number in round 1, ")
    assert result.rounds_run == 3
    assert result.stop_reason == "eval/rmse was never a number."


def test_only_evaluated_rounds_count(tmp_path):
    stopping = EarlyStopping("eval/rmse", patience=2)
    result = _run_watching(tmp_path, [1.0] * 20, [stopping], rounds_per_eval=3)
    assert result.rounds_run == 9


def test_a_stopped_run_stays_stopped(tmp_path, capfd):
    values = [3, 4, 5, 6, 1, 1]
    first = _run_watching(tmp_path, values, [EarlyStopping("eval/rmse", patience=2)], progress=True)
    said = "The run has ended after round 3: eval/rmse has not improved since round 1 (3.0)."
    assert capfd.readouterr().err.splitlines()[-1] == said
    for total_rounds in (6, 60):
        again = _run_watching(
            tmp_path,
            values,
            [EarlyStopping("eval/rmse", patience=2)],
            total_rounds=total_rounds,
            progress=True,
        )
        assert (again.rounds_run, again.resumed_from) == (0, 3)
        assert again.stop_reason == first.stop_reason
        assert again.state["weights"].tolist() == [3, 3]
        assert capfd.readouterr().err.splitlines() == [said]


@pytest.mark.parametrize("stop_in", range(1, 8))
def test_a_resumed_run_stops_in_the_same_round(tmp_path, stop_in):
    values = [5, 4, 2, 3, 2, 2.5, 1]
    for name, stops in (("undisturbed", False), ("stopped", True)):
        if stops:
            with pytest.raises(KeyboardInterrupt):
                callbacks = [EarlyStopping("eval/rmse", patience=4), BestModel("eval/rmse")]
                _run_watching(tmp_path / name, values, callbacks, stop_in=stop_in)
        stopping, best = EarlyStopping("eval/rmse", patience=4), BestModel("eval/rmse")
        result = _run_watching(tmp_path / name, values, [stopping, best])
        assert result.state["weights"][0] == 7
        assert (stopping.best, stopping.best_round) == (best.best, best.best_round) == (1, 7)
        assert best.kept["weights"].tolist() == [7, 7]


@pytest.mark.parametrize("stop_in", range(4, 7))
def test_the_best_model_survives_sessions(tmp_path, stop_in):
    values = [5, 4, 2, 3, 2, 2.5, 3]
    best = BestModel("eval/rmse", keep=lambda state: state["weights"] * 10)
    with pytest.raises(KeyboardInterrupt):
        _run_watching(tmp_path, values, [best], stop_in=stop_in)
    for _ in range(2):
        best = BestModel("eval/rmse", keep=lambda state: state["weights"] * 10)
        _run_watching(tmp_path, values, [best])
        assert (best.best, best.best_round, best.kept.tolist()) == (2, 3, [30, 30])


def test_two_of_one_class_are_told_apart(tmp_path):
    values = [5, 2, 3]

    def callbacks():
        return [BestModel("train/loss", mode="max"), BestModel("eval/rmse")]

    _run_watching(tmp_path, values, callbacks())
    largest, least = again = callbacks()
    _run_watching(tmp_path, values, again)
    assert (largest.best_round, least.best_round) == (3, 2)
    assert (largest.kept["weights"][0], least.kept["weights"][0]) == (3, 2)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("eval/rmsd", "EarlyStopping watches eval/rmsd, which round 1 does not have; it has "
                      "eval/rmse, eval/accuracy."),
        ("train/rmse", "does not have; it has train/loss."),
        ("rmse", "does not have; it has train/loss, eval/rmse, eval/accuracy."),
    ],
)  # fmt: skip
def test_names_the_metrics_that_there_are(tmp_path, metric, message):
    with pytest.raises(UserError) as caught:
        _run_watching(tmp_path, [1, 2], [EarlyStopping(metric, patience=1)])
    assert str(caught.value).endswith(message)


def test_refuses_a_metric_of_evaluation_where_there_is_none(tmp_path):
    with pytest.raises(UserError, match="BestModel watches eval/rmse, but no round is evaluated"):
        _run_watching(tmp_path, [1], [BestModel("eval/rmse")], evaluate_fn=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "auto"}, r"EarlyStopping: mode must be one of \['min', 'max'\], not 'auto'"),
        ({"patience": 0}, "patience must be at least 1, not 0"),
        ({"min_delta": -1}, "min_delta must be a number of at least 0, not -1"),
        ({"min_delta": np.nan}, "min_delta must be a number of at least 0, not nan"),
    ],
)
def test_checks_options(options, message):
    with pytest.raises(UserError, match=message):
        EarlyStopping("eval/rmse", **{"patience": 1, **options})
