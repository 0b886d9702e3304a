"""The binary of document classification, and what it says of a user's mistakes: one line each."""

from __future__ import annotations

import json
import signal
import time

import pytest

_SMALL = {
    "text_length": 8,
    "num_labels": 3,
    "min_comments": 5,
    "total_rounds": 1,
    "clients_per_round": 4,
    "client_batch_size": 4,
    "character_dim": 3,
    "user_dim": 3,
    "lstm_units": 4,
    "hidden_units": 5,
    "output_dir": "out",
}
_TABLE = "--text_file=comments.csv"
_TABLE3 = ["--target=table3", "--seeds=1", "--output_dir=out"]
_MADE = {
    "column": [_TABLE, "--label_column=subreddit"],
    "one label": [_TABLE, "--num_labels=1"],
    "no file": ["--text_file=absent.csv"],
    "two sources": [_TABLE, "--dataset=generated"],
    "empty folder": ["--data_dir=empty"],
    "few users": ["--text_file=few.csv"],
    "few comments": [_TABLE, "--min_comments=11"],
    "limits": [_TABLE, "--min_comments=5", "--max_comments=4"],
    "not binary": [_TABLE, "--num_labels=0"],
    "withheld": [_TABLE, "--withheld_users=2"],
    "method": [_TABLE, "--algorithm=fed_recon"],
    "client's rate": [_TABLE, "--client_learning_rate=0"],
    "server's rate": [_TABLE, "--server_learning_rate=0"],
    "rebuilding's rate": [_TABLE, "--reconstruction_learning_rate=0"],
    "private rate": [_TABLE, "--local_learning_rate=-1"],
    "other task": ["reproduce", *_TABLE3, "--dataset=stack_overflow"],
    "row": ["reproduce", *_TABLE3, _TABLE, "--num_labels=3", "--min_comments=5", "--rows=furl"],
}
_SAID = {
    "column": ["comments.csv", "'subreddit'", "user, text, context"],
    "one label": ["num_labels must be a whole number >= 2, got 1"],
    "no file": ["absent.csv"],
    "two sources": ["--text_file and --dataset=generated exclude each other."],
    "empty folder": ["empty has no reddit_comments.jsonl.gz", "--text_file"],
    "few users": ["few has 9 users; at least 10 are needed"],
    "few comments": ["no user has min_comments=11 texts of these labels; the most", "is 10"],
    "limits": ["max_comments must be a whole number >= 5, got 4"],
    "not binary": ["labels must be 0 or 1, got such as 'cats', 'dogs', 'owls'"],
    "withheld": ["withheld_users must be in [0, 0.9], got 2.0"],
    "method": ["--algorithm=fed_recon", "centralized_personalized", "lg_fed_avg"],
    "client's rate": ["--client_learning_rate=0", "a finite number above 0 is needed"],
    "server's rate": ["--server_learning_rate=0", "a finite number above 0 is needed"],
    "rebuilding's rate": ["--reconstruction_learning_rate=0", "a finite number above 0 is needed"],
    "private rate": ["--local_learning_rate=-1"],
    "other task": ["--dataset=stack_overflow has no labels; these have: auto, generated"],
    "row": ["--rows: 'furl' is no row of table 3; these are: Global Server; "],
}


def write_comments(path, *, num_users):
    """Ten comments a user; one line more is no text, and one row has no label."""
    lines = [b"user,text,context"]
    for user in range(num_users):
        for number in range(10):
            label = (b"cats", b"dogs", b"owls")[(user + number // 5) % 3]
            lines.append(b"u%d,the %s no %d,%s" % (user, label, number, label))
    lines[2:2] = [b"u0,caf\xe9 is closed,cats", b"u1,the cat,"]
    path.write_bytes(b"\n".join(lines) + b"\n")


@pytest.fixture(name="folder")
def _folder(tmp_path):
    write_comments(tmp_path / "comments.csv", num_users=20)
    write_comments(tmp_path / "few.csv", num_users=9)
    (tmp_path / "empty").mkdir()
    return tmp_path


def flags(**values):
    return [f"--{name}={value}" for name, value in {**_SMALL, **values}.items()]


def test_mistakes_are_one_line_and_nothing_is_written(folder, run_commands):
    commands = [
        made if made[0] == "reproduce" else ["reddit", *flags(), *made] for made in _MADE.values()
    ]
    modules = ["fedpersonal.tasks.documents.experiment"]
    found = dict(zip(_MADE, run_commands(commands, modules=modules, cwd=folder)))
    assert found.keys() == _SAID.keys()
    for name, (_, complaint, status) in found.items():
        assert status == 2, (name, complaint)
        assert complaint.startswith("error: ") and complaint.count("\n") == 1, (name, complaint)
        for part in _SAID[name]:
            assert part in complaint, (name, complaint)
    assert {path.name for path in folder.iterdir()} == {"comments.csv", "few.csv", "empty"}
    assert not list((folder / "empty").iterdir())


def rounds_of(folder):
    """The rounds that are written down."""
    path = folder / "metrics.csv"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split(",")[0]) for line in lines[1:]]


def test_an_own_table_of_comments_goes_on_after_ctrl_c(folder, start_program, run_program):
    """What cannot be read is left out, and said to be."""
    command = ("-m", "experiments.reddit", _TABLE)
    with start_program(*command, *flags(total_rounds=1_000_000), cwd=folder) as process:
        deadline = time.monotonic() + 600
        while not rounds_of(folder / "out"):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    done = rounds_of(folder / "out")
    assert not (folder / "out" / "summary.json").exists()

    rounds = len(done) + 1
    output, errors, status = run_program(*command, *flags(total_rounds=rounds), cwd=folder)
    assert status == 0, errors
    assert "Traceback" not in errors and "Warning" not in errors
    first, test, withheld, last = output.splitlines()
    assert first == (
        "comments: 200 texts of 20 users, 3 labels; 1 lines left out: not UTF-8; 1 rows with an "
        "empty 'context'"
    )
    assert test.startswith("test, 18 users, 18 texts: accuracy 0.")
    assert "; always a user's most frequent label: accuracy 0." in test
    assert withheld.startswith("2 users who never took part: accuracy ")
    assert withheld.endswith(" after they rebuild what they lack")
    assert last.startswith(f"{rounds} rounds in ") and last.endswith(str(folder / "out"))
    assert rounds_of(folder / "out") == list(range(1, rounds + 1))
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert (summary["dataset"], summary["algorithm"]) == ("comments", "furl")
    config = json.loads((folder / "out" / "config.json").read_text())["options"]
    assert config["text_file"] == "comments.csv" and config["hidden_units"] == [5]
