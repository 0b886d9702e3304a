from __future__ import annotations

import pytest

from fedpersonal.errors import UserError
from fedpersonal.runs.checkpoints import Checkpoint
from fedpersonal.runs.folder import RunFolder
from fedpersonal.runs.saver import Saver
from fedpersonal.runs.state import Callback, RunState


class Counter(Callback):
    remembers = ("count",)
    count = 0


class Storage:
    """Holds one checkpoint."""

    def __init__(self, **changes):
        callbacks = {"Counter 1": {"count": 7}}
        known = {"round_number": 3, "state": 1, "train_wall_seconds": 0.5, "stop_reason": None}
        self.state = {**known, "callbacks": callbacks, **changes}

    def restore(self, *, like):
        return Checkpoint(3, self.state)


def resumed(folder, storage):
    counter, run = Counter(), RunState(folder, 5, False, state=0)
    Saver(storage, [counter], every=1).resume(run)
    return run.round_number, run.state, run.train_wall_seconds, run.stop_reason, counter.count


def test_what_was_saved_is_put_back(tmp_path):
    assert resumed(RunFolder.open(tmp_path, {}), Storage()) == (3, 1, 0.5, None, 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"round_number": "3"},
        {"train_wall_seconds": None},
        {"stop_reason": 7},
        {"callbacks": [1]},
        {"callbacks": {"Counter 1": 7}},
        {"callbacks": {"Counter 1": {"on_start": 7}}},
    ],
)
def test_what_no_run_has_saved_is_refused(tmp_path, changes):
    with pytest.raises(UserError, match="is damaged or was changed") as caught:
        resumed(RunFolder.open(tmp_path, {}), Storage(**changes))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("state", [None, [], {}])
def test_what_is_no_saved_run_is_refused(tmp_path, state):
    storage = Storage()
    storage.state = state
    with pytest.raises(UserError, match="is damaged or was changed"):
        resumed(RunFolder.open(tmp_path, {}), storage)
