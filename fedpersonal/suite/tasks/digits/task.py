"""The task of handwritten digits: options, a model with a hidden layer, and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedpersonal.methods.method import Layers
from fedpersonal.suite.tasks.digits.data import (
    NUM_DIGITS,
    DigitData,
    Digits,
    digit_baselines,
    read_digits,
    split_digits,
)
from fedpersonal.suite.tasks.digits.options import DigitOptions, DigitRun
from fedpersonal.suite.tasks.figures import unseen_text
from fedpersonal.suite.tasks.task import EvaluationSet, Task
from fedpersonal.training.tested import EvaluationReport

if TYPE_CHECKING:
    from fedpersonal.evaluation.baselines import Baseline
    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.suite.tasks.experiment import Experiment
    from fedpersonal.training.trained import TrainedModel

    DigitExperiment = Experiment["DigitRun", DigitData]

_STYLE = "style"


class DigitTask(Task[DigitRun, Digits, DigitData]):
    """Classification of images of ten digits."""

    name = "digits"
    usage = """FedRep and its rivals on handwritten digits of heterogeneous clients.

fedpersonal digits --method=ditto"""
    extra_options = DigitOptions
    defaults = {
        "method": "fed_rep",
        "total_rounds": 200,
        "clients_per_round": 10,
        "client_batch_size": 8,
        "client_learning_rate": 0.3,
        "local_learning_rate": 0.3,
        "local_epochs": 2,
        "finetuning_learning_rate": 0.3,
        "finetuning_epochs": 20,
        "reconstruction_learning_rate": 0.3,
        "reconstruction_epochs": 20,
        "rounds_per_eval": 50,
    }
    predicts = "Digits that {num_clients} writers wrote in {num_images} images, from the pixels"
    client = "writer"
    layers = Layers(embedding=(_STYLE,), head=("head",), body=("hidden",), table=(_STYLE,))
    has_per_client_rows = True
    evaluation_packing = "stacked"
    examples = "images"

    def read(self, options: DigitRun) -> Digits:
        """Reads the images."""
        return read_digits()

    def split(self, source: Digits, options: DigitRun) -> DigitData:
        """Assigns the images to clients, and splits them."""
        return split_digits(source, options)

    def sizes(self, data: DigitData) -> dict[str, Any]:
        """Returns the image's shape, and the numbers of digits and users."""
        shape = list(data.train.features["image"].shape[1:])
        return {"shape": shape, "num_labels": NUM_DIGITS, "num_users": data.train.num_clients}

    def build_model(
        self, sizes: SimpleNamespace, options: DigitRun, local_layers: Sequence[str]
    ) -> PartitionedModel:
        """Returns the classifier, with an embedding of the client if the method uses one."""
        import tensorflow as tf

        from fedpersonal.model.metrics import class_accuracy
        from fedpersonal.model.partition import PartitionedModel

        method = self.method(options)
        has_table = method.has_table
        has_style = has_table or _STYLE in local_layers or method.finetunes == "embedding"

        def build() -> tf.keras.Model:
            inputs = {"image": tf.keras.Input(sizes.shape, name="image")}
            flat = tf.keras.layers.Flatten()(inputs["image"])
            units = tf.keras.layers.Dense(options.hidden_dim, name="hidden")(flat)
            if has_style:
                inputs["user"] = tf.keras.Input([], dtype=tf.int32, name="user")
                rows = sizes.num_users if has_table else 1
                style = tf.keras.layers.Embedding(rows, options.hidden_dim, "zeros", name=_STYLE)
                units = tf.keras.layers.Add()([units, style(inputs["user"])])
            hidden = tf.keras.layers.ReLU()(units)
            logits = tf.keras.layers.Dense(sizes.num_labels, name="head")(hidden)
            return tf.keras.Model(inputs, logits)

        return PartitionedModel(
            build,
            local_layers=local_layers,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[class_accuracy()],
            lookups={_STYLE: "user"} if has_style else {},
            per_client_tables=[_STYLE] if has_table else [],
            label_spec=tf.TensorSpec([None], tf.int32),
        )

    def baselines(self, experiment: DigitExperiment, part: EvaluationSet) -> dict[str, Baseline]:
        """Returns the accuracy of frequent digits and of nearest images."""
        return digit_baselines(experiment.data, part)

    def test(self, experiment: DigitExperiment, trained: TrainedModel) -> EvaluationReport:
        """Tests seen clients on other images, and unseen clients."""
        from fedpersonal.suite.tasks.running import unseen_summary

        part, unseen = experiment.data.unseen, None
        # A server's table has no row for an unseen client.
        if part.query.num_examples and not experiment.method.has_table:
            results = experiment.evaluation(part)(trained)
            baselines = digit_baselines(experiment.data, part)
            unseen = unseen_summary(experiment, part, results, baselines)
        report = super().test(experiment, trained)
        return EvaluationReport(report.results, description={"unseen": unseen})

    def report(self, summary: Mapping[str, Any]) -> list[str]:
        """Returns the lines that a program prints of its summary."""
        unseen = summary["unseen"]
        return super().report(summary) + (
            [unseen_text(unseen, "accuracy", self.client)] if unseen else []
        )


TASK = DigitTask()
