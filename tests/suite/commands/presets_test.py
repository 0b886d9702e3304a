"""Presets: they parse, say what the papers say, and every option that they may name is read."""

from __future__ import annotations

import pathlib
import sys

import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation import evaluate as evaluator
from fedpersonal.methods.method import Layers
from fedpersonal.suite.commands.option_flags import read_flagfile
from fedpersonal.suite.tasks import experiment
from fedpersonal.suite.tasks import running as experiment_run
from fedpersonal.suite.tasks.digits.task import TASK as DIGITS
from fedpersonal.suite.tasks.labels.task import TASK as DOCUMENTS
from fedpersonal.suite.tasks.next_word.task import TASK as NEXT_WORD
from fedpersonal.suite.tasks.ranking.task import TASK as INTERACTIONS
from fedpersonal.suite.tasks.ratings.task import TASK as RATINGS
from fedpersonal.suite.tasks.utterances.task import TASK as UTTERANCES

FOLDER = pathlib.Path(__file__).parents[3] / "experiments" / "presets"
TASKS = {
    task.name: task for task in (RATINGS, INTERACTIONS, DIGITS, NEXT_WORD, DOCUMENTS, UTTERANCES)
}
PRESETS = sorted(path.stem for path in FOLDER.glob("*.flags"))

# What the papers say, or docs/ where they are silent.
MEANING = {
    "movielens_paper": """
        total_rounds=1000 clients_per_round=100 client_batch_size=5 client_learning_rate=0.5
        server_optimizer=sgd server_learning_rate=1.0 reconstruction=gradient
        reconstruction_learning_rate=0.1 reconstruction_epochs=5 max_reconstruction_steps=50
        local_epochs=1 max_local_steps=50 support_query_split=skip shuffle=never
        max_ratings_per_user=300 embedding_dim=50 embedding_stddev=0.03 max_update_norm=20
        client_optimizer=sgd weighting=num_examples rating_offset=0
    """,
    "movielens_centralized": """
        method=centralized total_rounds=12 client_learning_rate=1.0 pool_batch_size=100 l2=0.05
        max_ratings_per_user=0 embedding_stddev=0.1 rounds_per_eval=3 rounds_per_checkpoint=3
        rating_offset=0
    """,
    "movielens_fed_avg": """
        method=fed_avg total_rounds=1000 client_learning_rate=0.2 l2=0.02 max_update_norm=20
        max_ratings_per_user=300 rounds_per_eval=100 shuffle=never rating_offset=0
    """,
    "movielens_local": """
        method=local_only finetuning_learning_rate=0.02 embedding_dim=16 use_biases=True
        rating_offset=3.5 standalone_epochs=5
    """,
    "interactions_quick": """
        method=pfedrec total_rounds=200 rounds_per_eval=20 clients_per_round=100
        client_batch_size=64 local_steps=10 client_learning_rate=0.3 local_learning_rate=3
        server_optimizer=adam server_learning_rate=0.01 server_epsilon=1e-05 embedding_dim=32
        leaky_negatives=False client_optimizer=sgd weighting=num_examples
    """,
    "stackoverflow_paper": """
        total_rounds=2500 clients_per_round=200 client_batch_size=16 client_learning_rate=0.3
        server_optimizer=yogi server_learning_rate=0.1 server_epsilon=0.001
        server_initial_accumulator=0.0 reconstruction_learning_rate=0.1 reconstruction_epochs=5
        max_reconstruction_steps=100 local_epochs=1 max_local_steps=100
        support_query_split=aggregated max_sentences=1024 kept_sentences=first_stored shuffle=never
        padding_in_loss=True vocab_size=10000 num_oov_buckets=500 lstm_units=670 embedding_dim=96
        projection_dim=96 client_optimizer=sgd weighting=num_examples
    """,
    "reddit_paper": """
        text_encoder=hashed_words word_dim=0 user_dim=0 hidden_units=0 total_rounds=240
        decay_rounds=240 clients_per_round=100 client_batch_size=64 server_optimizer=sgd
        server_learning_rate=1 reconstruction_learning_rate=1 reconstruction_epochs=20
        finetuning_learning_rate=3 finetuning_epochs=5 rounds_per_eval=40 client_optimizer=sgd
        weighting=num_examples client_learning_rate=3 local_learning_rate=10
    """,
    "films_paper": """
        text_encoder=hashed_words word_buckets=16384 word_dim=16 user_dim=16 hidden_units=32
        packing=stacked total_rounds=1000 decay_rounds=1000 clients_per_round=50
        client_batch_size=32 client_learning_rate=0.01 local_learning_rate=1 server_optimizer=adam
        server_learning_rate=0.01 server_epsilon=1e-05 reconstruction_learning_rate=1
        reconstruction_epochs=5 finetuning_learning_rate=0.1 finetuning_epochs=5 rounds_per_eval=100
        client_optimizer=sgd weighting=num_examples
    """,
    "films_quick": """
        text_encoder=hashed_words word_buckets=16384 word_dim=16 user_dim=16 hidden_units=32
        packing=stacked total_rounds=400 decay_rounds=400 clients_per_round=20 client_batch_size=32
        client_learning_rate=0.3 local_learning_rate=1 server_optimizer=adam
        server_learning_rate=0.01 server_epsilon=1e-05 reconstruction_learning_rate=1
        reconstruction_epochs=5 finetuning_learning_rate=0.1 finetuning_epochs=5 rounds_per_eval=50
        client_optimizer=sgd weighting=num_examples
    """,
    "reddit_chars": """
        text_encoder=chars total_rounds=800 decay_rounds=800 clients_per_round=20
        client_batch_size=64 server_optimizer=adam server_learning_rate=0.01
        reconstruction_learning_rate=1 reconstruction_epochs=10 rounds_per_eval=80 user_dim=32
        local_epochs=1 client_optimizer=sgd weighting=num_examples client_learning_rate=1
        local_learning_rate=3
    """,
    "reddit_chars_server": """
        text_encoder=chars total_rounds=800 decay_rounds=800 clients_per_round=20
        client_batch_size=64 server_optimizer=adam server_learning_rate=0.01
        reconstruction_learning_rate=1 reconstruction_epochs=10 rounds_per_eval=80 user_dim=32
        local_epochs=1 client_optimizer=sgd weighting=num_examples
        method=centralized_personalized client_learning_rate=0.5 local_learning_rate=30
    """,
    "tv_shows_paper": """
        total_rounds=8 local_steps=10 client_batch_size=15 client_optimizer=adam
        finetuning_epochs=15 max_finetuning_steps=15 weighting=uniform rounds_per_eval=4
        client_learning_rate=0.03 proximal=0.01 finetuning_learning_rate=0.005 clip_norm=5
    """,
    "tv_shows_paper_rivals": """
        total_rounds=8 local_steps=10 client_batch_size=15 client_optimizer=adam
        finetuning_epochs=15 max_finetuning_steps=15 weighting=uniform rounds_per_eval=4
        method=split_learning client_learning_rate=0.0005 proximal=1
        finetuning_learning_rate=0.0001 clip_norm=1
    """,
}


def task_of(preset):
    named = {**TASKS, "films": DOCUMENTS}
    return next(task for name, task in named.items() if preset.startswith(name))


def pinned(preset):
    """Returns the options that are pinned, as texts."""
    return dict(word.split("=") for word in MEANING[preset].split())


def meaning_of(preset):
    """Returns what a preset's pinned options are, as texts of the same form."""
    task, found = task_of(preset), {}
    options = task.options(**read_flagfile(FOLDER / f"{preset}.flags", task.options))
    for name, text in pinned(preset).items():
        value = getattr(options, name)
        value = value[0] if isinstance(value, tuple) else value
        is_number = type(value) in (int, float)
        found[name] = text if is_number and float(text) == value else str(value)
    return found


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_parse_from_any_folder(preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = read_flagfile(FOLDER / f"{preset}.flags", task_of(preset).options)
    task_of(preset).options(**values)
    assert values


@pytest.mark.parametrize("preset", MEANING)
def test_presets_say_what_the_papers_say(preset):
    assert meaning_of(preset) == pinned(preset)
    defaults = task_of(preset).options()
    values = read_flagfile(FOLDER / f"{preset}.flags", defaults)
    changed = {name for name, value in values.items() if getattr(defaults, name) != value}
    # So that a line that is lost is missed.
    assert changed - pinned(preset).keys() <= {"dataset"}


@pytest.mark.parametrize("line", ["--client_rate=1", "client_learning_rate=1", "--l2=much"])
def test_a_line_that_is_no_option_is_refused(tmp_path, line):
    (tmp_path / "bad.flags").write_text(f"--flagfile={FOLDER}/movielens_quick.flags\n{line}\n")
    with pytest.raises(UserError, match="bad.flags"):
        read_flagfile(tmp_path / "bad.flags", RATINGS.options)


class Reads:
    """Options of a task that remember which of them somebody has read."""

    def __init__(self, task):
        read, declared = set(), task.options.declarations().keys()

        class Recorder(task.options):
            def __getattribute__(self, name):
                # Copies and checks of options read them all.
                caller = sys._getframe(1).f_globals["__name__"]
                if name in declared and caller not in ("fedpersonal.options", "dataclasses"):
                    read.add(name)
                return super().__getattribute__(name)

        self.options, self.read = Recorder, read

    def unread(self):
        return self.options.declarations().keys() - self.read


@pytest.fixture(name="values_of", scope="module")
def _values_of(tmp_path_factory, tiny_base):
    """Options of each task with which all are looked at: of own data, and others."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "ratings.csv").write_text(
        "user,item,rating,time\n"
        + "".join(f"u{u},i{(u + i) % 30},{1 + i % 5},{i}\n" for u in range(20) for i in range(12))
    )
    (folder / "texts.csv").write_text(
        "user,text,context,time\n"
        + "".join(
            f"u{u},some words {u} {t} end,{'ab'[t % 2]},{t}\n" for u in range(20) for t in range(16)
        )
    )
    (folder / "vectors.csv").write_text("user,one\nu0,1.5\n")
    ratings, text = str(folder / "ratings.csv"), {"text_file": str(folder / "texts.csv")}
    base = {"base_model": tiny_base.source, "base_model_dir": str(folder), "text_length": 12}
    return {
        RATINGS.name: [{}, {"ratings_file": ratings}],
        INTERACTIONS.name: [{}, {"interactions_file": ratings}],
        DIGITS.name: [{}],
        NEXT_WORD.name: [
            {**text, "vocab_size": 9, "client_batch_size": 4, "cache_dir": str(folder)}
        ],
        DOCUMENTS.name: [
            {**text, "num_labels": 2},
            {**text, "num_labels": 2, "text_encoder": "chars"},
        ],
        UTTERANCES.name: [
            {**text, **base, "evaluate_on": users, "method": method}
            for users, method in (("unseen", "fedperc"), ("seen", "fedperc_generated"))
        ]
        + [
            {
                **text,
                **base,
                "method": "fedperc_projected",
                "user_vectors": str(folder / "vectors.csv"),
                "missing_vectors": "zeros",
            }
        ],
    }


# Options that a method does not go without.
NEEDED = {"fedperc_projected": {"user_vectors": "vectors.csv"}}


def look_at_everything(task, options_class, all_values, patch):
    """Does all that an experiment does but to train and to evaluate."""

    class Trainer:
        crossings = ()
        num_shards = 1

        def __init__(self, *args, **options):
            pass

        def fit(self, **options):
            raise StopIteration

    class Folder:
        @classmethod
        def open(cls, *args, **options):
            return cls()

        def write_boundary(self, boundary):
            pass

    patch.setattr(experiment, "Trainer", Trainer)
    patch.setattr(experiment_run, "RunFolder", Folder)
    patch.setattr(evaluator, "build_evaluation", lambda *args, **options: None)
    for method in task.methods.values():
        needed = NEEDED.get(method.name, {})
        options = task.with_defaults(options_class(method=method.name, local_steps=0, **needed))
        layers = Layers(("one",), ("two",), ("three",), ("one", "two", "three"))
        method.local_layers(options, layers)
        method.build(options, layers)
        method.finetuning(options, layers)
        ridge = options_class(method=method.name, reconstruction="ridge", **needed)
        method.build(ridge, layers)
    for values in all_values:
        others = [] if "user_vectors" in values else ["centralized"]
        for method in (values.get("method", task.defaults["method"]), *others):
            options = options_class(**{**values, "method": method})
            source = task.read(options)
            built, folder = experiment_run.open_experiment(
                task, source, options, "nowhere", config={}, may_differ=(), data=None
            )
            built.evaluation(built.data.test)
            with pytest.raises(StopIteration):
                experiment_run.run_experiment(built, folder)


@pytest.mark.exhaustive(but=("movielens", "reddit"))
@pytest.mark.parametrize("name", TASKS)
def test_every_option_is_read_by_something(name, values_of, monkeypatch):
    task = TASKS[name]
    reads = Reads(task)
    look_at_everything(task, reads.options, values_of[name], monkeypatch)
    assert not reads.unread()
