"""The commands of the tasks: help at once, and a run of each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import time

import pytest

from fedpersonal.files import read_json, write_json
from tests.suite import small

SAID = {
    "digits": [
        "digits: 1,797 images of 10 digits",
        "test, 16 writers, 300 images: accuracy 0.\\d+ .the nearest image of each client's own: 0.",
        "4 writers who never took part: accuracy 0.* after personalisation .the nearest image of",
    ],
    "interactions": [
        "ratings: 240 interactions of 20 users, 30 items; no times: held-out items are sampled at",
        "test, 20 users, 380 items: hr@10_of_19 0.\\d+ .chance: 0.5263., ndcg@10_of_19 0.",
    ],
    "movielens": ["ratings: 240 ratings of 20 users, 30 items", "test, 2 users, 1\\d ratings: "],
    "reddit": [
        "texts: 200 texts of 20 users, 3 labels; 1 line left out: not UTF-8 .the first: line 3; ",
        "test, 18 users, 18 texts: accuracy 0.\\d+ .the most frequent label: 0.",
        "2 users who never took part: accuracy 0.* after personalisation",
    ],
    "stackoverflow": [
        "texts: 2\\d\\d sentences of 20 users, .* words; 1 line left out: not UTF-8",
        "test, 2 users, .* before and .* after personalisation",
    ],
    "tv_shows": [
        "texts: 200 utterances of 20 users, 3 contexts",
        "test, 20 seen users: perplexity",
        *[r" +\d"] * 6,
    ],
}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("binaries")
    small.write_ratings(folder / "ratings.csv", num_users=20)
    small.write_texts(folder / "texts.csv", num_users=20)
    os.symlink(tiny_base.source, folder / "base")
    return folder


# What keeps a program from its user's home.
EXPERIMENT = "fedpersonal.suite.tasks.experiment"
_HOMES = ("KERAS_HOME", "MPLCONFIGDIR", "TRANSFORMERS_CACHE", "HF_HOME")
_HOMES += ("XDG_CONFIG_HOME", "XDG_CACHE_HOME")


def test_help_comes_at_once(start_program, tmp_path):
    """Without TensorFlow, whose import alone takes longer than the processor time allowed here."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with start_program("-m", "experiments.movielens", "--help", cwd=tmp_path) as process:
        output, errors = process.communicate(timeout=60)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (process.returncode, errors) == (0, "")
    assert "fedpersonal movielens" in output and "--method" in output
    assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime < 2.0


# A run without and one with what clients keep.
USUAL = ("movielens", "tv_shows")


@pytest.fixture(name="finished", scope="module")
def _finished(folder, run_commands, request):
    """Runs each command once, and returns output, errors and status of each."""
    (folder / "home").mkdir()
    tasks = small.TASKS if request.config.getoption("exhaustive") else USUAL
    commands = [
        [task, *small.ALL, *small.FLAGS[task], f"--output_dir=out_{task}"] for task in tasks
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        for name in _HOMES:
            patch.delenv(name, raising=False)
        outcomes = run_commands(commands, modules=[EXPERIMENT], cwd=folder)
    return dict(zip(tasks, outcomes))


@pytest.mark.exhaustive(but=USUAL)
@pytest.mark.parametrize("binary", small.TASKS)
def test_a_binary_runs(finished, folder, binary):
    output, errors, status = finished[binary]
    assert status == 0 and "Traceback" not in errors and "Warning" not in errors, errors
    *lines, last = output.splitlines()
    assert len(lines) == len(SAID[binary])
    for line, expected in zip(lines, SAID[binary]):
        assert re.match(expected, line), line
    path = folder / f"out_{binary}"
    assert last.startswith("1 round in ") and last.endswith(path.name)
    config = json.loads((path / "config.json").read_text())
    assert config["options"]["clients_per_round"] == 4 and config["seed"] == 0
    assert json.loads((path / "summary.json").read_text())["rounds"] == 1


@pytest.mark.exhaustive
def test_an_own_table_trains_at_a_size_on_some_users(folder, run_commands):
    (folder / "users.txt").write_text("\n".join(f"u{i}" for i in range(4, 18)))
    usual = ["--ratings_file=ratings.csv", "--user_column=who", "--size=quick", "--total_rounds=1"]
    some = [*usual, "--users_file=users.txt", "--num_users=12"]
    run = "results/ratings_quick"
    commands = [["ratings", *some], ["ratings", *some, "--num_users=11"]]
    commands += [["ratings", *some, "--method=fed_avg", "--output_dir=other"]]
    commands += [["report", run], ["compare", run, "other"]]
    outcomes = run_commands(commands, modules=[EXPERIMENT], cwd=folder)
    said = (
        "ratings: 144 ratings of 12 users, .* items; 6 users who are not in --users_file; 2 users"
    )
    assert re.match(said, outcomes[0][0])
    assert [status for *_, status in outcomes] == [0, 2, 0, 0, 0], outcomes
    assert "num_users was 12 and is now 11" in outcomes[1][1]
    config = read_json(folder / run / "config.json", checked=True)
    # A size's values are the run's options, and flags win over them.
    values, task = config["options"], "fedpersonal.suite.tasks.ratings.task"
    assert (values["task"], values["reconstruction"], values["total_rounds"]) == (task, "ridge", 1)
    assert config["data"]["num_users"] == 12
    # The same command, but the file names others.
    (folder / "users.txt").write_text("\n".join(f"u{i}" for i in range(14)))
    ((_, errors, status),) = run_commands([commands[0]], modules=[], cwd=folder)
    assert status == 2 and "other data: values was" in errors


def test_nothing_is_written_to_the_home(finished, folder):
    assert not list((folder / "home").rglob("*"))


def test_what_holds_local_variables_is_its_owners_alone(finished, folder):
    own = [*folder.glob("out_*/model.npz"), *folder.glob("out_*/local_state.sqlite")]
    own += folder.glob("out_*/checkpoints/*")
    assert len(own) >= 2 * len(finished)
    assert {path.name: path.stat().st_mode & 0o777 for path in own} == dict.fromkeys(
        [path.name for path in own], 0o600
    )


@pytest.mark.exhaustive
def test_damaged_folders_are_one_line(finished, folder, run_commands):
    """Of a run that goes on, and of one that generates."""

    def spoil(name, binary, write):
        path = shutil.copytree(folder / f"out_{binary}", folder / name)
        (path / ".lock").unlink()
        write(path)
        return path

    def replace(name, content):
        return lambda path: (path / name).write_bytes(content)

    more = [*small.ALL, *small.FLAGS["movielens"], "--total_rounds=2"]
    going_on = {
        "flags": (replace("config.json", b'{"flags": []}'), "config.json is damaged"),
        "deep": (replace("config.json", b"[" * 200_000), "config.json is damaged"),
        "bytes": (replace("metrics.csv", b"\xff\n"), "metrics.csv is damaged"),
        "gone": (lambda path: shutil.rmtree(path / "checkpoints"), "metrics.csv has rounds, but"),
        "row": (
            replace("metrics.csv", "round,seconds\n\u00b2,1\n".encode()),
            "metrics.csv is damaged",
        ),
    }
    asking = ["--user=u1", "--context=cats"]
    generating = {
        "list": (replace("summary.json", b"[]"), "summary.json is damaged"),
        "row deleted": (delete_row, "local_state.sqlite is damaged"),
    }
    commands, said = [], []
    for name, (write, message) in going_on.items():
        path = spoil(name, "movielens", write)
        commands.append(["movielens", *more, f"--output_dir={path}"])
        said.append(message)
    for name, (write, message) in generating.items():
        path = spoil(name, "tv_shows", write)
        commands.append(["generate", f"--run_dir={path}", *asking])
        said.append(message)
    # Data, too, may be others than they were.
    ratings = (folder / "ratings.csv").read_text().splitlines()
    turned = [f"{row[:-1]}{6 - int(row[-1])}" for row in ratings[1:]]
    for name, rows in (("turned", turned), ("longer", [*ratings[1:], "u1,new,3"])):
        path = spoil(name, "movielens", lambda path: None)
        other = path / "ratings.csv"
        other.write_text("\n".join([ratings[0], *rows]) + "\n")
        # As if the file had been changed where it is.
        config = read_json(path / "config.json", checked=True)
        config["options"]["ratings_file"] = str(other)
        write_json(path / "config.json", config, checked=True)
        files = [f"--ratings_file={other}", f"--output_dir={path}"]
        commands.append(["movielens", *more, *files])
    said += ["other data: values was", "num_ratings was 240 and is now 241"]
    lost = ["--method=fed_avg", "--client_learning_rate=1e9", "--server_optimizer=sgd"]
    lost += ["--total_rounds=12", "--embedding_stddev=1e5", "--output_dir=lost"]
    commands.append(["movielens", *more, *lost])
    said.append("Nothing was learned in rounds 1 to 10: every client's update was infinite")
    modules = ["fedpersonal.suite.tasks.experiment", "fedpersonal.suite.tasks.utterances.models"]
    for message, (_, errors, status) in zip(
        said, run_commands(commands, modules=modules, cwd=folder)
    ):
        *_, last = errors.splitlines()
        assert status == 2 and message in last and last.startswith("error: "), (message, errors)
        assert "Traceback" not in errors, errors
    assert not (folder / "lost" / "summary.json").exists()


def delete_row(path):
    with contextlib.closing(sqlite3.connect(path / "local_state.sqlite")) as store, store:
        store.execute("DELETE FROM local_state WHERE rowid = 1")


def rounds_of(path):
    """The rounds that are written down."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split(",")[0]) for line in lines[1:]]


@pytest.mark.exhaustive
def test_a_run_goes_on_after_ctrl_c(folder, start_program, run_program):
    command = (
        "-m",
        "experiments.movielens",
        *small.ALL,
        *small.FLAGS["movielens"],
        "--output_dir=stopped",
    )
    metrics = folder / "stopped" / "metrics.csv"
    with start_program(*command, "--total_rounds=1000000", cwd=folder) as process:
        deadline = time.monotonic() + 600
        while not rounds_of(metrics):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    done = rounds_of(metrics)
    assert not (folder / "stopped" / "summary.json").exists()
    output, errors, status = run_program(*command, f"--total_rounds={len(done) + 1}", cwd=folder)
    assert status == 0 and f"{len(done) + 1} rounds in " in output, errors
    assert rounds_of(metrics) == [*done, len(done) + 1]
