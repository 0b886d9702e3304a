from __future__ import annotations

import collections
import dataclasses
import os
import signal
import subprocess
import sys
from typing import Any

import attrs
import numpy as np
import pytest

from fedpersonal import files
from fedpersonal.errors import UserError
from fedpersonal.runs import checkpoints


@attrs.define
class Weights:
    trainable: list
    non_trainable: tuple = ()


@dataclasses.dataclass(frozen=True)
class State:
    weights: Any
    optimizer: Any


def _hidden_class():
    return collections.namedtuple("Hidden", ["norm", "count"])


Hidden = _hidden_class()


def _state(scale=1.0):
    random = np.random.default_rng(5)
    table = random.normal(size=(3, 2)).astype(np.float32) * np.float32(scale)
    return State(
        weights=Weights([table, np.float32(0.1) * np.float32(scale)], (np.int64(7),)),
        optimizer=collections.OrderedDict(
            step=3,
            rate=0.1 * scale,
            on=True,
            name="adam",
            nothing=None,
            empty=(),
            aggregator=(Hidden(np.float64(1 / 3), 2), [()]),
            by_client={7: np.array([np.nan, -0.0, np.inf]), "7": np.zeros((0, 3), np.uint8)},
            zero_dimensional=np.array(2, np.int16),
            by_column=np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        ),
    )


def _assert_same_bits(one, other):
    assert type(one) is type(other)
    if isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, (State, Weights)):
        for name in one.__annotations__:
            _assert_same_bits(getattr(one, name), getattr(other, name))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            _assert_same_bits(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for parts in zip(one, other):
            _assert_same_bits(*parts)
    else:
        assert one == other


def test_restores_a_state_bit_for_bit(tmp_path):
    checkpoints.Checkpoints(tmp_path).save(12, _state())
    restored = checkpoints.Checkpoints(tmp_path).restore(like=_state(scale=0.0))
    assert restored.round_number == 12
    _assert_same_bits(restored.state, _state())


def test_restores_the_classes_of_tff_states(tmp_path):
    # As in the states of TFF's aggregators: by its name this class cannot be found again.
    Local = collections.namedtuple("Hidden", ["estimate"])
    state = (Local(np.float32(1.5)), Hidden(1, 2))
    checkpoints.Checkpoints(tmp_path).save(1, state)
    restored = checkpoints.Checkpoints(tmp_path).restore(like=state).state
    assert [type(part) for part in restored] == [Local, Hidden]
    assert restored == state


def test_places_of_one_name_are_kept_apart(tmp_path):
    state = {"a/b": np.array(1), "a": {"b": np.array(2)}, 1: np.array(3), "1": np.array(4)}
    checkpoints.Checkpoints(tmp_path).save(1, state)
    restored = checkpoints.Checkpoints(tmp_path).restore(like=state).state
    _assert_same_bits(restored, state)


def test_there_may_be_no_checkpoint(tmp_path):
    assert checkpoints.Checkpoints(tmp_path / "new").restore(like=()) is None


def test_keeps_the_newest_two(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    for round_number in (5, 50, 999_999, 1_000_000):
        saved.save(round_number, round_number)
    assert sorted(os.listdir(tmp_path)) == ["round_1000000.npz", "round_999999.npz"]
    assert saved.restore(like=0).state == 1_000_000


def test_damage_anywhere_is_noticed(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    saved.save(1, _state())
    saved.save(2, _state(scale=2.0))
    newest = tmp_path / "round_000002.npz"
    whole = newest.read_bytes()
    for length in range(0, len(whole), 97):
        newest.write_bytes(whole[:length])
        assert saved.restore(like=_state()).round_number == 1
    with np.load(newest.with_name("round_000001.npz")) as file:
        name = next(name for name in file.files if name.endswith("trainable/0"))
        table = file[name]
    place = whole.find((table * np.float32(2)).tobytes())
    assert place > 0
    newest.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert saved.restore(like=_state()).round_number == 1
    newest.write_bytes(whole)
    assert saved.restore(like=_state()).round_number == 2


def test_what_is_no_file_is_damaged(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    saved.save(1, _state())
    (tmp_path / "round_000002.npz").mkdir()
    assert saved.restore(like=_state()).round_number == 1
    (tmp_path / "round_000001.npz").unlink()
    with pytest.raises(UserError, match="round_000002.npz is damaged or was changed: restore it"):
        saved.restore(like=_state())
    with pytest.raises(UserError, match="round_000002.npz cannot be written: Is a directory"):
        saved.save(2, _state())


def test_a_state_of_another_process_is_one_line(tmp_path):
    checkpoints.Checkpoints(tmp_path).save(1, _state())
    with pytest.raises(UserError, match="round_000001.npz is of another model or algorithm: The "):
        checkpoints.Checkpoints(tmp_path).restore(like={"a": 1})


def test_a_folder_that_is_none_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file cannot be written: File exists"):
        checkpoints.Checkpoints(tmp_path / "file")


def test_a_save_that_is_killed_leaves_the_former_checkpoint(tmp_path):
    program = f"""
import os, signal, sys
import numpy as np
from fedpersonal.runs import checkpoints
saved = checkpoints.Checkpoints({str(tmp_path)!r})
saved.save(1, np.ones(100_000))
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
saved.save(2, np.zeros(100_000))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, timeout=600)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / f"round_000002.npz{files.TEMPORARY_SUFFIX}").exists()
    saved = checkpoints.Checkpoints(tmp_path)
    assert saved.restore(like=np.ones(1)).round_number == 1
    assert os.listdir(tmp_path) == ["round_000001.npz"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [object()]}, "state/a/0 is a builtins.object"),
        ({"a": np.array([None])}, "state/a has dtype object"),
        ({(1, 2): 3}, r"state has the key \(1, 2\)"),
    ],
)
def test_names_the_place_of_what_it_cannot_keep(state, message):
    with pytest.raises(TypeError, match=message):
        checkpoints.encode(state)


def test_others_cannot_read_it(tmp_path):
    checkpoints.Checkpoints(tmp_path).save(1, _state())
    assert (tmp_path / "round_000001.npz").stat().st_mode & 0o777 == 0o600
