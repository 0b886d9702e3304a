from __future__ import annotations

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator

from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.state import RunState
from fedpersonal.training.progress import Progress, TensorBoard


def _scalars(folder, tag):
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def _write(path, *, after_round, rows):
    run = RunState(RunFolder.open(path, {}), 10, True, state=None, round_number=after_round)
    callback = TensorBoard()
    callback.on_start(run)
    for run.round_number, run.metrics in rows:
        run.seconds = 0.5
        callback.on_round_end(run)
    callback.on_end(run, None)


def test_shows_each_round_once(tmp_path):
    _write(tmp_path, after_round=0, rows=[(r, {"train/loss": r}) for r in range(1, 6)])
    row = {"train/loss": 40, "eval/rmse": np.float32(0.25)}
    _write(tmp_path, after_round=3, rows=[(4, row)])
    assert _scalars(tmp_path, "train/loss") == [(1, 1), (2, 2), (3, 3), (4, 40)]
    assert _scalars(tmp_path, "eval/rmse") == [(4, 0.25)]
    assert _scalars(tmp_path, "seconds")[-1] == (4, 0.5)


@pytest.mark.parametrize("options", [{}, {"dp_target_epsilon": 4.0}], ids=len)
def test_a_finished_run_goes_on_where_its_noise_allows_that(tmp_path, capsys, options):
    run = RunState(RunFolder.open(tmp_path, options), 10, True, state=None, round_number=10)
    Progress().on_start(run)
    said = capsys.readouterr().err
    assert "The run is finished: 10 rounds." in said
    assert ("it resumes from there" in said) == (not options)
