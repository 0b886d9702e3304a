from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.simulation import run_config, run_folder

FLAGS = {"seed": 4, "rate": 0.5, "total_rounds": 10, "layers": [1, 2], "name": None}


def _config(folder):
    return json.loads((folder.path / "config.json").read_text())


def test_writes_flags_seed_and_versions(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path / "deep" / "run", FLAGS)
    config = _config(folder)
    assert config["flags"] == FLAGS
    assert config["seed"] == 4
    assert config["versions"]["numpy"] == np.__version__
    assert set(config["versions"]) == {
        "python", "fedpersonal", "tensorflow", "tensorflow-federated", "numpy"
    }  # fmt: skip


def test_opens_again_with_flags_that_may_differ(tmp_path):
    run_folder.RunFolder.open(tmp_path, FLAGS)
    folder = run_folder.RunFolder.open(tmp_path, {**FLAGS, "total_rounds": 20, "layers": (1, 2)})
    assert _config(folder)["flags"]["total_rounds"] == 20
    assert "later_versions" not in _config(folder)


def test_refuses_other_flags_and_names_them(tmp_path):
    run_folder.RunFolder.open(tmp_path, FLAGS)
    other = {**FLAGS, "rate": 0.25, "name": "x", "new": 1}
    with pytest.raises(UserError) as caught:
        run_folder.RunFolder.open(tmp_path, other)
    message = str(caught.value)
    assert "rate was 0.5 and is now 0.25" in message
    assert 'name was null and is now "x"' in message
    assert "new was absent and is now 1" in message
    assert "seed" not in message and "\n" not in message
    assert json.loads((tmp_path / "config.json").read_text())["flags"] == FLAGS


def test_notes_other_versions(tmp_path, monkeypatch):
    started_with = _config(run_folder.RunFolder.open(tmp_path, FLAGS))["versions"]
    monkeypatch.setattr(run_config, "_versions", lambda: {"numpy": "9"})
    for _ in range(2):
        config = _config(run_folder.RunFolder.open(tmp_path, FLAGS))
        assert config["versions"] == started_with
        assert config["later_versions"] == [{"numpy": "9"}]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"flags": {}}'])
def test_refuses_a_config_that_is_not_one(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="config.json is not the config.json of a run"):
        run_folder.RunFolder.open(tmp_path, FLAGS)


def test_refuses_metrics_of_somebody_else(tmp_path):
    (tmp_path / "metrics.csv").write_text("a,b\n")
    with pytest.raises(UserError, match="metrics.csv"):
        run_folder.RunFolder.open(tmp_path, FLAGS)


def test_refuses_a_path_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write to the run folder .*file"):
        run_folder.RunFolder.open(tmp_path / "file", FLAGS)


def test_refuses_a_folder_in_use_until_its_process_ends(tmp_path):
    program = (
        "import sys; from fedpersonal.simulation import run_folder\n"
        f"run_folder.RunFolder.open({str(tmp_path)!r}, {FLAGS!r})\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(UserError, match="Another process is running in"):
            run_folder.RunFolder.open(tmp_path, FLAGS)
        other.kill()
        other.wait()
    run_folder.RunFolder.open(tmp_path, FLAGS)


@dataclasses.dataclass
class _Tensor:
    name: str
    shape: tuple


def test_writes_results_as_json_and_csv(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, FLAGS)
    folder.write_summary({"rounds": np.int64(3), "test": {"rmse": np.float32(0.5)}, "bad": np.nan})
    folder.write_boundary([_Tensor("item", (2, 3))])
    folder.write_per_client([{"client": "a,b", "rmse": np.float32(0.1)}, {"client": 2, "rmse": 1}])
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "rounds": 3,
        "test": {"rmse": 0.5},
        "bad": "nan",
    }
    assert json.loads((tmp_path / "boundary.json").read_text()) == [
        {"name": "item", "shape": [2, 3]}
    ]
    assert (tmp_path / "per_client.csv").read_text() == 'client,rmse\n"a,b",0.1\n2,1\n'


def test_a_failed_write_leaves_the_former_file(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, FLAGS)
    folder.write_summary({"rounds": 1})
    with pytest.raises(TypeError):
        folder.write_summary({"rounds": object()})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"rounds": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "config.json", "summary.json"
    ]  # fmt: skip
