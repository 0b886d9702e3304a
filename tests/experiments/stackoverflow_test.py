"""The binary of next word prediction, and what it says of a user's mistakes: one line each."""

from __future__ import annotations

import json

import pytest

_SMALL = {
    "vocab_size": 8,
    "num_oov_buckets": 2,
    "sequence_length": 5,
    "total_rounds": 1,
    "clients_per_round": 4,
    "client_batch_size": 2,
    "embedding_dim": 3,
    "lstm_units": 4,
    "projection_dim": 3,
    "cache_dir": "cache",
    "output_dir": "out",
}
_TABLE = "--text_file=texts.csv"
_MADE = {
    "column": [_TABLE, "--text_column=body"],
    "vocabulary": [_TABLE, "--vocab_size=500"],
    "no buckets": [_TABLE, "--num_oov_buckets=0"],
    "no file": ["--text_file=absent.csv"],
    "two sources": [_TABLE, "--dataset=generated"],
    "empty folder": ["--data_dir=empty"],
    "no folder": ["--data_dir=nowhere"],
    "few users": ["--text_file=few.csv"],
    "few sentences": [_TABLE, "--min_sentences=7"],
    "limits": [_TABLE, "--min_sentences=5", "--max_sentences=4"],
    "method": [_TABLE, "--algorithm=fed_prox"],
    "rate": [_TABLE, "--client_learning_rate=0"],
}
_SAID = {
    "column": ["texts.csv", "'body'", "user, text"],
    "vocabulary": ["vocab_size=500 is more than the", "distinct words"],
    "no buckets": ["num_oov_buckets must be a whole number >= 1"],
    "no file": ["absent.csv"],
    "two sources": ["--text_file and --dataset=generated exclude each other."],
    "empty folder": ["empty has no stackoverflow.sqlite or stack_exchange.jsonl.gz"],
    "no folder": ["nowhere"],
    "few users": ["few has 9 users", "at least 10", "Lower --min_sentences?"],
    "few sentences": ["no user has min_sentences=7 sentences; the most that one has is 6"],
    "limits": ["max_sentences must be a whole number >= 5, got 4"],
    "method": ["--algorithm=fed_prox", "fed_recon_finetuning"],
    "rate": ["--client_learning_rate=0", "a finite number above 0 is needed"],
}


def write_texts(path, *, num_users):
    """Six sentences a user; two lines are no text."""
    lines = [b"user,text"]
    for user in range(num_users):
        texts = b" ".join(b"the %s is user %d ." % (word, user % 3) for word in (b"cat", b"dog"))
        lines += [b'u%d,"%s"' % (user, texts)] * 3
    lines[2:2] = [b"u0,caf\xe9 is closed", b"u\xff,the cat"]
    path.write_bytes(b"\n".join(lines) + b"\n")


@pytest.fixture(name="folder")
def _folder(tmp_path):
    write_texts(tmp_path / "texts.csv", num_users=20)
    write_texts(tmp_path / "few.csv", num_users=9)
    (tmp_path / "empty").mkdir()
    return tmp_path


def flags(**values):
    return [f"--{name}={value}" for name, value in {**_SMALL, **values}.items()]


def test_mistakes_are_one_line_and_nothing_is_written(folder, run_commands):
    commands = [["stackoverflow", *flags(), *arguments] for arguments in _MADE.values()]
    modules = ["fedpersonal.tasks.next_word.experiment"]
    found = dict(zip(_MADE, run_commands(commands, modules=modules, cwd=folder)))
    assert found.keys() == _SAID.keys()
    for name, (_, complaint, status) in found.items():
        assert status == 2, (name, complaint)
        assert complaint.startswith("error: ") and complaint.count("\n") == 1, (name, complaint)
        for part in _SAID[name]:
            assert part in complaint, (name, complaint)
    # Sentences that were read are kept, since they were not the mistake.
    assert {path.name for path in folder.iterdir()} - {"cache"} == {
        "texts.csv",
        "few.csv",
        "empty",
    }
    assert not list((folder / "empty").iterdir())


def test_an_own_table_of_texts(folder, run_program):
    """Lines that are not UTF-8 are left out, and said to be."""
    command = ("-m", "experiments.stackoverflow", _TABLE, *flags())
    output, errors, status = run_program(*command, cwd=folder)
    assert status == 0, errors
    assert "Traceback" not in errors and "Warning" not in errors
    first, test, last = output.splitlines()
    assert first == "texts: 120 sentences of 20 users, 720 words; 2 lines left out: not UTF-8"
    assert test.startswith("test, 2 users, ")
    assert " before and " in test and test.endswith(" after personalisation")
    assert last.startswith("1 rounds in ") and last.endswith(str(folder / "out"))
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert (summary["dataset"], summary["algorithm"]) == ("texts", "fed_recon")
    config = json.loads((folder / "out" / "config.json").read_text())["options"]
    assert config["text_file"] == "texts.csv" and config["lstm_units"] == 4
