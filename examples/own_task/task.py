"""Digits as a task of one's own: a hidden layer for all, and a head that may be each client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fedpersonal as fp
from examples.own_task.data import (
    DigitData,
    DigitOptions,
    DigitRun,
    Digits,
    read_digits,
    split_digits,
)
from fedpersonal.data.labelled_texts import most_frequent_labels
from fedpersonal.evaluation.guess import Guess

if TYPE_CHECKING:
    from fedpersonal.tasks.experiment import Experiment


class DigitTask(fp.Task):
    """Which of ten digits an image shows."""

    name = "digits"
    own_options = DigitOptions
    defaults = {
        "method": "fed_rep",
        "total_rounds": 100,
        "clients_per_round": 10,
        "client_batch_size": 8,
        "client_learning_rate": 0.3,
        "local_learning_rate": 0.3,
        "rounds_per_eval": 25,
    }
    layers = fp.Layers(head=("head",), body=("hidden",))
    evaluation_packing = "stacked"
    examples = "images"

    def read(self, options: DigitRun) -> Digits:
        """Reads the images."""
        return read_digits()

    def split(self, source: Digits, options: DigitRun) -> DigitData:
        """Gives the images to clients."""
        return split_digits(source, options)

    def sizes(self, data: DigitData) -> dict[str, Any]:
        """Returns the image's shape and the number of digits."""
        return {"shape": list(data.train.features["image"].shape[1:]), "num_labels": 10}

    def build_model(
        self, sizes: SimpleNamespace, options: DigitRun, local_layers: Sequence[str]
    ) -> fp.PartitionedModel:
        """Returns the classifier."""
        import tensorflow as tf

        from fedpersonal.model.metrics import class_accuracy

        def build() -> tf.keras.Model:
            image = tf.keras.Input(sizes.shape, name="image")
            flat = tf.keras.layers.Flatten()(image)
            hidden = tf.keras.layers.Dense(options.hidden_units, "relu", name="hidden")(flat)
            logits = tf.keras.layers.Dense(sizes.num_labels, name="head")(hidden)
            return tf.keras.Model({"image": image}, logits)

        return fp.PartitionedModel(
            build,
            local_layers=local_layers,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[class_accuracy()],
            label_spec=tf.TensorSpec([None], tf.int32),
        )

    def guesses(self, experiment: Experiment, part: fp.EvaluationSet) -> dict[str, Guess]:
        """Guesses the digit that each client has written most often."""
        chosen = most_frequent_labels(part.support)[part.query.example_clients]
        return {"each client's most frequent digit": Guess.of_labels(part.query, chosen)}

    def test(self, experiment: Experiment, trained: fp.TrainedModel) -> fp.TestReport:
        """Tests clients who took part on other images, and those who never did."""
        unseen = experiment.evaluation(experiment.data.unseen)(trained).overall()
        report = super().test(experiment, trained)
        return fp.TestReport(report.results, description={"unseen": unseen})

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that the binary prints."""
        unseen = f"clients who never took part: accuracy {summary['unseen']['accuracy']:.4f}"
        return [*super().report(summary), unseen]


TASK = DigitTask()
