"""Which utterances options mean, and that they can be handed to another process."""

from __future__ import annotations

import json
import os
import pathlib
import pickle

import numpy as np
import pytest
from fedpersonal.tasks.utterances.choice import SOURCES, UtteranceChoice

from fedpersonal.data.sources import find_source
from fedpersonal.errors import UserError

_DATA_DIR = pathlib.Path(
    os.environ.get("FEDPERSONAL_DATA_DIR") or pathlib.Path(__file__).parents[3] / "../shared/data"
)
_SHOWS = _DATA_DIR / "tv_shows.jsonl.gz"
_needs_shows = pytest.mark.skipif(
    not _SHOWS.is_file(), reason=f"needs FEDPERSONAL_DATA_DIR with {_SHOWS.name}"
)

_TOKENS = {"length": 8, "padding": 0, "end": 1}


def _encode(texts):
    return [[len(word) + 2 for word in text.split()] for text in texts]


def _write(path, counts):
    """Writes so many rows of each (user, context)."""
    lines = (
        json.dumps({"who": user, "where": context, "text": f"I am {user} here."})
        for (user, context), count in counts.items()
        for _ in range(count)
    )
    path.write_text("\n".join(lines))
    return str(path)


def test_generated_dialogues_in_another_process():
    choice = pickle.loads(pickle.dumps(UtteranceChoice("generated")))
    assert choice == UtteranceChoice("generated") and hash(choice)
    known = choice.load(_encode, withheld=False, **_TOKENS, seed=0)
    assert (known.num_users, known.num_contexts, known.length) == (14, 2, 8)
    assert not known.withheld
    withheld = choice.load(_encode, withheld=True, **_TOKENS, seed=0)
    assert (withheld.num_users, withheld.withheld) == (10, True)
    assert choice.describe() == {
        "dataset": "generated_dialogues",
        "num_users": 14,
        "num_utterances": 6000,
        "num_contexts": 2,
    }
    assert choice.summary() == "generated_dialogues: 6,000 utterances of 14 users, 2 contexts"
    assert choice.other_texts().shape == (6000,)
    with pytest.raises(UserError, match="and the model only 8 positions"):
        choice.load(_encode, withheld=False, too_long="error", **_TOKENS, seed=0)


def test_a_table_of_ones_own(tmp_path):
    counts = {("al", "x"): 6, ("bo", "x"): 5, ("cy", "y"): 4, ("di", "y"): 2}
    columns = {"user_column": "who", "context_column": "where"}
    path = _write(tmp_path / "own.jsonl", counts)
    choice = UtteranceChoice("file", path, **columns, users_per_context=(("y", 1), ("x", 1)))
    assert choice.describe() == {
        "dataset": "own",
        "num_users": 2,
        "num_utterances": 10,
        "num_contexts": 2,
        "users_per_context": {"y": 1, "x": 1},
        "min_utterances": 1,
        "min_context_utterances": 1,
        "min_tokens": 3,
    }
    expected = "own: 10 utterances of 2 users, 2 contexts; 7 rows of less frequent users"
    assert choice.summary() == expected
    assert choice.other_texts().tolist() == ["I am bo here."] * 5 + ["I am di here."] * 2
    everyone = UtteranceChoice("file", path, **columns)
    assert everyone.describe()["num_users"] == 4
    assert everyone.other_texts().size == 0
    assert UtteranceChoice("file", path, **columns, min_utterances=5).describe()["num_users"] == 2


def test_a_character_of_the_shows_has_one_name(tmp_path):
    counts = {("Sam", "x"): 2, ("sam  tarly", "x"): 2, ("Man", "x"): 3, ("Sam", "y"): 1}
    path = _write(tmp_path / "own.jsonl", counts)
    columns = {"user_column": "who", "context_column": "where"}
    choice = UtteranceChoice("tv_shows", path, **columns, users_per_context=(("x", 1),))
    data = choice.load(_encode, withheld=False, **_TOKENS, seed=0)
    assert data.train.client_ids.tolist() == ["Sam Tarly"]
    assert choice.describe()["num_utterances"] == 4
    assert choice.other_texts().tolist() == ["I am Man here."] * 3
    with pytest.raises(UserError, match="there is no context 'Friends', only such as x, y"):
        UtteranceChoice("tv_shows", path, **columns).summary()


def test_the_papers_filter_of_reddit(tmp_path):
    counts = {("al", "x"): 101, ("al", "y"): 49, ("bo", "x"): 49, ("cy", "y"): 99, ("di", "z"): 149}
    columns = {"user_column": "who", "context_column": "where"}
    path = _write(tmp_path / "own.jsonl", counts)
    with pytest.raises(UserError, match="min_utterances=50 .* min_context_utterances=150"):
        UtteranceChoice("reddit", path, **columns).summary()
    path = _write(tmp_path / "own.jsonl", {**counts, ("bo", "z"): 1, ("di", "x"): 1})
    kept = UtteranceChoice("reddit", path, **columns, time_column="time").describe()
    # x has 101 + 49 + 1, y 148, and z 150, until y goes, and nobody with it but cy.
    assert (kept["num_users"], kept["num_contexts"]) == (3, 2)
    less = UtteranceChoice("reddit", path, **columns, min_context_utterances=1).describe()
    assert (less["num_users"], less["num_contexts"]) == (4, 3)


def test_sources(tmp_path):
    """The finder has its own test: these are the shows and comments that it is told of."""
    for dataset, missing in (("auto", "tv_shows"), ("tv_shows", "tv_shows"), ("reddit", "reddit")):
        with pytest.raises(UserError, match=f"has no {missing}.*jsonl.gz; name an own table"):
            find_source(SOURCES, dataset=dataset, file=None, data_dir=str(tmp_path))


@_needs_shows
def test_tv_shows():
    source, path = find_source(SOURCES, dataset="auto", file=None, data_dir=str(_DATA_DIR))
    choice = UtteranceChoice(source, path)
    described = choice.describe()
    assert described["num_utterances"] == pytest.approx(92_162, rel=0.02)
    assert (described["num_users"], described["num_contexts"]) == (19, 2)
    assert described["users_per_context"] == {"Friends": 6, "Game of Thrones": 13}
    data = choice.load(_encode, withheld=True, **_TOKENS, seed=0)
    assert data.context_names.tolist() == ["Friends", "Game of Thrones"]
    shows = {}
    parts = (data.train, data.validation, data.test)
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
    assert choice.other_texts().size == pytest.approx(35_798, rel=0.02)
