"""`EarlyStopping` and `BestModel`, in runs whose evaluations are given."""

from __future__ import annotations

import types

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs.folder import RunFolder
from fedpersonal.training import loop
from fedpersonal.training.callbacks import BestModel, EarlyStopping


class Process:
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


def _run(path, values, callbacks, *, stop_in=None, **options):
    """Runs as many rounds as there are values, of which each is an evaluation's."""
    defaults = {
        "process": Process(),
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
    result = _run(tmp_path, values, [stopping])
    assert result.state["weights"][0] == result.rounds_run == rounds
    assert (stopping.best, stopping.best_round) == best
    is_last = rounds == len(values)
    assert is_last or result.stop_reason == (
        f"eval/rmse has not got better since round {best[1]} ({float(best[0])})."
    )
    assert len(RunFolder.read(tmp_path).metrics) == rounds


def test_may_stop_without_ever_a_number(tmp_path, caplog):
    result = _run(tmp_path, [np.nan] * 5, [EarlyStopping("eval/rmse", patience=3)])
    (said,) = caplog.messages
    assert said.startswith("EarlyStopping watches eval/rmse, which is not a number in round 1:")
    assert result.rounds_run == 3
    assert result.stop_reason == "eval/rmse was never a number."


def test_only_evaluated_rounds_count(tmp_path):
    stopping = EarlyStopping("eval/rmse", patience=2)
    result = _run(tmp_path, [1.0] * 20, [stopping], rounds_per_eval=3)
    assert result.rounds_run == 9


def test_a_stopped_run_stays_stopped(tmp_path, capfd):
    values = [3, 4, 5, 6, 1, 1]
    first = _run(tmp_path, values, [EarlyStopping("eval/rmse", patience=2)], progress=True)
    said = "The run has ended after round 3: eval/rmse has not got better since round 1 (3.0)."
    assert capfd.readouterr().err.splitlines()[-1] == said
    for total_rounds in (6, 60):
        again = _run(
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
                _run(tmp_path / name, values, callbacks, stop_in=stop_in)
        stopping, best = EarlyStopping("eval/rmse", patience=4), BestModel("eval/rmse")
        result = _run(tmp_path / name, values, [stopping, best])
        assert result.state["weights"][0] == 7
        assert (stopping.best, stopping.best_round) == (best.best, best.best_round) == (1, 7)
        assert best.kept["weights"].tolist() == [7, 7]


@pytest.mark.parametrize("stop_in", range(4, 7))
def test_the_best_model_survives_sessions(tmp_path, stop_in):
    values = [5, 4, 2, 3, 2, 2.5, 3]
    best = BestModel("eval/rmse", keep=lambda state: state["weights"] * 10)
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, values, [best], stop_in=stop_in)
    for _ in range(2):
        best = BestModel("eval/rmse", keep=lambda state: state["weights"] * 10)
        _run(tmp_path, values, [best])
        assert (best.best, best.best_round, best.kept.tolist()) == (2, 3, [30, 30])


def test_two_of_one_class_are_told_apart(tmp_path):
    values = [5, 2, 3]

    def callbacks():
        return [BestModel("train/loss", mode="max"), BestModel("eval/rmse")]

    _run(tmp_path, values, callbacks())
    largest, least = again = callbacks()
    _run(tmp_path, values, again)
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
        _run(tmp_path, [1, 2], [EarlyStopping(metric, patience=1)])
    assert str(caught.value).endswith(message)


def test_refuses_a_metric_of_evaluation_where_there_is_none(tmp_path):
    with pytest.raises(UserError, match="BestModel watches eval/rmse, but no round is evaluated"):
        _run(tmp_path, [1], [BestModel("eval/rmse")], evaluate_fn=None)


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
