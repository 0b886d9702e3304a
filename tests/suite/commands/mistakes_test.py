"""Users' mistakes, a row each: one line, status 2, nothing written, TensorFlow not imported.

A mistake is tried where it is found: those of all tasks by one command.
"""

from __future__ import annotations

import os

import pytest

from tests.suite import small

_ITSELF = "--flagfile=itself.flags"
_AUDITED = "--task=movielens --ratings_file=ratings.csv --user_column=who --method=local_only"
_AT_LEAST_1 = "it must be a whole number at least 1"

FLAGS = [
    # Flags.
    ("movielens", "--sed=1", "--sed is no flag; did you mean --seed?"),
    ("movielens", "--zzz", "--zzz is no flag."),
    ("movielens", "more", "unexpected argument 'more'; flags are written --name=value."),
    ("movielens", "--seed=x", "--seed is x; it must be a whole number at least 0 and at most"),
    ("movielens", "--seed=1000000000000", "--seed is 1000000000000; it must be a whole number"),
    ("movielens", "--total_rounds=0", f"--total_rounds is 0; {_AT_LEAST_1}"),
    ("movielens", "--client_learning_rate=0", "--client_learning_rate is 0.0; it must be a finite"),
    ("movielens", "--ridge_l2=nan", "--ridge_l2 is nan; it must be a finite number"),
    ("movielens", "--embedding_stddev=inf", "--embedding_stddev is inf; it must be a finite"),
    ("movielens", "--method=fed", "--method is fed; it must be one of "),
    ("movielens", "--method=fedavg", "; did you mean fed_avg?"),
    (
        *("movielens", "--method=lg_fed_avg"),
        "--method is lg_fed_avg; the method does not fit the model of movielens, which has no "
        "layers for it of the kind body. --help lists those that fit.",
    ),
    ("movielens", "--decay_rounds=1 --total_rounds=2", "--decay_rounds=1 must be 0 or at least"),
    ("reddit", "--unseen_users=2", "--unseen_users is 2.0; it must be a finite number"),
    ("tv_shows", "--text_length=3", "--text_length is 3; it must be"),
    ("movielens", "--method=local_only --local_only_epochs=20", "--local_only_epochs is 20, which"),
    (
        "audit alone",
        "--task=digits --method=fed_avg --pull=3",
        "--pull is 3.0, which has no effect",
    ),
    (
        "ablation alone",
        "--task=digits --num_clusters=3",
        "--num_clusters is 3, which has no effect",
    ),
    # Files of flags.
    ("movielens", "--flagfile=absent.flags", "absent.flags: there is no such file"),
    ("movielens", "--flagfile absent.flags", "absent.flags: there is no such file"),
    ("movielens", "--flagfile=", "there is no such file"),
    ("movielens", "--flagfile=folder", "it is not a regular file"),
    ("movielens", "--flagfile=pipe.csv", "it is not a regular file"),
    ("movielens", "--flagfile=/dev/zero", "it is not a regular file"),
    ("movielens", f"--flagfile={'x' * 300}", "File name too long"),
    ("movielens", "--flagfile=latin1.flags", "it is not UTF-8 text"),
    ("movielens", "--flagfile=nul.flags", "it is not text: it has a NUL byte"),
    ("movielens", "--flagfile=names_nul.flags", "it is not text: it has a NUL byte"),
    ("movielens", _ITSELF, f"{_ITSELF}: it includes itself"),
    ("movielens", "--flagfile=circle.flags", "circle.flags: it includes itself"),
    ("movielens", "--flagfile=wrong.flags", "--method is fast; it must be one of "),
    ("movielens", "--flagfile=wrong.flags", " (wrong.flags sets --method)."),
    ("movielens", "--flagfile=outer.flags", " (outer.flags sets --total_rounds)."),
    ("movielens", "--flagfile=outer.flags --total_rounds=1", " (inner.flags sets --seed)."),
    (
        "movielens",
        "--flagfile=outer.flags --total_rounds=1 --seed=-2",
        "and at most 2,147,483,647.",
    ),
    ("movielens", "-- --flagfile=wrong.flags", "unexpected argument"),
    # The table of data.
    ("interactions", "--item_column=film", "there is no column 'film'"),
    (
        "interactions",
        "--dataset=movielens_1m",
        "--interactions_file and --dataset=movielens_1m ex",
    ),
    ("interactions", "--min_interactions=2", "--min_interactions is 2; it must be a whole number"),
    ("movielens", "--dataset=movielens_1m", "--ratings_file and --dataset=movielens_1m exclude"),
    ("movielens", "--ratings_file=absent.csv", "absent.csv: no such file"),
    ("movielens", "--ratings_file=pipe.csv", "pipe.csv: cannot be read: it is not a regular file"),
    ("movielens", "--ratings_file=latin.csv", "latin.csv, line 1: not UTF-8"),
    (
        *("movielens", "--ratings_file=header.csv"),
        "header.csv: there are no columns 'who', 'item', 'rating'; the columns are \\x1b[2J, ",
    ),
    ("movielens", "--separator=commas", "--separator is 'commas'; it must be one of comma, semi"),
    ("movielens", "--quoting=maybe", "--quoting is maybe; it must be one of auto, double, none"),
    ("movielens", "--encoding=utf-9", "--encoding is utf-9; it must be a text encoding that Pyth"),
    ("movielens", "--header=who,item", "there is no column 'rating' in --header; the columns are"),
    ("movielens alone", "--separator=tab", "--separator is tab, which has no effect with the data"),
    ("movielens alone", "--item_column=film", "--item_column is film, which has no effect with"),
    (
        "movielens",
        "--data_dir=folder",
        "--data_dir is folder, which has no effect with --ratings_f",
    ),
    ("tv_shows alone", "--dataset=generated --data_dir=folder", "has no effect with the dataset g"),
    ("movielens", "--clients_per_draw=7", "--clients_per_draw is 7, which has no effect without"),
    ("movielens", "--ratings_file=bad.csv", "bad.csv, line 3: 'rating' is not a finite"),
    (
        *("movielens", "--output_dir=ratings.csv/run --user_column=absent"),
        "Cannot write to the run folder ratings.csv/run: Not a directory",
    ),
    ("reddit", "--label_column=subreddit", "'subreddit'"),
    ("reddit", "--dataset=generated", "--text_file and --dataset=generated exclude each other."),
    ("stackoverflow", "--min_sentences=12", "min_sentences=12"),
    ("tv_shows", "--context_column=show", "'show'"),
    ("tv_shows", "--user_vectors=few.csv", "--user_vectors=few.csv needs --method=fedperc_proj"),
    (
        *("tv_shows", "--method=fedperc_projected --user_vectors=ratings.csv"),
        "ratings.csv: there is no column 'user'; the columns are who, ",
    ),
    ("digits", "--skew=0.01", "--skew is 0.01; it must be a finite number at least"),
    # Folders of data, without a table.
    *((f"{task} alone", "--data_dir=absent", "absent has no ") for task in small.TASKS[1:]),
    (
        *("stackoverflow alone", "--dataset=stack_overflow --data_dir=folder"),
        "stackoverflow.sqlite: cannot be read: it is not a regular file",
    ),
    (
        *("stackoverflow alone", "--dataset=stack_overflow --data_dir=damaged"),
        "Stack Overflow cannot be loaded (",
    ),
    # Own data, sizes, and some of the users.
    (
        *("ratings alone", ""),
        "ratings needs a table: --ratings_file=FILE, with columns user, item, rating; `fedpersonal "
        "movielens` trains on MovieLens.",
    ),
    ("utterances alone", "--size=best", "--size is best; utterances has quick, paper."),
    ("digits", "--size=huge", "--size is huge; digits has quick."),
    ("sweep alone", "labels --grid=seed=1", "labels needs a table: --text_file=FILE"),
    ("audit alone", "--task=ranking --size=paper", "--size is paper; ranking has quick."),
    ("movielens alone", "--size=quick --decay_rounds=5", " (--size=quick sets --total_rounds)."),
    ("movielens", "--num_users=21", "--num_users is 21, but ratings has 20 users."),
    ("interactions", "--users_file=absent.txt", "absent.txt: no such file"),
    ("reddit", "--users_file=empty.txt", "--users_file=empty.txt: it is empty; give the name of"),
    (
        *("tv_shows", "--users_file=who.txt"),
        "who.txt, line 3: 'zoe' is none of the 20 users of texts with enough examples; 2 of the "
        "file's 3 names are not.",
    ),
    (
        *("stackoverflow alone", "--dataset=stack_overflow --num_users=9 --data_dir=folder"),
        "--num_users is 9, which has no effect on TFF's Stack Overflow: leave it out",
    ),
    # Sweeps; `alone` is without the flags of a task.
    ("sweep alone", "", "--grid is missing; pass --grid=...: "),
    ("generate alone", "", "--user is missing; pass --user=...: The user, whose"),
    ("sweep alone", "--grid=seed=1", "name one task, such as --task=ratings: "),
    ("sweep alone", "movies --grid=seed=1", "there is no task 'movies', and no module of this "),
    ("sweep alone", "movielens --grid=rate=1", "--grid: 'rate' is no option that can be chosen"),
    ("sweep alone", "movielens --grid=seed=1,2", "--grid: use --seeds for the number"),
    ("sweep alone", "movielens --grid=l2=1 --seed=3", "--seed is no flag; did you mean --seeds?"),
    ("sweep alone", "movielens --grid=l2=1 --text_file=x", "--text_file is no option of movielens"),
    ("sweep alone", "movielens --grid=l2=0..1", "--grid: l2 has a range, which needs --random=N"),
    # The leaderboard.
    ("leaderboard alone", "--size=large", "one of <quick|full>"),
    (
        "leaderboard alone",
        "--tasks=rating",
        "; did you mean ratings? There are ratings, ",
    ),
    ("leaderboard alone", "--methods=fedavg", "; did you mean fed_avg?"),
    ("leaderboard alone", "--tasks=films --methods=fedperc", "--methods: 'fedperc' is none of "),
    ("leaderboard alone", "--seeds=0", "--seeds is 0; it must be a whole number at least 1 and"),
    ("leaderboard alone", "--seeds=three", "--seeds is three; it must be a whole number at lea"),
    ("leaderboard alone", "--text_file=a", "no flag of this command. `fedpersonal next_word --t"),
    ("leaderboard alone", "--joined=a.json --seeds=2", "--joined runs nothing: leave --seeds out"),
    ("leaderboard alone", "--settings=absent.json", "--settings=absent.json: there is no such"),
    # Other commands.
    ("audit alone", "--method=furl", "name one task, such as --task=ratings: "),
    ("audit alone", "--task movies", "there is no task 'movies', and no module of this name; did "),
    ("ablation alone", "--task=json", "the module json has no TASK"),
    ("audit alone", "--task=movielens --text_file=x", "--text_file is no option of --task=mov"),
]
# What is found when more than the data's own reader is at work.
LATER = [
    ("reddit", "--num_labels=0", "labels must be 0 or 1, got such as 'cats'"),
    ("reddit", "--text_file=few.csv", "few has 9 users"),
    ("tv_shows", "--base_model=empty", "empty: there is no config.json"),
    (
        *("utterances alone", "--text_file=texts.csv --size=quick --base_model_dir=frozen"),
        "texts.csv: all users take part, so none is left to pretrain a base model on: give --base_",
    ),
    (
        "next_word alone",
        "--text_file=texts.csv --size=quick --min_sentences=2 --cache_dir=cache",
        "--vocab_size).",
    ),
    ("tv_shows", "--text_length=4 --too_long=error", "positions"),
    ("tv_shows", "--text_length=25", "need 25 positions; the base model tiny has 24"),
    ("tv_shows", "--text_file=two.csv --evaluate_on=unseen", "two has 2 users"),
    (
        *("sweep alone", "movielens --grid=decay_rounds=0,5 --total_rounds=9"),
        "--grid: with decay_rounds=5: --decay_rounds=5 must be 0 or at least --total_rounds=9",
    ),
    ("movielens", "--method=local_only --local_epochs=20", "--local_epochs is 20, which has no ef"),
    (
        "audit alone",
        "--task=digits --method=local_only --local_epochs=9",
        "--local_epochs is 9, wh",
    ),
    (
        "sweep alone",
        "movielens --method=furl --grid=pull=1,2",
        "--pull is 1.0, which has no effect",
    ),
    (
        *("sweep alone", "movielens --grid=server_epsilon=1,2 --server_optimizer=sgd"),
        "--server_epsilon is 1.0, which has no effect in any setting of the grid",
    ),
    (
        *("sweep alone", "movielens --grid=method=fed_avg,local_only --best=rmse"),
        "--method=local_only has no rounds to choose from",
    ),
    ("sweep alone", "movielens --grid=l2=1 --metric=bytes", "--metric=bytes: it is not known"),
    ("sweep alone", "movielens --grid=l2=1 --ratings_file=absent.csv", "absent.csv"),
    ("leaderboard alone", "--size=full", "the task ratings needs --movielens_dir, the folder of"),
    ("leaderboard alone", "--size=full --tasks=texts", "the task texts needs --data_dir, the fol"),
    (
        *("leaderboard alone", "--size=full --tasks=films --movielens_dir=folder"),
        "--tasks=films: MovieLens-1M is not in folder/",
    ),
    ("audit alone", f"{_AUDITED} --audit_rounds=0", "audit_rounds"),
    ("audit alone", f"{_AUDITED} --output=ratings.csv/audit.json", "--output: "),
    (
        *("reproduce alone", "--target=table1 --text_file=a.csv"),
        "--text_file is no option of --target=table1",
    ),
    (
        *("reproduce alone", "--target=table2 --dataset=tv_shows"),
        "--dataset is tv_shows; it must be one of auto, generated, stack_overflow",
    ),
    (
        *("reproduce alone", "--target=figure2 --vocab_sizes=10,many"),
        "--vocab_sizes=10,many: whole numbers above 0 are needed",
    ),
]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory, tiny_base):
    folder = tmp_path_factory.mktemp("mistakes")
    small.write_ratings(folder / "ratings.csv", num_users=20)
    small.write_ratings(folder / "bad.csv", num_users=20, spoiled=True)
    for name, num_users in (("texts", 20), ("few", 9), ("two", 2)):
        small.write_texts(folder / f"{name}.csv", num_users=num_users)
    columns = ["\x1b[2J", *(f"column {i}" for i in range(10**5))]
    contents = {
        "latin.csv": b"who,item,text,context,r\xe9\na,b,c,d,5\n",
        "header.csv": (",".join(columns) + "\na,b\n").encode(),
        "latin1.flags": b"# caf\xe9\n--seed=1\n",
        "nul.flags": b"--seed=1\0\n",
        "names_nul.flags": b"--flagfile=a\0b\n",
        "itself.flags": b"--seed=1\n--flagfile=itself.flags\n",
        "circle.flags": b"--flagfile=back.flags\n",
        "back.flags": b"--flagfile=./circle.flags\n",
        "wrong.flags": b"--method=fast\n",
        "empty.txt": b"\n",
        "who.txt": b"u3\n\nzoe\nann\nzoe\n",
        "inner.flags": b"--seed=-1\n",
        "outer.flags": b"--flagfile=inner.flags\n--total_rounds=0\n",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    for name in ("empty", "folder", "damaged"):
        (folder / name).mkdir()
    os.mkfifo(folder / "pipe.csv")
    os.mkfifo(folder / "folder" / "stackoverflow.sqlite")
    (folder / "damaged" / "stackoverflow.sqlite").write_bytes(b"SQLite format 3\0" + bytes(500))
    os.symlink(tiny_base.source, folder / "base")
    return folder


# Every third row is usually tried: neighbours in a table are alike.
_SHARES = pytest.mark.parametrize("every", [3, 1])


def _check(table, folder, run_commands, modules):
    there = set(folder.rglob("*"))
    commands = []
    for command, arguments, _ in table:
        name, _, alone = command.partition(" ")
        usual = [] if alone else [*small.ALL, *small.FLAGS[name]]
        commands.append([name, *usual, *arguments.split()])
    outcomes = run_commands(commands, modules=modules, cwd=folder)
    wrong = []
    for (command, arguments, message), (_, complaint, status) in zip(table, outcomes):
        is_line = complaint.startswith("error: ") and complaint.count("\n") == 1
        is_line = is_line and complaint[:-1].isprintable() and len(complaint) < 500
        if status != 2 or not is_line or message not in complaint:
            wrong.append((command, arguments, status, complaint[-500:]))
    assert not wrong
    # Texts that were read are kept, since they were not the mistake.
    new = {path.relative_to(folder).parts[0] for path in set(folder.rglob("*")) - there}
    assert new <= {"cache", "frozen"}


@pytest.mark.exhaustive(but=("3",))
@_SHARES
def test_mistakes_in_flags_and_data_show_before_tensorflow_is_imported(folder, run_commands, every):
    for name in ("tensorflow", "tensorflow_federated", "tensorflow_datasets", "transformers"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} is imported')\n")
    try:
        _check(FLAGS[::every], folder, run_commands, ["fedpersonal.suite.tasks.task"])
    finally:
        for path in folder.glob("t*.py"):
            path.unlink()


@pytest.mark.exhaustive(but=("3",))
@_SHARES
def test_mistakes_that_show_later(folder, run_commands, every):
    modules = ["fedpersonal.suite.tasks.experiment", "fedpersonal.suite.tasks.utterances.models"]
    _check(LATER[::every], folder, run_commands, [*modules, "fedpersonal.suite.leaderboard.page"])
