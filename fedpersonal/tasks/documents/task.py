"""Document classification as a task: its texts, its model, its users seen and unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedpersonal.data.documents import (
    FILMS_1M_FILES,
    load_films_1m,
    load_films_100k,
    read_documents,
)
from fedpersonal.data.generated.documents import generate_subreddits
from fedpersonal.data.labelled_texts import LabelledTexts
from fedpersonal.data.sources import FILE, Sources
from fedpersonal.errors import UserError
from fedpersonal.methods.method import KeepingOptions, Layers
from fedpersonal.options import option
from fedpersonal.runs.tested import TestReport
from fedpersonal.tasks.documents.data import DocumentData, guess_labels, split_documents
from fedpersonal.tasks.figures import figures_text, unseen_text
from fedpersonal.tasks.options import RunOptions, TextOptions
from fedpersonal.tasks.task import EvaluationSet, Task, filled

if TYPE_CHECKING:
    from fedpersonal.evaluation.guess import Guess
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

    DocumentExperiment = Experiment["DocumentRun", DocumentData]

_USER = "user_embedding"

SOURCES = Sources(
    holding="labels",
    datasets=("generated", "movielens_100k", "movielens_1m", "reddit_tfds"),
    default="generated",
    files={
        FILE: ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv"),
        # Whatever the folder has, `load_films_1m` knows where to look in it.
        "movielens_1m": (FILMS_1M_FILES[0], ""),
    },
    folders=("reddit_tfds",),
    only_by_name=("movielens_1m",),
    advice="ask TensorFlow Datasets by --dataset=reddit_tfds",
    public=("generated", "movielens_100k"),
)


class DocumentOptions(TextOptions):
    """The labelled texts, and the classifier of them."""

    dataset: str = option(
        "auto",
        "Texts. auto: --text_file if that is given, else reddit_comments.jsonl.gz in --data_dir, "
        "else generated comments. movielens_100k, movielens_1m: films that users like. "
        "reddit_tfds: TensorFlow Datasets' reddit, downloaded unless --data_dir has it.",
        choices=SOURCES.choices,
    )
    label_column: str = option("context", "The table's column of labels, such as subreddits.")
    num_labels: int = option(
        100,
        "The most frequent labels, kept; 0: labels are 0 and 1, as those of films always are.",
        at_least=0,
        at_most=10**6,
    )
    min_texts: int = option(15, "Users with fewer are left out.", at_least=1)
    max_texts: int = option(0, "Users with more are left out; 0: none.", at_least=0)
    unseen_users: float = option(
        0.1, "Share of the users who never take part.", at_least=0, at_most=0.9
    )
    text_encoder: str = option(
        "hashed_words",
        "What a text becomes a vector by. hashed_words: a bag of all its words and pairs of words, "
        "the sum of their embeddings over the root of their number. chars: two LSTMs of its first "
        "characters.",
        choices=("hashed_words", "chars"),
        in_help=True,
    )
    text_length: int = option(80, "chars: characters of a text.", at_least=1, at_most=10**6)
    word_buckets: int = option(
        2**15, "hashed_words: rows of the table of words.", at_least=1, at_most=10**8
    )
    word_dim: int = option(
        32,
        "hashed_words: size of a word embedding; 0: a number for each label, which makes the model "
        "linear. That needs --hidden_units=0 --user_dim=0.",
        at_least=0,
        at_most=10_000,
    )
    user_dim: int = option(
        32,
        "Size of a user embedding; 0: a number for each label, added to the model's output.",
        at_least=0,
        at_most=10_000,
    )
    character_dim: int = option(
        32, "chars: size of a character embedding.", at_least=1, at_most=10_000
    )
    lstm_units: int = option(
        32, "chars: units of each of the two LSTMs.", at_least=1, at_most=10_000
    )
    hidden_units: tuple[int, ...] = option(
        (64,), "Units of a hidden layer; 0: no such layer.", at_least=0, at_most=10_000
    )

    @property
    def is_linear(self) -> bool:
        """Whether words and users have a number for each label, and nothing else is learned."""
        return self.text_encoder == "hashed_words" and not self.word_dim

    def check(self) -> None:
        """Raises a `UserError` where options contradict each other."""
        super().check()
        if self.is_linear and (any(self.hidden_units) or self.user_dim):
            raise UserError(
                f"--word_dim=0 needs --hidden_units=0 --user_dim=0, got --hidden_units="
                f"{','.join(map(str, self.hidden_units))} --user_dim={self.user_dim}"
            )


class DocumentRun(DocumentOptions, KeepingOptions, RunOptions):
    """These options, and those of any run."""


_FILMS = "Whether {num_users} users like films, in {num_texts} ratings, from the film's words"


class DocumentTask(Task[DocumentRun, LabelledTexts, DocumentData]):
    """An encoder of texts, beside a user embedding (Bui et al., section 4)."""

    name = "reddit"
    own_options = DocumentOptions
    defaults = {
        "method": "furl",
        "total_rounds": 7000,
        "clients_per_round": 10,
        "client_batch_size": 16,
        "client_learning_rate": 0.3,
        "local_learning_rate": 0.3,
        "reconstruction_learning_rate": 0.3,
        "packing": "pooled",
        "rounds_per_eval": 200,
        "rounds_per_checkpoint": 100,
    }
    layers = Layers(
        embedding=(_USER,),
        head=("logits",),
        body=("characters", "encoder", "words"),
        table=(_USER,),
    )
    has_own_rows = True
    examples = "texts"
    metrics = ("auc", "accuracy")
    meanings = {
        "auc": "chance that a text with label 1 gets a higher score than one with label 0, over "
        "all clients' texts"
    }
    predicts = (
        "One of {num_labels} labels for each of {num_texts} texts by {num_users} users, from its "
        "words"
    )
    sources = SOURCES

    def title(self, data: Mapping[str, Any]) -> str:
        """Returns what is predicted; the texts of MovieLens are films' words."""
        return filled(_FILMS, data) if "film" in str(data.get("dataset")) else super().title(data)

    def read(self, options: DocumentRun) -> LabelledTexts:
        """Reads the texts that options name."""
        return options.choose_users(_read(options))

    def split(self, source: LabelledTexts, options: DocumentRun) -> DocumentData:
        """Splits the texts."""
        return split_documents(source, options)

    def sizes(self, data: DocumentData) -> dict[str, Any]:
        """Returns the numbers of users, labels and ids of texts."""
        return {
            "num_users": data.num_users,
            "num_labels": len(data.label_names),
            "num_ids": data.vocabulary.size,
            "is_binary": data.is_binary,
        }

    def build_model(
        self, sizes: SimpleNamespace, options: DocumentRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the classifier; only methods that want one give it a user embedding."""
        import tensorflow as tf

        from fedpersonal.model.metrics import binary_accuracy, class_accuracy
        from fedpersonal.model.partition import PartitionedModel
        from fedpersonal.models.documents import (
            CharacterEncoder,
            HashedWordEncoder,
            document_classifier,
        )

        method = self.method(options)
        has_table = method.has_table
        has_users = has_table or _USER in local_layers or method.finetunes == "embedding"
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        if sizes.is_binary:
            loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
        encoder: CharacterEncoder | HashedWordEncoder
        num_outputs = 1 if sizes.is_binary else sizes.num_labels
        hidden_units: tuple[int, ...] | None = tuple(n for n in options.hidden_units if n)
        if options.is_linear:
            encoder, hidden_units = HashedWordEncoder(sizes.num_ids, num_outputs, "zeros"), None
        elif options.text_encoder == "hashed_words":
            encoder = HashedWordEncoder(sizes.num_ids, options.word_dim)
        else:
            encoder = CharacterEncoder(sizes.num_ids, options.character_dim, options.lstm_units)
        if set(self.layers.body) <= set(local_layers):  # That is those of either encoder.
            others = set(self.layers.body) - set(encoder.layers)
            local_layers = [name for name in local_layers if name not in others]
        return PartitionedModel(
            document_classifier(
                encoder,
                num_outputs=num_outputs,
                num_users=(sizes.num_users if has_table else 1) if has_users else None,
                user_dim=options.user_dim or None,
                hidden_units=hidden_units,
            ),
            local_layers=local_layers,
            loss=loss,
            metrics=[binary_accuracy() if sizes.is_binary else class_accuracy()],
            lookups={**encoder.lookups, **({_USER: "user"} if has_users else {})},
            owned_tables=[_USER] if has_table else [],
            label_spec=tf.TensorSpec([None], tf.float32 if sizes.is_binary else tf.int32),
            sequence_length=encoder.lengths,
        )

    def validate(self, experiment: DocumentExperiment) -> Callable[[TrainedModel], ClientResults]:
        """Returns what evaluates a model between rounds, with `auc` of labels of 0 and 1."""
        from fedpersonal.tasks.documents.data import ResultsWithArea

        part = experiment.data.validation
        if not experiment.data.is_binary:
            return super().validate(experiment)
        evaluate = experiment.evaluation(
            part, start="kept", with_before=False, with_predictions=True
        )

        return lambda trained: ResultsWithArea(**vars(evaluate(trained)), query=part.query)

    def validated_metrics(self, data: DocumentData) -> Sequence[str]:
        """Returns `auc` of labels of 0 and 1."""
        return ("auc",) if data.is_binary else ()

    def test(self, experiment: DocumentExperiment, trained: TrainedModel) -> TestReport:
        """Predicts other texts of the users who took part, and texts of users who did not."""
        from fedpersonal.tasks.running import unseen_summary

        data = experiment.data
        results, metrics = _evaluate(experiment, trained, data.test)
        about: dict[str, Any] = {"unseen": None}
        # A server's table has no row for a user whom it has never seen. Others rebuild what they
        # lack from the first half of their texts.
        if data.unseen.query.num_clients and not experiment.method.has_table:
            unseen, more = _evaluate(experiment, trained, data.unseen)
            guesses = guess_labels(data, data.unseen)
            about["unseen"] = unseen_summary(experiment, data.unseen, unseen, guesses, more)
        return TestReport(results, metrics, description=about)

    def guesses(self, experiment: DocumentExperiment, part: EvaluationSet) -> dict[str, Guess]:
        """Guesses labels without a model of the texts."""
        return guess_labels(experiment.data, part)

    def describe(self, experiment: DocumentExperiment) -> dict[str, Any]:
        """Says what users keep, and how many they are."""
        return {
            "local_state": experiment.options.local_state,
            "num_users": experiment.data.num_users,
        }

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        lines = super().report(summary)
        unseen = summary["unseen"]
        if unseen is not None:
            area = f"; then {figures_text(unseen, ['auc'])}" if "auc" in unseen else ""
            lines.append(unseen_text(unseen, "accuracy") + area)
        return lines


def _read(options: DocumentRun) -> LabelledTexts:
    """Reads the texts of all users."""
    dataset, path = options.find(SOURCES)
    if dataset == "generated":
        # One set of texts for all seeds; what differs is its split.
        return generate_subreddits(seed=0)
    limits: dict[str, Any] = {
        "min_texts": options.min_texts,
        "max_texts": options.max_texts or None,
    }
    if dataset == "movielens_100k":
        return load_films_100k(**limits)
    if dataset == "movielens_1m":
        assert path
        return load_films_1m(path, **limits)
    if dataset == "reddit_tfds":
        from fedpersonal.data.documents import load_reddit

        return load_reddit(path, num_labels=options.num_labels, **limits)
    assert path  # A table has one.
    columns = options.columns("user", "text", "label", "time")
    table, num_labels = options.table(path), options.num_labels or None
    return read_documents(table, **columns, num_labels=num_labels, **limits)


def _evaluate(
    experiment: DocumentExperiment, trained: TrainedModel, part: EvaluationSet
) -> tuple[ClientResults, dict[str, float]]:
    """Returns results, and of labels that differ the area under all texts' ROC curve as `auc`."""
    from fedpersonal.tasks.documents.data import area_metric

    is_binary = experiment.data.is_binary
    results = experiment.evaluation(part, with_predictions=is_binary)(trained)
    return results, area_metric(results, part.query) if is_binary else {}


TASK = DocumentTask()
