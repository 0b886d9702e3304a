"""TFF's own `build_fed_recon` on the same clients."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.optimizers.named import build_server_optimizer
from fedpersonal.runtime.worker import worker_context
from fedpersonal.tasks.ratings.task import RatingRun


class TffRounds:
    """A side of `side_by_side` that starts from given item vectors; it runs in TFF's worker."""

    def __init__(
        self,
        cohort: Callable[[int], list[tf.data.Dataset]],
        items: np.ndarray,
        build_model: Callable[[], tf.keras.Model],
        options: RatingRun,
    ):
        """Takes what gives a round's clients, the items' vectors, the model and the options."""
        assert options.server_optimizer and options.server_learning_rate  # Settled.
        self.prepare = cohort
        self._context, rates = worker_context(), vars(options)
        self._process = tff.learning.algorithms.build_fed_recon(
            lambda: _reconstruction_model(build_model()),
            loss_fn=tf.keras.losses.MeanSquaredError,
            server_optimizer_fn=build_server_optimizer(
                options.server_optimizer, learning_rate=options.server_learning_rate
            ),
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(rates["client_learning_rate"]),
            reconstruction_optimizer_fn=tff.learning.optimizers.build_sgdm(
                rates["reconstruction_learning_rate"]
            ),
            dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(
                recon_epochs=options.reconstruction_epochs,
                recon_steps_max=options.max_reconstruction_steps,
                post_recon_epochs=options.local_epochs,
                post_recon_steps_max=options.max_local_steps,
                split_dataset=True,
            ),
        )
        start = tff.learning.models.ModelWeights(trainable=[items], non_trainable=[])
        with self._installed():
            self._state = self._process.set_model_weights(self._process.initialize(), start)

    def run(self, prepared: list[tf.data.Dataset]) -> None:
        """Runs a round."""
        with self._installed():
            self._state = self._process.next(self._state, prepared).state

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the items' vectors."""
        with self._installed():
            return self._process.get_model_weights(self._state).trainable

    def _installed(self) -> Any:
        return tff.framework.get_context_stack().install(self._context)


def _reconstruction_model(keras_model: tf.keras.Model) -> tff.learning.models.ReconstructionModel:
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        keras_model=keras_model,
        global_layers=[keras_model.get_layer("item_embedding")],
        local_layers=[keras_model.get_layer("user_embedding")],
        input_spec=collections.OrderedDict(
            x={"item": tf.TensorSpec([None], tf.int32)}, y=tf.TensorSpec([None], tf.float32)
        ),
    )
