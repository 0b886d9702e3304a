"""The task of next word prediction: options, data, model, and evaluation."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpersonal.methods.method import Layers, Method
from fedpersonal.suite.readers.stack_overflow import find_database, load_stack_overflow
from fedpersonal.suite.tasks.figures import (
    before_and_after,
    metrics_text,
    population_text,
    with_baseline,
)
from fedpersonal.suite.tasks.next_word.data import (
    NextWordData,
    Sentences,
    sample_stack_overflow,
    split_text,
)
from fedpersonal.suite.tasks.next_word.options import (
    SOURCES,
    STACK_OVERFLOW,
    NextWordOptions,
    NextWordRun,
)
from fedpersonal.suite.tasks.task import EvaluationSet, Task
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

    NextWordExperiment = Experiment["NextWordRun", NextWordData]


class NextWordTask(Task[NextWordRun, Sentences, NextWordData]):
    """An LSTM with local embeddings of unknown words (Singhal et al., section 5.1.2)."""

    name = "stackoverflow"
    usage = """FedRecon and its rivals on next words: Stack Overflow, or any table of texts by user.

fedpersonal stackoverflow --text_file=path/to/texts.jsonl.gz --method=fed_recon"""
    extra_options = NextWordOptions
    defaults = {
        "method": "fed_recon",
        "total_rounds": 2500,
        "clients_per_round": 200,
        "client_batch_size": 16,
        "client_learning_rate": 0.3,
        "max_reconstruction_steps": 100,
        "local_epochs": 5,
        "max_local_steps": 100,
        "max_finetuning_steps": 100,
        "support_query_split": "aggregated",
        "packing": "pooled",
    }
    layers = Layers(
        embedding=("oov_embedding",), head=("logits",), body=("known_embedding", "lstm")
    )
    examples = "sentences"
    meanings = {
        "accuracy": "share of next words predicted right, unknown words and ends of sentences too",
        "accuracy_without_oov": "share of next words predicted right, known words and ends only",
        "accuracy_without_oov_or_eos": "share of next words predicted right, known words only",
        "accuracy_among_known": "share of next words predicted right, known words only, by the "
        "likeliest known word: comparable for any number of buckets of unknown words",
        "personal_word_accuracy": "share of known words predicted right after an unknown word of "
        "the client's support set",
    }
    predicts = (
        "The next word in {num_sentences} sentences by {num_users} users, from the words before it"
    )
    sources = SOURCES
    usual_server_optimizer = "yogi"

    def with_defaults(self, options: NextWordRun) -> NextWordRun:
        """Returns the options with the method's defaults in place of None."""
        options = super().with_defaults(options)
        has_local_words = _has_local_words(self.method(options))
        buckets = options.num_oov_buckets or (500 if has_local_words else 1)
        return options.replace(num_oov_buckets=buckets)

    def read(self, options: NextWordRun) -> Sentences:
        """Finds the sentences that options name."""
        kind, path = options.find(SOURCES)
        if kind == STACK_OVERFLOW:
            options.refuse_idle("num_users", "users_file", where="on TFF's Stack Overflow")
            find_database(path)
        return Sentences(kind, path, options)

    def split(self, source: Sentences, options: NextWordRun) -> NextWordData:
        """Splits the sentences with the options' vocabulary and buckets."""
        if not source.is_paper_data:
            return split_text(source.corpus, options)
        assert options.num_oov_buckets  # `with_defaults` has set it.
        parts = load_stack_overflow(
            vocab_size=options.vocab_size,
            num_oov_buckets=options.num_oov_buckets,
            sequence_length=options.sequence_length,
            max_sentences=source.max_sentences,
            kept_sentences=options.kept_sentences,
            cache_dir=source.path,
        )
        return sample_stack_overflow(parts, options)

    def sizes(self, data: NextWordData) -> dict[str, int]:
        """Returns the sizes of the vocabulary."""
        words = data.vocabulary
        return {"num_known": words.num_known, "num_oov_buckets": words.num_oov_buckets}

    def build_model(
        self, sizes: SimpleNamespace, options: NextWordRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the next word model."""
        import tensorflow as tf

        from fedpersonal.model.partition import PartitionedModel
        from fedpersonal.suite.models.next_word import next_word_lstm
        from fedpersonal.suite.models.tokens import (
            count_positions,
            count_tokens,
            sum_cross_entropy,
            token_accuracy,
        )
        from fedpersonal.suite.readers.vocabulary import EOS

        words, padded = {"num_known": sizes.num_known}, options.padding_in_loss
        return PartitionedModel(
            next_word_lstm(
                **words,
                num_oov_buckets=sizes.num_oov_buckets,
                embedding_dim=options.embedding_dim,
                lstm_units=options.lstm_units,
                projection_dim=options.projection_dim,
            ),
            local_layers=local_layers,
            loss=functools.partial(sum_cross_entropy, with_padding=padded),
            metrics=(
                token_accuracy("accuracy"),
                token_accuracy("accuracy_without_oov", **words),
                token_accuracy("accuracy_without_oov_or_eos", **words, without=(EOS,)),
                token_accuracy("accuracy_among_known", **words, without=(EOS,), among_known=True),
            ),
            lookups={"known_embedding": "known_token", "oov_embedding": "oov_token"},
            label_spec=tf.TensorSpec([None, None], tf.int32),
            example_weight=count_positions if padded else count_tokens,
            unit="tokens",
            # Padding with weight must not be cut off.
            sequence_length=None if padded else lambda features, labels: count_tokens(labels),
        )

    def test(self, experiment: NextWordExperiment, trained: TrainedModel) -> EvaluationReport:
        """Evaluates the test clients, and again on targets after personal words only."""
        data, metric = experiment.data, "accuracy_among_known"
        results = experiment.evaluation(data.test)(trained)
        personal = experiment.evaluation(data.after_personal_words)(trained)
        stages = {"before": personal.before or personal.after, "after": personal.after}
        sums = {f"personal_word_accuracy_{stage}": v[metric] for stage, v in stages.items()}
        totals = {name: pairs.sum(0, keepdims=True) for name, pairs in sums.items()}
        return EvaluationReport(
            results,
            {name: float(share) for name, (share,) in _shares(totals).items()},
            {
                **_shares(sums),
                "num_known_words": results.after[metric][:, 1].astype(np.int64),
                "num_after_personal_words": personal.after[metric][:, 1].astype(np.int64),
            },
        )

    def baselines(self, experiment: NextWordExperiment, part: EvaluationSet) -> dict[str, Baseline]:
        """Returns the metrics of counts of the training clients' words."""
        from fedpersonal.suite.tasks.next_word.counts import word_baselines

        return word_baselines(experiment.data, part)

    def describe(self, experiment: NextWordExperiment) -> dict[str, Any]:
        """Returns the size and the coverage of the vocabulary."""
        options = experiment.options
        return {
            "vocab_size": options.vocab_size,
            "num_oov_buckets": options.num_oov_buckets,
            "vocabulary_coverage": experiment.data.coverage,
        }

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the line that a program prints of its summary."""
        test, name = summary["test"], "accuracy_without_oov_or_eos"
        population = f"{population_text(test)}, {test['num_examples']:,} sentences"
        if name not in test:  # All next words are unknown.
            return [f"{population}: {metrics_text(test, [name])}"]
        stages = before_and_after(test, name, is_personalised=summary["is_personalised"])
        return [f"{population}: {name} {stages}{with_baseline(test, name)}"]


def _shares(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the ratio in each row of (n, 2) sums; NaN where the second is 0."""
    with np.errstate(invalid="ignore"):
        return {name: pairs[:, 0] / pairs[:, 1] for name, pairs in sums.items()}


def _has_local_words(method: type[Method]) -> bool:
    """Returns whether each client has local embeddings of unknown words with a method."""
    has_model = (
        method.copies is not None and method.copies.role == "model"
    ) or method.finetunes is not None
    return method.local_part in ("default_local", "embedding") or has_model


TASK = NextWordTask()
