from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fedpersonal
from fedpersonal.errors import UserError
from fedpersonal.files import write_json
from fedpersonal.runs import folder as run_folder
from fedpersonal.runs import record as run_config

OPTIONS = {"seed": 4, "rate": 0.5, "total_rounds": 10, "layers": [1, 2], "name": None}


_read = run_folder.RunFolder.read


def _config(folder):
    return json.loads((folder.path / "config.json").read_text())


def test_writes_options_seed_and_versions(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path / "deep" / "run", OPTIONS)
    config = _config(folder)
    assert config["options"] == OPTIONS
    assert config["seed"] == 4
    assert config["versions"]["numpy"] == np.__version__
    core = {"tff": "tensorflow-federated", "today": "federated-language"}[
        config["versions"]["stack"]
    ]
    assert set(config["versions"]) == {
        "python", "fedpersonal", "stack", "tensorflow", core, "numpy"
    }  # fmt: skip


def test_opens_again_with_options_that_may_differ(tmp_path):
    run_folder.RunFolder.open(tmp_path, OPTIONS)
    folder = run_folder.RunFolder.open(tmp_path, {**OPTIONS, "total_rounds": 20, "layers": (1, 2)})
    assert _config(folder)["options"]["total_rounds"] == 20
    assert "later_versions" not in _config(folder)


def test_refuses_other_options_and_names_them(tmp_path):
    run_folder.RunFolder.open(tmp_path, OPTIONS)
    other = {**OPTIONS, "rate": 0.25, "name": "x", "new": 1}
    with pytest.raises(UserError) as caught:
        run_folder.RunFolder.open(tmp_path, other)
    message = str(caught.value)
    assert "rate was 0.5 and is now 0.25" in message
    assert 'name was null and is now "x"' in message
    assert "new was absent and is now 1" in message
    assert "seed" not in message and "\n" not in message
    assert json.loads((tmp_path / "config.json").read_text())["options"] == OPTIONS


def test_notes_other_sessions(tmp_path, monkeypatch):
    about = {"runtime": "local", "num_shards": 4}
    first = _config(run_folder.RunFolder.open(tmp_path, OPTIONS, about=about))
    assert (first["runtime"], first["num_shards"]) == ("local", 4)
    other = {"runtime": "ray", "num_shards": 4}
    for given in (about, other, other, about):
        config = _config(run_folder.RunFolder.open(tmp_path, OPTIONS, about=given))
    later = [{"versions": first["versions"], "runtime": "ray"}]
    digests = {config.pop("digest"), first.pop("digest")}
    assert config == {**first, "later_sessions": later} and len(digests) == 2
    monkeypatch.setattr(run_config, "_versions", lambda: {"numpy": "9"})
    for _ in range(2):
        config = _config(run_folder.RunFolder.open(tmp_path, OPTIONS, about=about))
        assert config["versions"] == first["versions"]
        assert config["later_sessions"] == [
            *later,
            {"versions": {"numpy": "9"}, "runtime": "local"},
        ]


def test_warns_in_one_line_where_a_run_goes_on_with_another_stack(tmp_path, monkeypatch, caplog):
    versions = {"stack": "tff", "numpy": "1"}
    monkeypatch.setattr(run_config, "_versions", lambda: dict(versions))
    for numpy, stack in (("1", "tff"), ("2", "tff"), ("2", "today"), ("2", "today")):
        versions.update(numpy=numpy, stack=stack)
        run_folder.RunFolder.open(tmp_path, OPTIONS)
    same, other = caplog.messages
    assert "resumes with" in same and "Bits" not in same
    assert "'stack': 'today'" in other and "\n" not in other
    assert other.endswith(" Bits differ between stacks where XLA compiles.")


def test_a_run_keeps_its_number_of_shards(tmp_path):
    assert run_config.read_num_shards(tmp_path) is None
    run_folder.RunFolder.open(tmp_path, OPTIONS, about={"num_shards": 4})
    assert run_config.read_num_shards(tmp_path) == 4
    with pytest.raises(ValueError, match="other shards: the shards was 4 and is now 2. Restore"):
        run_folder.RunFolder.open(tmp_path, OPTIONS, about={"num_shards": 2})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ab12", "cd34", 'the data was "ab12" and is now "cd34"'),
        (
            {"train": "1", "test": "2", "names": "3"},
            {"train": "1", "test": "4", "words": "3"},
            'test was "2" and is now "4"; names was "3" and is now absent; words was absent and',
        ),
    ],
)
def test_refuses_other_data_and_names_them(tmp_path, old, new, message):
    run_folder.RunFolder.open(tmp_path, OPTIONS, about={"data": old})
    with pytest.raises(UserError) as caught:
        run_folder.RunFolder.open(tmp_path, OPTIONS, about={"data": new})
    assert f"holds a run with other data: {message}" in str(caught.value)
    # Who does not say which data they are is believed, and the folder remembers.
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS)
    assert _config(folder)["data"] == old


def test_data_may_be_told_later(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS, about={"data": None})
    assert "data" not in _config(folder)
    run_folder.RunFolder.open(tmp_path, OPTIONS, about={"data": "ab12"})
    with pytest.raises(UserError, match="other data"):
        run_folder.RunFolder.open(tmp_path, OPTIONS, about={"data": "cd34"})


def test_refuses_what_it_does_not_know_about(tmp_path):
    with pytest.raises(ValueError, match=r"not \['shards'\]"):
        run_folder.RunFolder.open(tmp_path, OPTIONS, about={"shards": 4})


@pytest.mark.parametrize(
    ("version", "config"),
    [
        ("0.1.0", {"flags": OPTIONS, "seed": 4}),
        ("0.2.0", {"options": OPTIONS, "seed": 4, "checksum": "0123456789abcdef"}),
    ],
)
def test_refuses_a_run_of_another_version(tmp_path, version, config):
    config = {**config, "versions": {"fedpersonal": version}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for use in (lambda: run_folder.RunFolder.open(tmp_path, OPTIONS), lambda: _read(tmp_path)):
        with pytest.raises(UserError) as caught:
            use()
        assert str(caught.value) == (
            f"{tmp_path} holds a run of fedpersonal {version}, which version "
            f"{fedpersonal.__version__} cannot open; give another folder."
        )
    assert json.loads((tmp_path / "config.json").read_text()) == config


def test_refuses_a_config_that_was_changed(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS)
    folder.config_json.write_text(folder.config_json.read_text().replace('"seed": 4', '"seed": 5'))
    with pytest.raises(UserError, match="config.json is damaged or was changed"):
        _read(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("later_sessions", 7, "is damaged or was changed"),
        ("num_shards", "x", "is damaged or was changed"),
        ("num_shards", 0, "is damaged or was changed"),
        ("options", {"\n\ud800": 1}, r"with other options: \\n\\ud800 was 1 and is now absent"),
        ("options", {"x" * 9000: 1}, "holds a run with other options: xxx"),
        ("options", {**OPTIONS, "rate": ["x"] * 9000}, "and is now 0.5. Restore them"),
    ],
)
def test_other_values_with_a_right_digest_are_one_line(tmp_path, name, value, message):
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS)
    config = {**_config(folder), name: value}
    del config["digest"]
    write_json(folder.config_json, config, checked=True)
    with pytest.raises(UserError, match=message) as caught:
        run_folder.RunFolder.open(tmp_path, OPTIONS)
    said = str(caught.value)
    assert str(tmp_path) in said and said.isprintable() and len(said) < 2000


def test_the_data_of_a_run_are_named_part_by_part(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS)
    folder.check_data({"clients": 3, "examples": 20, "values": "ab12"})
    again = run_folder.RunFolder.open(tmp_path, OPTIONS)
    again.check_data({"clients": 3, "examples": 20, "values": "ab12"})
    with pytest.raises(UserError) as caught:
        again.check_data({"clients": 3, "examples": 21, "values": "cd34"})
    assert str(caught.value) == (
        f"{tmp_path} holds a run with other data: examples was 20 and is now 21; values was "
        '"ab12" and is now "cd34". Restore them or give another folder (--output_dir).'
    )


@pytest.fixture(name="full_disk")
def _full_disk(tmp_path):
    """A disk of 64 KiB, if there may be one, that is full."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (path / "run").mkdir()
        (path / "run" / ".lock").touch()
        with contextlib.suppress(OSError), open(path / "all", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield path / "run"
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_is_one_line(full_disk):
    with pytest.raises(UserError) as caught:
        run_folder.RunFolder.open(full_disk, OPTIONS)
    path = full_disk / "config.json"
    assert str(caught.value) == f"{path} cannot be written: No space left on device."
    assert [file.name for file in full_disk.iterdir()] == [".lock"]


def test_refuses_metrics_of_somebody_else(tmp_path):
    (tmp_path / "metrics.csv").write_text("a,b\n")
    with pytest.raises(UserError, match="metrics.csv"):
        run_folder.RunFolder.open(tmp_path, OPTIONS)


def test_refuses_a_path_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write to the run folder .*file"):
        run_folder.RunFolder.open(tmp_path / "file", OPTIONS)


def test_a_folder_that_cannot_be_written_shows_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    run_folder.check_writable(tmp_path)
    run_folder.check_writable(tmp_path / "new" / "run")
    for path in ("file", "file/run/of/mine"):
        with pytest.raises(UserError, match=f"Cannot write to .*{path}: Not a directory .*/file"):
            run_folder.check_writable(tmp_path / path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # The superuser may do all.
    for path in ("", "new/run"):
        with pytest.raises(UserError, match=f"Cannot write to .*{path}: Permission denied"):
            run_folder.check_writable(tmp_path / path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_refuses_a_folder_in_use_until_its_process_ends(tmp_path):
    program = (
        "import sys; from fedpersonal.runs import folder as run_folder\n"
        f"run_folder.RunFolder.open({str(tmp_path)!r}, {OPTIONS!r})\n"
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
            run_folder.RunFolder.open(tmp_path, OPTIONS)
        other.kill()
        other.wait()
    run_folder.RunFolder.open(tmp_path, OPTIONS)


_OPENS = """
import sys
from fedpersonal.errors import UserError
from fedpersonal.runs import folder as run_folder
for path in iter(sys.stdin.readline, ""):
    try:
        run_folder.RunFolder.open(path.strip(), {}).close()
        print("open", flush=True)
    except UserError as error:
        print(error, flush=True)
"""


@pytest.fixture(name="others_open", scope="module")
def _others_open():
    """Returns what another process is told that opens a folder, and closes it."""
    with subprocess.Popen(
        [sys.executable, "-c", _OPENS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:

        def tell(path):
            other.stdin.write(f"{path}\n")
            other.stdin.flush()
            return other.stdout.readline().strip()

        yield tell
        other.stdin.close()


@pytest.mark.exhaustive
def test_others_may_open_a_folder_once_all_have_closed_it(tmp_path, others_open):
    before = os.listdir("/proc/self/fd")
    refused = f"Another process is running in {tmp_path}; wait or end it."
    first, second = (run_folder.RunFolder.open(tmp_path, {}) for _ in range(2))
    first.close()
    first.close()
    assert others_open(tmp_path) == refused
    with pytest.raises(UserError, match="other options"):
        run_folder.RunFolder.open(tmp_path, {"rate": 1})
    assert others_open(tmp_path) == refused
    second.close()
    with pytest.raises(UserError, match="other options"):
        run_folder.RunFolder.open(tmp_path, {"rate": 1})
    assert others_open(tmp_path) == "open"
    run_folder.RunFolder.open(tmp_path, {}).close()
    assert os.listdir("/proc/self/fd") == before


def test_another_thread_is_refused(tmp_path):
    with contextlib.closing(run_folder.RunFolder.open(tmp_path, {})):
        with ThreadPoolExecutor(1) as thread:
            refused = thread.submit(run_folder.RunFolder.open, tmp_path, {}).exception()
        message = f"Another run of this program is running in {tmp_path}; wait or end it."
        assert isinstance(refused, UserError) and str(refused) == message


@pytest.mark.parametrize("meanwhile", ["removed", "made anew", "copied", "moved"])
def test_a_folder_that_is_another_one_meanwhile_is_told(tmp_path, others_open, meanwhile):
    path = tmp_path / "run"
    folder = run_folder.RunFolder.open(path, {})
    folder.check_is_ours()
    path.rename(tmp_path / "elsewhere")
    if meanwhile == "made anew":
        path.mkdir()
        assert others_open(path) == "open"
    elif meanwhile == "copied":
        shutil.copytree(tmp_path / "elsewhere", path)
        assert others_open(path) == "open"
    elif meanwhile == "moved":
        with pytest.raises(UserError, match="Another run of this program is running in .*elsewhe"):
            run_folder.RunFolder.open(tmp_path / "elsewhere", {})
        assert others_open(tmp_path / "elsewhere").startswith("Another process")
    with pytest.raises(UserError, match="is not the folder in which this run began"):
        folder.check_is_ours()
    again = run_folder.RunFolder.open(path, {})
    again.check_is_ours()
    again.close()
    folder.close()
    assert others_open(tmp_path / "elsewhere") == "open"


@dataclasses.dataclass
class _Tensor:
    name: str
    shape: tuple


def test_writes_results_as_json_and_csv(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS)
    folder.write_summary({"rounds": np.int64(3), "test": {"rmse": np.float32(0.5)}, "bad": np.nan})
    folder.write_boundary([_Tensor("item", (2, 3))])
    folder.write_per_client({"client": ["a,b", "c"], "rmse": np.array([0.1, np.nan])})
    assert folder.summary == {"rounds": 3, "test": {"rmse": 0.5}, "bad": "nan"}
    assert json.loads((tmp_path / "boundary.json").read_text()) == [
        {"name": "item", "shape": [2, 3]}
    ]
    assert (tmp_path / "per_client.csv").read_text() == 'client,rmse\n"a,b",0.1\nc,\n'


def test_a_failed_write_leaves_the_former_file(tmp_path):
    folder = run_folder.RunFolder.open(tmp_path, OPTIONS)
    folder.write_summary({"rounds": 1})
    with pytest.raises(TypeError):
        folder.write_summary({"rounds": object()})
    assert folder.summary == {"rounds": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "config.json", "summary.json"
    ]  # fmt: skip
