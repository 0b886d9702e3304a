"""The task of document classification: options, model, and evaluation of seen and unseen users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedpersonal.methods.method import Layers
from fedpersonal.suite.readers.documents import (
    load_films_1m,
    load_films_100k,
    read_documents,
)
from fedpersonal.suite.readers.generated.documents import generate_subreddits
from fedpersonal.suite.readers.labelled_texts import LabelledTexts
from fedpersonal.suite.tasks.figures import metrics_text, unseen_text
from fedpersonal.suite.tasks.labels.data import DocumentData, label_baselines, split_documents
from fedpersonal.suite.tasks.labels.options import SOURCES, DocumentOptions, DocumentRun
from fedpersonal.suite.tasks.task import EvaluationSet, Task, fill_counts
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.evaluation.results import ClientResults
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

    DocumentExperiment = Experiment["DocumentRun", DocumentData]

_USER = "user_embedding"

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
