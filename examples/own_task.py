"""A custom task: the library's digits with another model.

python -m examples.own_task --method=fed_rep
fedpersonal sweep examples.own_task --grid='hidden_dim=16,32'
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import fedpersonal as fp
from fedpersonal.suite.commands import launch
from fedpersonal.suite.tasks.digits.task import DigitRun, DigitTask


class DeepDigits(DigitTask):
    """Classification of images of digits by a network of two hidden layers."""

    name = "deep_digits"
    layers = fp.Layers(head=("head",), body=("hidden", "deeper"))

    def build_model(
        self, sizes: SimpleNamespace, options: DigitRun, local_layers: Sequence[str]
    ) -> fp.PartitionedModel:
        """Returns the classifier."""
        import tensorflow as tf

        from fedpersonal.model.metrics import class_accuracy

        def build() -> tf.keras.Model:
            image = tf.keras.Input(sizes.shape, name="image")
            flat = tf.keras.layers.Flatten()(image)
            hidden = tf.keras.layers.Dense(options.hidden_dim, "relu", name="hidden")(flat)
            deeper = tf.keras.layers.Dense(options.hidden_dim, "relu", name="deeper")(hidden)
            logits = tf.keras.layers.Dense(sizes.num_labels, name="head")(deeper)
            return tf.keras.Model({"image": image}, logits)

        return fp.PartitionedModel(
            build,
            local_layers=local_layers,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[class_accuracy()],
            label_spec=tf.TensorSpec([None], tf.int32),
        )


TASK = DeepDigits()
main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
