"""The binaries of FedPerC, and what they say of a user's mistakes: one line each."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

_TABLE = "--text_file=lines.csv"
_SHOWS = {
    "no file": ["--text_file=absent.csv"],
    "two sources": [_TABLE, "--dataset=generated"],
    "empty folder": ["--data_dir=empty"],
    "column": [_TABLE, "--context_column=show"],
    "few utterances": [_TABLE, "--min_utterances=100"],
    "method": [_TABLE, "--algorithm=fed_avg"],
    "short": [_TABLE, "--text_length=3"],
    "no base": [_TABLE, "--base_model=empty"],
    "file as base": [_TABLE, "--base_model=lines.csv"],
    "few texts": [_TABLE],
    "long": [_TABLE, "--base_model=base", "--text_length=4", "--too_long=error"],
    "positions": [_TABLE, "--base_model=base", "--text_length=25"],
    "few users": ["--text_file=two.csv", "--base_model=base", "--split=withheld"],
    "client's rate": [_TABLE, "--base_model=base", "--client_learning_rate=0"],
    "fine-tuning rate": [_TABLE, "--base_model=base", "--finetuning_learning_rate=-1"],
}
_USER, _CONTEXT = "--user=ann", "--context=north"
_GENERATE = {
    "no user": [_CONTEXT],
    "no run": ["--run_dir=empty", _USER, _CONTEXT],
    "other run": ["--run_dir=other", _USER, _CONTEXT],
    "no weights": ["--run_dir=unfinished", _USER, _CONTEXT],
    "no embeddings": ["--run_dir=meta", _USER, _CONTEXT],
    "other method": ["--run_dir=split", _USER, _CONTEXT],
    "base is gone": ["--run_dir=gone", _USER, _CONTEXT],
    "unknown user": ["--user=an", _CONTEXT],
    "unknown context": [_USER, "--context=northern"],
    "prompt": [_USER, _CONTEXT, "--prompt=the man of the sea", "--max_tokens=4"],
}
_SAID = {
    "no file": ["absent.csv"],
    "two sources": ["--text_file and --dataset=generated exclude each other."],
    "empty folder": ["empty has no tv_shows.jsonl.gz", "--text_file"],
    "column": ["lines.csv", "'show'", "user, text, context"],
    "few utterances": ["lines"],
    "method": ["--algorithm=fed_avg", "split_learning", "meta_learning"],
    "short": ["--text_length=3"],
    "no base": ["empty: there is no config.json"],
    "file as base": ["lines.csv: a base model is a folder, this is a file"],
    "few texts": ["at least 2 texts that are not blank are needed, got 0"],
    "long": ["tokens", "positions"],
    "positions": ["--text_length=25", "24"],
    "few users": ["two has 2 users; at least 3"],
    "client's rate": ["--client_learning_rate=0", "a finite number above 0 is needed"],
    "fine-tuning rate": ["--finetuning_learning_rate=-1"],
    "no user": ["--user"],
    "no run": ["empty is no run of experiments.tv_shows that has ended"],
    "other run": ["other is no run of experiments.tv_shows that has ended", "base_model"],
    "no weights": ["trained.npz: no such file; --run_dir must be a run that has ended"],
    "no embeddings": ["users of this run keep no embedding; --algorithm=fedperc does"],
    "other method": ["split is a run of split_learning; only fedperc can generate"],
    "base is gone": ["gone/base"],
    "unknown user": ["--user='an' is unknown; did you mean 'Ann'"],
    "unknown context": ["--context='northern' is unknown; did you mean 'North'"],
    "prompt": ["--prompt has", "tokens; at most 3 leave room for more"],
}


def write_run(folder, *, summary, **columns):
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary))
    if columns:
        np.savez(folder / "trained.npz", **columns)


@pytest.fixture(name="folder")
def _folder(tmp_path, tiny_base):
    for name, num_users in (("lines", 6), ("two", 2)):
        rows = [
            f"u{user},the man of the sea has a red boat {i},{('north', 'south')[user % 2]}"
            for user in range(num_users)
            for i in range(8)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,text,context", *rows]) + "\n")
    (tmp_path / "empty").mkdir()
    os.symlink(tiny_base.source, tmp_path / "base")
    random = np.random.default_rng(1)
    context = random.normal(size=[2, 8]).astype(np.float32)
    personal = random.normal(size=[3, 1, 8]).astype(np.float32)
    shared = {
        "global/language_model/context_embedding/embeddings": context,
        "contexts": np.array(["North", "South"]),
    }
    own = {
        "local/language_model/personal_embedding/embeddings": personal,
        "clients": np.array(["Ann", "Bob", "Cleo"]),
        "known": np.array([True, False, True]),
    }
    both = {**shared, **own}
    summary = {"base_model": "base", "algorithm": "fedperc"}
    (tmp_path / "results").mkdir()
    write_run(tmp_path / "results" / "tv_shows", summary=summary, **both)
    write_run(tmp_path / "other", summary={"algorithm": "fed_avg"})
    write_run(tmp_path / "unfinished", summary=summary)
    write_run(tmp_path / "meta", summary={**summary, "algorithm": "meta_learning"}, **shared)
    write_run(tmp_path / "split", summary={**summary, "algorithm": "split_learning"}, **both)
    write_run(tmp_path / "gone", summary={**summary, "base_model": "gone/base"}, **both)
    return tmp_path


def test_mistakes_are_one_line_and_texts_are_printed(folder, run_commands):
    there = {path.relative_to(folder) for path in folder.rglob("*")}
    commands = {
        **{name: ["tv_shows", "--output_dir=out", *made] for name, made in _SHOWS.items()},
        **{name: ["generate", *made] for name, made in _GENERATE.items()},
        "texts": ["generate", _USER, _CONTEXT, "--prompt=the", "--num_texts=2"],
        "no data": ["tv_shows", "--base_model=empty"],
    }
    modules = ["fedpersonal.tasks.utterances.generation", "fedpersonal.tasks.utterances.experiment"]
    outcomes = run_commands(list(commands.values()), modules=modules, cwd=folder)
    found = dict(zip(commands, outcomes))
    output, errors, status = found.pop("texts")
    assert (status, errors) == (0, "")
    first, *texts = output.splitlines()
    assert first == "Ann in North:"
    assert len(texts) >= 2 and texts[0].startswith("  the")
    # Without data, dialogues are generated: only the base model that is named is not there.
    output, errors, status = found.pop("no data")
    assert output.startswith("generated") and status == 2, errors
    assert found.keys() == _SAID.keys()
    for name, (_, complaint, status) in found.items():
        assert status == 2, (name, complaint)
        assert complaint.splitlines()[-1].startswith("error: "), (name, complaint)
        assert complaint.count("\n") == 1 or name == "few texts", (name, complaint)
        for part in _SAID[name]:
            assert part in complaint, (name, complaint)
    new = {path.relative_to(folder) for path in folder.rglob("*")} - there
    assert not [path for path in new if path.parts[0] != "results"], new
    assert not (folder / "results" / "base_models" / "frozen").exists()
