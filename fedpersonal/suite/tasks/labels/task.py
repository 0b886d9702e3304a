"""The task of document classification: options, model, and evaluation of seen and unseen users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedpersonal.data.sources import FILE, Sources
from fedpersonal.errors import UserError
from fedpersonal.methods.method import KeepingOptions, Layers
from fedpersonal.options import option
from fedpersonal.runs.tested import EvaluationReport
from fedpersonal.suite.readers.documents import (
    FILMS_1M_FILES,
    load_films_1m,
    load_films_100k,
    read_documents,
)
from fedpersonal.suite.readers.generated.documents import generate_subreddits
from fedpersonal.suite.readers.labelled_texts import LabelledTexts
from fedpersonal.suite.tasks.figures import metrics_text, unseen_text
from fedpersonal.suite.tasks.labels.data import DocumentData, label_baselines, split_documents
from fedpersonal.suite.tasks.options import RunOptions, TextOptions
from fedpersonal.suite.tasks.task import EvaluationSet, Task, fill_counts

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

    DocumentExperiment = Experiment["DocumentRun", DocumentData]

_USER = "user_embedding"

SOURCES = Sources(
    holding="labels",
    datasets=("generated", "movielens_100k", "movielens_1m", "reddit_tfds"),
    default="generated",
    files={
        FILE: ("reddit_comments.jsonl.gz", "reddit_comments.jsonl", "reddit_comments.csv"),
        # `load_films_1m` finds its files in any folder.
        "movielens_1m": (FILMS_1M_FILES[0], ""),
    },
    folders=("reddit_tfds",),
    only_by_name=("movielens_1m",),
    advice="use TensorFlow Datasets by --dataset=reddit_tfds",
    public=("generated", "movielens_100k"),
)


class DocumentOptions(TextOptions):
    """The labelled texts, and their classifier."""

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
        "The number of most frequent labels to keep; 0: labels are 0 and 1, as those of films "
        "always are.",
        at_least=0,
        at_most=10**6,
    )
    min_texts: int = option(15, "Users with fewer texts are left out.", at_least=1)
    max_texts: int = option(0, "Users with more texts are left out; 0: none.", at_least=0)
    unseen_users: float = option(
        0.1, "Share of unseen users, who never train.", at_least=0, at_most=0.9
    )
    text_encoder: str = option(
        "hashed_words",
        "The encoder of a text as a vector. hashed_words: the sum of the embeddings of its words "
        "and pairs of words, divided by the root of their number. chars: two LSTMs over its first "
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
        """Whether the model has only a number for each label and word, or label and user."""
        return self.text_encoder == "hashed_words" and not self.word_dim

    def check(self) -> None:
        """Raises a `UserError` if options contradict each other."""
        super().check()
        if self.is_linear and (any(self.hidden_units) or self.user_dim):
            raise UserError(
                f"--word_dim=0 needs --hidden_units=0 --user_dim=0, got --hidden_units="
                f"{','.join(map(str, self.hidden_units))} --user_dim={self.user_dim}"
            )


class DocumentRun(DocumentOptions, KeepingOptions, RunOptions):
    """The options of a run of this task."""


_FILMS = "Whether {num_users} users like films, in {num_texts} ratings, from the film's words"


class DocumentTask(Task[DocumentRun, LabelledTexts, DocumentData]):
    """Classification by a text encoder and a user embedding (Bui et al., section 4)."""

    name = "reddit"
    usage = """FURL and its rivals: subreddits of comments, films liked, or labels of any texts.

fedpersonal reddit --text_file=path/to/comments.jsonl.gz --method=furl
fedpersonal reddit --dataset=movielens_100k --text_encoder=hashed_words"""
    extra_options = DocumentOptions
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
    has_per_client_rows = True
    examples = "texts"
    metrics = ("auc", "accuracy")
    meanings = {
        "auc": "probability that a text with label 1 scores higher than one with label 0, pooled "
        "over all clients' texts"
    }
    predicts = (
        "One of {num_labels} labels for each of {num_texts} texts by {num_users} users, from its "
        "words"
    )
    sources = SOURCES

    def title(self, data: Mapping[str, Any]) -> str:
        """Returns the prediction problem in words; the texts of MovieLens are films' words."""
        return (
            fill_counts(_FILMS, data) if "film" in str(data.get("dataset")) else super().title(data)
        )

    def read(self, options: DocumentRun) -> LabelledTexts:
        """Reads the texts that options name."""
        return options.choose_users(_read(options))

    def split(self, source: LabelledTexts, options: DocumentRun) -> DocumentData:
        """Splits the texts."""
        return split_documents(source, options)

    def sizes(self, data: DocumentData) -> dict[str, Any]:
        """Returns the numbers of users, labels and text ids, and whether labels are binary."""
        return {
            "num_users": data.num_users,
            "num_labels": len(data.label_names),
            "num_ids": data.vocabulary.size,
            "is_binary": data.is_binary,
        }

    def build_model(
        self, sizes: SimpleNamespace, options: DocumentRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the classifier, with a user embedding if the method uses one."""
        import tensorflow as tf

        from fedpersonal.model.metrics import binary_accuracy, class_accuracy
        from fedpersonal.model.partition import PartitionedModel
        from fedpersonal.suite.models.documents import (
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
        if set(self.layers.body) <= set(local_layers):  # The body has the layers of both encoders.
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
            per_client_tables=[_USER] if has_table else [],
            label_spec=tf.TensorSpec([None], tf.float32 if sizes.is_binary else tf.int32),
            sequence_length=encoder.lengths,
        )

    def validate(self, experiment: DocumentExperiment) -> Callable[[TrainedModel], ClientResults]:
        """Returns a function that evaluates a model between rounds, with `auc` if binary."""
        from fedpersonal.suite.tasks.labels.data import ResultsWithAuc

        part = experiment.data.validation
        if not experiment.data.is_binary:
            return super().validate(experiment)
        evaluate = experiment.evaluation(
            part, start="kept", with_before=False, with_predictions=True
        )

        return lambda trained: ResultsWithAuc(**vars(evaluate(trained)), query=part.query)

    def validation_metrics(self, data: DocumentData) -> Sequence[str]:
        """Returns `auc` for labels of 0 and 1."""
        return ("auc",) if data.is_binary else ()

    def test(self, experiment: DocumentExperiment, trained: TrainedModel) -> EvaluationReport:
        """Tests seen users on other texts, and unseen users."""
        from fedpersonal.suite.tasks.running import unseen_summary

        data = experiment.data
        results, metrics = _evaluate(experiment, trained, data.test)
        about: dict[str, Any] = {"unseen": None}
        # A server's table has no row for an unseen user. Without a table, unseen users rebuild
        # local variables from the first half of their texts.
        if data.unseen.query.num_clients and not experiment.method.has_table:
            unseen, more = _evaluate(experiment, trained, data.unseen)
            baselines = label_baselines(data, data.unseen)
            about["unseen"] = unseen_summary(experiment, data.unseen, unseen, baselines, more)
        return EvaluationReport(results, metrics, description=about)

    def baselines(self, experiment: DocumentExperiment, part: EvaluationSet) -> dict[str, Baseline]:
        """Returns the metrics of frequent labels and of rates."""
        return label_baselines(experiment.data, part)

    def describe(self, experiment: DocumentExperiment) -> dict[str, Any]:
        """Returns the state that users keep, and their number."""
        return {
            "local_state": experiment.options.local_state,
            "num_users": experiment.data.num_users,
        }

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        lines = super().report(summary)
        unseen = summary["unseen"]
        if unseen is not None:
            area = f"; then {metrics_text(unseen, ['auc'])}" if "auc" in unseen else ""
            lines.append(unseen_text(unseen, "accuracy") + area)
        return lines


def _read(options: DocumentRun) -> LabelledTexts:
    """Reads the texts of all users."""
    dataset, path = options.find(SOURCES)
    if dataset == "generated":
        # One set of texts for all seeds; seeds differ in the split.
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
        from fedpersonal.suite.readers.documents import load_reddit

        return load_reddit(path, num_labels=options.num_labels, **limits)
    assert path  # A table has one.
    columns = options.columns("user", "text", "label", "time")
    table, num_labels = options.table(path), options.num_labels or None
    return read_documents(table, **columns, num_labels=num_labels, **limits)


def _evaluate(
    experiment: DocumentExperiment, trained: TrainedModel, part: EvaluationSet
) -> tuple[ClientResults, dict[str, float]]:
    """Returns results, and the `auc` pooled over texts if labels are binary and differ."""
    from fedpersonal.suite.tasks.labels.data import auc_metric

    is_binary = experiment.data.is_binary
    results = experiment.evaluation(part, with_predictions=is_binary)(trained)
    return results, auc_metric(results, part.query) if is_binary else {}


TASK = DocumentTask()
