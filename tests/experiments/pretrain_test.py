"""The binary that makes a base model, and what it says of a user's mistakes: one line each."""

from __future__ import annotations

import json

import pytest

_SMALL = {
    "text_file": "lines.csv",
    "vocab_size": 270,
    "num_layers": 1,
    "num_heads": 2,
    "dim": 16,
    "positions": 12,
    "steps": 3,
    "batch_size": 8,
    "output_dir": "models/base",
}


def flags_of(changes):
    """Returns the flags of a small model, with some changed; None leaves a flag out."""
    values = {**_SMALL, **changes}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


@pytest.fixture(name="folder")
def _folder(tmp_path):
    lines = ["user,text"] + [f"u{i % 3},the cat no {i}" for i in range(30)] + ["u0, "]
    (tmp_path / "lines.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "more.jsonl").write_text('{"text": "a dog", "user": "u3"}\n' * 4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    return tmp_path


@pytest.fixture(name="run")
def _run(folder, run_program):
    """Runs the program with some flags changed."""

    def run(*more, **changes):
        return run_program("-m", "experiments.pretrain", *flags_of(changes), *more, cwd=folder)

    return run


def test_a_model_is_made_once(folder, run):
    more = ["--text_file=more.jsonl", "--leave_out_users=u1"]
    output, errors, status = run(*more)
    assert status == 0, errors
    assert "Traceback" not in errors and "Warning" not in errors
    assert [line.split(",")[0] for line in errors.splitlines()] == [
        "training a tokenizer and encoding 24 texts",
        *(f"step {step}/3" for step in (1, 2, 3)),
    ]
    first, second, perplexity, last = output.splitlines()
    assert first == "lines.csv: 20 texts; 1 rows with an empty 'text'; 10 rows of users left out"
    assert second == "more.jsonl: 4 texts"
    assert perplexity.startswith("1 held-out texts: perplexity per token 2")
    assert perplexity.endswith(" after training") and " before and " in perplexity
    assert last.startswith("3 steps in ") and last.endswith("; the base model is in models/base")

    base = folder / "models" / "base"
    notes = json.loads((base / "pretraining.json").read_text())
    assert notes["settings"]["text_file"] == ["lines.csv", "more.jsonl"]
    assert notes["settings"]["leave_out_users"] == ["u1"] and notes["settings"]["dim"] == 16
    assert notes["report"]["num_texts"] == 23 and notes["report"]["steps"] == 3
    assert json.loads((base / "config.json").read_text())["n_positions"] == 12
    files = {path.name: path.stat().st_mtime_ns for path in base.iterdir()}
    assert {"tf_model.h5", "tokenizer.json", "vocab.json", "merges.txt"} <= set(files)

    output, errors, status = run(*more)
    assert (output, errors, status) == ("The base model is in models/base already.\n", "", 0)
    output, errors, status = run(*more, steps=4)
    assert (output, status) == ("", 2)
    assert errors == (
        "error: models/base holds a run with other settings: steps was 3 and is now 4. "
        "Restore them or give another folder.\n"
    )
    assert {path.name: path.stat().st_mtime_ns for path in base.iterdir()} == files
    assert [path.name for path in base.parent.iterdir()] == ["base"]


MISTAKES = [
    ({"text_file": None}, "--text_file: name at least one table of texts."),
    ({"text_file": "absent.csv"}, "absent.csv: no such file"),
    (
        {"text_column": "body"},
        "there is no column 'body'; the columns are user, text; say by --text_col",
    ),
    ({"leave_out_users": "u7"}, "--leave_out_users: no text is of 'u7'."),
    ({"output_dir": "full"}, "full holds something else than a base model of this program"),
    ({"output_dir": "lines.csv"}, "lines.csv"),
    ({"output_dir": "lines.csv/base"}, "lines.csv"),
    ({"learning_rate": "0"}, "learning_rate must be a finite number > 0, got 0.0"),
    ({"dim": 15}, "dim=15 is not a multiple of num_heads=2"),
]


def test_mistakes_are_one_line_and_nothing_is_written(folder, run_commands):
    before = sorted(folder.rglob("*"))
    commands = [["pretrain", *flags_of(changes)] for changes, _ in MISTAKES]
    modules = ["fedpersonal.models.pretraining"]
    outcomes = run_commands(commands, modules=modules, cwd=folder)
    for (changes, message), (_, errors, status) in zip(MISTAKES, outcomes):
        assert status == 2, (changes, errors)
        assert errors.startswith("error: ") and errors.count("\n") == 1, (changes, errors)
        assert message in errors, (changes, errors)
    assert [path for path in sorted(folder.rglob("*")) if path.name != "models"] == before
