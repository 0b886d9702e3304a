"""Tables and sizes with which a command of each task runs in no time."""

from __future__ import annotations

TASKS = ("digits", "interactions", "movielens", "reddit", "stackoverflow", "tv_shows")
ALL = "--output_dir=out --total_rounds=1 --clients_per_round=4".split()
FLAGS = {
    "digits": ["--num_clients=20", "--hidden_dim=3"],
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


def write_ratings(path, *, num_users, spoiled=False):
    """Writes twelve ratings a user; a spoiled table has one that is no number."""
    rows = [
        f"u{u},i{(u + 2 * i) % 30},{1 + (u * i) % 5}" for u in range(num_users) for i in range(12)
    ]
    if spoiled:
        rows[1] = "u0,i3,five"
    path.write_text("\n".join(["who,item,rating", *rows]) + "\n")


def write_texts(path, *, num_users):
    """Writes ten texts a user; one line more is no text, and one row has no label."""
    lines = [b"user,text,context"]
    for user in range(num_users):
        for number in range(10):
            label = (b"cats", b"dogs", b"owls")[(user + number // 5) % 3]
            lines.append(b"u%d,the %s sees no %d,%s" % (user, label, number, label))
    lines[2:2] = [b"u0,caf\xe9 is closed,cats", b"u1,the cat is,"]
    path.write_bytes(b"\n".join(lines) + b"\n")
