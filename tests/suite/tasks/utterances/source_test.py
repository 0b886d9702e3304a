"""Which utterances options mean, and which of them are kept."""

from __future__ import annotations

import importlib.util
import json
import pickle

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.tasks.utterances.data import split_utterances
from fedpersonal.suite.tasks.utterances.source import SOURCES, DialogueOptions, Dialogues
from fedpersonal.suite.tasks.utterances.task import TASK


def find(**options):
    options = DialogueOptions(**options)
    return Dialogues(*options.find(SOURCES), options)


def find_own(path, counts, *, kind="file", **options):
    """Writes a table with so many rows of each (user, context), and finds it."""
    lines = (
        json.dumps({"who": user, "where": context, "text": f"I am {user} here."})
        for (user, context), count in counts.items()
        for _ in range(count)
    )
    path.write_text("\n".join(lines))
    options = {"user_column": "who", "context_column": "where", **options}
    if kind == "file":
        return find(text_file=str(path), **options)
    return find(dataset=kind, data_dir=str(path.parent), **options)


def test_generated_dialogues_in_another_process():
    dialogues = pickle.loads(pickle.dumps(find()))
    assert dialogues == find() and dialogues.kind == find(dataset="generated").kind == "generated"
    assert dialogues.describe() == {
        "dataset": "generated_dialogues",
        "num_users": 14,
        "num_utterances": 6000,
        "num_contexts": 2,
    }
    assert dialogues.summary() == "generated_dialogues: 6,000 utterances of 14 users, 2 contexts"
    assert dialogues.other_texts().shape == (6000,)


def test_a_table_of_ones_own(tmp_path):
    counts = {("al", "x"): 6, ("bo", "x"): 5, ("cy", "y"): 4, ("di", "y"): 2}
    path = tmp_path / "own.jsonl"
    dialogues = find_own(path, counts, users_per_context=1)
    assert dialogues.describe() == {
        "dataset": "own",
        "num_users": 2,
        "num_utterances": 10,
        "num_contexts": 2,
        "users_per_context": 1,
        "min_utterances": 1,
        "min_context_utterances": 1,
        "min_tokens": 3,
    }
    expected = "own: 10 utterances of 2 users, 2 contexts; 7 rows of less frequent users"
    assert dialogues.summary() == expected
    assert dialogues.other_texts().tolist() == ["I am bo here."] * 5 + ["I am di here."] * 2
    everyone = find_own(path, counts)
    assert everyone.describe()["num_users"] == 4
    assert everyone.other_texts().size == 0
    assert find_own(path, counts, min_utterances=5).describe()["num_users"] == 2


def test_a_character_of_the_shows_has_one_name(tmp_path):
    counts = {("Sam", "x"): 2, ("sam  tarly", "x"): 2, ("Man", "x"): 3}
    path = tmp_path / "tv_shows.jsonl"
    dialogues = find_own(path, counts, kind="tv_shows", users_per_context=1)
    assert dialogues.utterances.client_ids.tolist() == ["Sam Tarly"]
    assert dialogues.describe()["num_utterances"] == 4
    assert dialogues.other_texts().tolist() == ["I am Man here."] * 3
    with pytest.raises(UserError, match="there is no context 'Friends', only x"):
        find_own(path, counts, kind="tv_shows").summary()


def test_the_papers_filter_of_reddit(tmp_path):
    counts = {("al", "x"): 101, ("al", "y"): 49, ("bo", "x"): 49, ("cy", "y"): 99, ("di", "z"): 149}
    path, options = tmp_path / "reddit_comments.jsonl", {"kind": "reddit"}
    with pytest.raises(UserError, match="min_utterances=50 .* min_context_utterances=150"):
        find_own(path, counts, **options).summary()
    counts.update({("bo", "z"): 1, ("di", "x"): 1})
    kept = find_own(path, counts, **options).describe()
    # x has 101 + 49 + 1, y 148, and z 150, until y goes, and nobody with it but cy.
    assert (kept["num_users"], kept["num_contexts"]) == (3, 2)
    less = find_own(path, counts, min_context_utterances=1, **options).describe()
    assert (less["num_users"], less["num_contexts"]) == (4, 3)


def test_tv_shows(real_data):
    dialogues = find(data_dir=str(real_data("tv_shows.jsonl.gz").parent))
    described = dialogues.describe()
    assert described["num_utterances"] == pytest.approx(92_162, rel=0.02)
    assert (described["num_users"], described["num_contexts"]) == (19, 2)
    assert described["users_per_context"] == {"Friends": 6, "Game of Thrones": 13}
    options = TASK.options(text_length=8, evaluate_on="unseen")
    data = split_utterances(dialogues.utterances, lambda texts: [[2]] * len(texts), options, end=1)
    assert data.context_names.tolist() == ["Friends", "Game of Thrones"]
    shows = {}
    parts = (data.train, data.validation.query, data.test.query)
    assert [part.num_clients for part in parts] == [13, 3, 3]
    for part in parts:
        for client, name in enumerate(part.client_ids):
            shows[name] = np.unique(part.client(client)[0]["context"]).tolist()
    assert {name for name, contexts in shows.items() if contexts == [0]} == {
        *("Chandler Bing", "Joey Tribbiani", "Monica Geller"),
        *("Phoebe Buffay", "Rachel Green", "Ross Geller"),
    }
    assert {name for name, contexts in shows.items() if contexts == [1]} == {
        *("Arya Stark", "Bran Stark", "Cersei Lannister", "Daenerys Targaryen", "Davos"),
        *("Jaime Lannister", "Jon Snow", "Jorah Mormont", "Petyr Baelish", "Sam Tarly"),
        *("Sansa Stark", "Theon Greyjoy", "Tyrion Lannister"),
    }
    assert dialogues.other_texts().size == pytest.approx(35_798, rel=0.02)


def test_without_transformers_there_is_a_line_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tv_shows needs .*pip install 'fedpersonal\[language\]'"):
        TASK.read(TASK.options(text_file="absent.csv"))


VECTORS = "who,b,a\nal,1,2\nbo,0.5,-3\nzo,9,9\n"


def with_vectors(tmp_path, table, name="vectors.csv", **options):
    path = tmp_path / name
    path.write_text(table)
    counts = {("al", "x"): 2, ("bo", "x"): 2, ("cy", "y"): 2}
    return find_own(tmp_path / "own.jsonl", counts, user_vectors=str(path), **options)


def test_vectors_stand_in_the_order_of_users_and_of_their_columns_names(tmp_path):
    dialogues = with_vectors(tmp_path, VECTORS + "cy,7,8\n")
    vectors = dialogues.vectors
    assert vectors.dtype == np.float32 and vectors.tolist() == [[2, 1], [-3, 0.5], [8, 7]]
    assert TASK.warnings(dialogues, dialogues.options) == []
    lacking = with_vectors(tmp_path, VECTORS, missing_vectors="zeros")
    assert lacking.vectors.dtype == np.float32
    assert lacking.vectors.tolist() == [[2, 1], [-3, 0.5], [0, 0]]
    (warning,) = TASK.warnings(lacking, lacking.options)
    assert warning.endswith("vectors.csv: 1 of 3 users have zeros for a vector.")
    assert find().vectors is None
    other = with_vectors(tmp_path, VECTORS + "cy,7,8.5\n")
    assert other.utterances.fingerprint() == dialogues.utterances.fingerprint()
    assert other.fingerprint() != dialogues.fingerprint()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (VECTORS, {}, "has no vector of 1 of 3 users: cy; --missing_vectors=zeros gives"),
        ("who,a\nzo,1\n", {"missing_vectors": "zeros"}, "of 3 of 3 users: al, bo, cy$"),
        (VECTORS.replace("who", "user"), {}, "no column 'who'; .*--user_column"),
        (VECTORS.replace("-3", "x"), {}, "vectors.csv, line 3: 'a' is not a finite number: 'x'"),
        (VECTORS + "al,1,1\n", {}, "vectors.csv, line 5: 'who' has two vectors: 'al'"),
        ("who\nal\n", {}, "no column besides 'who'"),
        ('{"who": "al", "a": 1}', {"name": "v.jsonl"}, "besides 'who'; give a .csv or .tsv"),
        ("", {"name": "v.npz"}, "must end in .csv"),
    ],
)
def test_tables_of_vectors_that_are_refused(tmp_path, table, options, message):
    dialogues = with_vectors(tmp_path, table, **options)
    with pytest.raises(UserError, match=message):
        TASK.warnings(dialogues, dialogues.options)
