"""Some users of a table train as if the table had no others."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.suite.tasks.find import all_tasks
from tests.suite import small

TABLES = {
    "movielens": {"ratings_file": "ratings.csv", "user_column": "who"},
    "interactions": {"interactions_file": "ratings.csv", "user_column": "who"},
    "stackoverflow": {"text_file": "texts.csv", "vocab_size": 8, "num_oov_buckets": 2},
    "reddit": {"text_file": "texts.csv", "num_labels": 3, "min_texts": 5},
    "tv_shows": {"text_file": "texts.csv"},
}
CHOSEN = [f"u{i}" for i in range(19, 2, -1)]


@pytest.fixture(name="read")
def _read(tmp_path, monkeypatch):
    """Reads and splits a task's data; of utterances, which need a base model, it reads them."""
    monkeypatch.chdir(tmp_path)
    small.write_ratings(tmp_path / "ratings.csv", num_users=20)
    with open(tmp_path / "ratings.csv", "a") as table:
        table.write("u0,an item of others,3\n")
    small.write_texts(tmp_path / "texts.csv", num_users=20)
    (tmp_path / "users.txt").write_text("\n".join(CHOSEN))

    def read(name, **options):
        task = all_tasks()[name]
        options = task.with_defaults(task.options(**TABLES[name], **options))
        source = task.read(options)
        if name == "tv_shows":
            return source.fingerprint(), source.utterances.client_ids.tolist()
        data = task.split(source, options)
        return data.train.fingerprint(), sorted(data.train.client_ids)

    return read


@pytest.mark.parametrize("name", TABLES)
def test_users_of_a_file_are_as_a_table_of_theirs(name, read, tmp_path):
    chosen = read(name, users_file="users.txt")
    for path in tmp_path.glob("*.csv"):
        header, *rows = path.read_bytes().splitlines(keepends=True)
        own = [row for row in rows if row.split(b",")[0].decode() in CHOSEN]
        assert len(own) < len(rows)
        path.write_bytes(header + b"".join(own))
    assert chosen == read(name)


def test_a_base_model_is_of_the_users_who_are_left(read):
    task = all_tasks()["tv_shows"]
    told = [
        task.read(task.options(**TABLES["tv_shows"], num_users=10, seed=seed)).describe()
        for seed in (0, 0, 1)
    ]
    # What names a base model's folder; both draws have as many utterances.
    assert told[0] == told[1] != told[2]
    assert told[0]["num_utterances"] == told[2]["num_utterances"]


def test_a_draw_follows_from_the_seed_and_has_each_smaller_one(read):
    few, more = (read("tv_shows", num_users=number)[1] for number in (10, 14))
    assert len(few) == 10 and set(few) < set(more)
    assert few == read("tv_shows", num_users=10)[1] != read("tv_shows", num_users=10, seed=1)[1]
    drawn = [read("tv_shows", num_users=3, seed=seed)[1] for seed in range(60)]
    times = np.unique(np.concatenate(drawn), return_counts=True)[1]
    assert len(times) == 20 and times.max() < 25  # 9 on average, anybody.
