"""The binaries of the tasks: help, a user's mistakes in one line each, and a run of each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from fedpersonal.files import read_json, write_json

BINARIES = ("interactions", "movielens", "reddit", "stackoverflow", "tv_shows")
_ALL = "--output_dir=out --total_rounds=1 --clients_per_round=4".split()
# Tables and sizes with which a binary runs in no time.
SMALL = {
    "interactions": ["--interactions_file=ratings.csv", "--embedding_dim=3", "--user_column=who"],
    "movielens": ["--ratings_file=ratings.csv", "--embedding_dim=3", "--user_column=who"],
    "reddit": [
        *("--text_file=texts.csv", "--num_labels=3", "--min_texts=5", "--text_length=8"),
        *("--character_dim=3", "--user_dim=3", "--lstm_units=4", "--hidden_units=5"),
        "--client_batch_size=4",
    ],
    "stackoverflow": [
        *("--text_file=texts.csv", "--vocab_size=8", "--num_oov_buckets=2", "--cache_dir=cache"),
        *("--sequence_length=5", "--embedding_dim=3", "--lstm_units=4", "--projection_dim=3"),
        "--client_batch_size=2",
    ],
    "tv_shows": [
        *("--text_file=texts.csv", "--base_model=base", "--text_length=8", "--local_steps=1"),
        *("--finetuning_epochs=1", "--base_model_dir=frozen"),
    ],
}
# Mistakes in options alone, and what is said of them.
OPTIONS = {
    "seed": (["--seed=1000000000000"], "--seed is 1000000000000; it must be a whole number"),
    "ridge": (["--ridge_l2=nan"], "--ridge_l2 is nan; it must be a finite number"),
    "norm": (["--max_update_norm=nan"], "--max_update_norm is nan; it must be a finite number"),
    "rounds": (["--total_rounds=0"], "--total_rounds is 0; it must be a whole number at least 1"),
    "rate": (["--client_learning_rate=0"], "--client_learning_rate is 0.0; it must be a finite"),
    "decay": (["--decay_rounds=1", "--total_rounds=2"], "--decay_rounds=1 must be 0 or at least"),
    "method": (["--algorithm=fed"], "--algorithm is fed; it must be one of "),
    "folder before data": (
        ["--output_dir=ratings.csv/run", "--user_column=absent"],
        "Cannot write to the run folder ratings.csv/run: Not a directory",
    ),
}
MISTAKES = {
    "interactions": {
        **OPTIONS,
        "no file": (["--interactions_file=absent.csv"], "absent.csv"),
        "two": (["--dataset=movielens_1m"], "--interactions_file and --dataset=movielens_1m excl"),
        "column": (["--item_column=film"], "there is no column 'film'"),
        "few": (["--min_interactions=2"], "--min_interactions is 2; it must be a whole number at"),
        "nobody": (["--min_interactions=13"], "no user has min_ratings=13"),
        "all items": (
            ["--interactions_file=all.csv"],
            "no user has left 10 of the 3 items unchosen",
        ),
    },
    "movielens": {
        **OPTIONS,
        "deviation": (["--embedding_stddev=nan"], "--embedding_stddev is nan"),
        "no file": (["--ratings_file=absent.csv"], "absent.csv"),
        "two": (["--dataset=movielens_1m"], "--ratings_file and --dataset=movielens_1m exclude"),
        "bad row": (["--ratings_file=bad.csv"], "bad.csv, line 3: 'rating' is not a finite"),
        "few users": (["--ratings_file=few_ratings.csv"], "few_ratings has 9 users; at least 10"),
    },
    "reddit": {
        **OPTIONS,
        "column": (["--label_column=subreddit"], "'subreddit'"),
        "one label": (["--num_labels=1"], "num_labels must be a whole number >= 2, got 1"),
        "no file": (["--text_file=absent.csv"], "absent.csv"),
        "two": (["--dataset=generated"], "--text_file and --dataset=generated exclude each other."),
        "few users": (["--text_file=few.csv"], "few has 9 users"),
        "few texts": (["--min_texts=11"], "min_texts=11"),
        "limits": (["--max_texts=4"], "max_texts must be a whole number >= 5, got 4"),
        "not binary": (["--num_labels=0"], "labels must be 0 or 1, got such as 'cats'"),
        "unseen": (["--unseen_users=2"], "--unseen_users is 2.0; it must be a finite number"),
        "local rate": (["--local_learning_rate=-1"], "--local_learning_rate is -1.0"),
    },
    "stackoverflow": {
        **OPTIONS,
        "column": (["--text_column=body"], "'body'"),
        "vocabulary": (["--vocab_size=500"], "vocab_size=500 is more than the"),
        "no buckets": (["--num_oov_buckets=0"], "--num_oov_buckets is 0; it must be"),
        "no file": (["--text_file=absent.csv"], "absent.csv"),
        "two": (["--dataset=generated"], "--text_file and --dataset=generated exclude each other."),
        "few users": (["--text_file=few.csv"], "few has 9 users"),
        "few sentences": (["--min_sentences=12"], "min_sentences=12"),
        "limits": (
            ["--min_sentences=5", "--max_sentences=4"],
            "max_sentences must be a whole number >= 5, got 4",
        ),
    },
    "tv_shows": {
        **OPTIONS,
        "no file": (["--text_file=absent.csv"], "absent.csv"),
        "two": (["--dataset=generated"], "--text_file and --dataset=generated exclude each other."),
        "column": (["--context_column=show"], "'show'"),
        "few utterances": (["--min_utterances=100"], "min_utterances=100"),
        "short": (["--text_length=3"], "--text_length is 3; it must be"),
        "no base": (["--base_model=empty"], "empty: there is no config.json"),
        "file as base": (["--base_model=texts.csv"], "a base model is a folder, this is a file"),
        "long": (["--text_length=4", "--too_long=error"], "positions"),
        "positions": (["--text_length=25"], "need 25 positions; the base model tiny has 24"),
        "few users": (["--text_file=two.csv", "--evaluate_on=unseen"], "two has 2 users"),
        "revision": (["--base_model_revision=v1"], "base is a folder, which has no revision 'v1'"),
        "rate of fine-tuning": (["--finetuning_learning_rate=-1"], "--finetuning_learning_rate is"),
    },
}
SAID = {
    "interactions": [
        "ratings: 240 interactions of 20 users, 30 items; no times: what is held out is drawn by",
        "test, 20 users, 380 items: hr@10_of_19 0.\\d+ .chance: 0.5263., ndcg@10_of_19 0.",
    ],
    "movielens": ["ratings: 240 ratings of 20 users, 30 items", "test, 2 users, 1\\d ratings: "],
    "reddit": [
        "texts: 200 texts of 20 users, 3 labels; 1 line left out: not UTF-8 .the first: line 3.;",
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
    ],
}


def write_ratings(path, *, num_users, spoiled=False):
    rows = [
        f"u{u},i{(u + 2 * i) % 30},{1 + (u * i) % 5}" for u in range(num_users) for i in range(12)
    ]
    if spoiled:
        rows[1] = "u0,i3,five"
    path.write_text("\n".join(["who,item,rating", *rows]) + "\n")


def write_texts(path, *, num_users):
    """Ten texts a user; one line more is no text, and one row has no label."""
    lines = [b"user,text,context"]
    for user in range(num_users):
        for number in range(10):
            label = (b"cats", b"dogs", b"owls")[(user + number // 5) % 3]
            lines.append(b"u%d,the %s sees no %d,%s" % (user, label, number, label))
    lines[2:2] = [b"u0,caf\xe9 is closed,cats", b"u1,the cat is,"]
    path.write_bytes(b"\n".join(lines) + b"\n")


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("binaries")
    write_ratings(folder / "ratings.csv", num_users=20)
    write_ratings(folder / "few_ratings.csv", num_users=9)
    write_ratings(folder / "bad.csv", num_users=20, spoiled=True)
    (folder / "all.csv").write_text("who,item\na,x\na,y\na,z\n")
    for name, num_users in (("texts", 20), ("few", 9), ("two", 2)):
        write_texts(folder / f"{name}.csv", num_users=num_users)
    (folder / "empty").mkdir()
    os.symlink(tiny_base.source, folder / "base")
    return folder


# What keeps a program from its user's home.
_HOMES = {"KERAS_HOME", "MPLCONFIGDIR", "TRANSFORMERS_CACHE", "HF_HOME"}
_HOMES |= {"XDG_CONFIG_HOME", "XDG_CACHE_HOME"}


def start(binary, *flags, cwd, python=(), **environment):
    return subprocess.Popen(
        [sys.executable, *python, "-m", f"experiments.{binary}", *flags],
        cwd=cwd,
        env={
            **{name: value for name, value in os.environ.items() if name not in _HOMES},
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("binary", BINARIES)
def test_help_and_mistakes_in_options_come_at_once(binary, tmp_path):
    """Without TensorFlow, whose import alone takes longer than the processor time allowed here."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = start(binary, "--help", cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (process.returncode, errors) == (0, "")
    assert f"python -m experiments.{binary}" in output and "--algorithm" in output
    assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime < 2.0

    process = start(binary, "--seed=-1", cwd=tmp_path, python=["-X", "importtime"])
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and output == ""
    assert errors.splitlines()[-1].startswith("error: --seed is -1; it must be")
    assert "fedpersonal.options" in errors
    assert not any(package in errors for package in ("tensorflow", "sklearn", "matplotlib"))


def test_mistakes_are_one_line_and_nothing_is_written(folder, run_commands):
    there = {path.relative_to(folder) for path in folder.rglob("*")}
    made = {(binary, name): own for binary in BINARIES for name, own in MISTAKES[binary].items()}
    commands = [[b, *_ALL, *SMALL[b], *flags] for (b, _), (flags, _) in made.items()]
    modules = ["fedpersonal.tasks.experiment", "fedpersonal.tasks.utterances.base_model"]
    outcomes = run_commands(commands, modules=modules, cwd=folder)
    for key, (_, complaint, status) in zip(made, outcomes):
        assert status == 2, (key, complaint)
        assert complaint.startswith("error: ") and complaint.count("\n") == 1, (key, complaint)
        assert made[key][1] in complaint, (key, complaint)
    # Texts that were read are kept, since they were not the mistake.
    new = {path.relative_to(folder).parts[0] for path in folder.rglob("*")}
    assert new - {path.parts[0] for path in there} <= {"cache", "frozen"}


@pytest.fixture(name="finished", scope="module")
def _finished(folder):
    """Runs each binary once, two at a time, and returns output and errors of each."""
    found = {}
    (folder / "home").mkdir()
    for pair in (BINARIES[:2], BINARIES[2:4], BINARIES[4:]):
        flags = {b: [*_ALL, *SMALL[b], f"--output_dir=out_{b}"] for b in pair}
        home = str(folder / "home")
        running = {b: start(b, *flags[b], cwd=folder, HOME=home) for b in pair}
        for binary, process in running.items():
            output, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors
            found[binary] = output, errors
    return found


@pytest.mark.parametrize("binary", BINARIES)
def test_a_binary_runs(finished, folder, binary):
    output, errors = finished[binary]
    assert "Traceback" not in errors and "Warning" not in errors, errors
    *lines, last = output.splitlines()
    assert len(lines) == len(SAID[binary])
    for line, expected in zip(lines, SAID[binary]):
        assert re.match(expected, line), line
    path = folder / f"out_{binary}"
    assert last.startswith("1 round in ") and last.endswith(str(path))
    config = json.loads((path / "config.json").read_text())
    assert config["options"]["clients_per_round"] == 4 and config["seed"] == 0
    assert json.loads((path / "summary.json").read_text())["rounds"] == 1


def test_nothing_is_written_to_the_home(finished, folder):
    assert not list((folder / "home").rglob("*"))


def test_what_holds_local_variables_is_its_owners_alone(finished, folder):
    own = [*folder.glob("out_*/model.npz"), *folder.glob("out_*/local_state.sqlite")]
    own += folder.glob("out_*/checkpoints/*")
    assert len(own) >= 6
    assert {path.name: path.stat().st_mode & 0o777 for path in own} == dict.fromkeys(
        [path.name for path in own], 0o600
    )


def test_damaged_folders_are_one_line(finished, folder, run_commands):
    """Of a run that goes on, and of one that generates."""

    def spoil(name, binary, write):
        path = shutil.copytree(folder / f"out_{binary}", folder / name)
        (path / ".lock").unlink()
        write(path)
        return path

    def replace(name, content):
        return lambda path: (path / name).write_bytes(content)

    more = [*_ALL, *SMALL["movielens"], "--total_rounds=2"]
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
    lost = ["--algorithm=fed_avg", "--client_learning_rate=1e9", "--server_optimizer=sgd"]
    lost += ["--total_rounds=12", "--embedding_stddev=1e5", "--output_dir=lost"]
    commands.append(["movielens", *more, *lost])
    said.append("Nothing was learned in rounds 1 to 10: every client's update was infinite")
    modules = ["fedpersonal.tasks.experiment", "fedpersonal.tasks.utterances.base_model"]
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


def test_a_run_goes_on_after_ctrl_c(folder, start_program, run_program):
    command = ("-m", "experiments.movielens", *_ALL, *SMALL["movielens"], "--output_dir=stopped")
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
