"""An own Keras model and an own table, trained with Federated Reconstruction.

python examples/own_model.py [table.csv]

The table has the columns client, x1, x2 and y; without one, a small one is made up. All clients
share a hidden layer. The output layer is each client's own: it never leaves the client, and is
rebuilt from its examples in every round.
"""

# ruff: noqa: E402
import sys
import tempfile

from fedpersonal import runtime

runtime.start()  # Before TensorFlow is imported, to silence it.

import numpy as np
import pandas as pd
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal import api as fp

random = np.random.default_rng(0)


def make_up_table() -> str:
    """Writes the examples of 100 clients: what x says is common to all, how much is not."""
    client, x = np.repeat(np.arange(100), 20), random.normal(size=(2000, 2))
    y = random.normal(size=100)[client] * np.tanh(x[:, 0] + 2 * x[:, 1])
    path = tempfile.mkdtemp() + "/table.csv"
    pd.DataFrame({"client": client, "x1": x[:, 0], "x2": x[:, 1], "y": y}).to_csv(path)
    return path


def build_model() -> tf.keras.Model:
    """Returns the model of one client."""
    x = tf.keras.Input([2], name="x")
    hidden = tf.keras.layers.Dense(4, activation="tanh", name="shared")(x)
    return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(hidden))


table = pd.read_csv(sys.argv[1] if sys.argv[1:] else make_up_table())
columns = {"client_column": "client", "features": {"x": ["x1", "x2"]}, "label_column": "y"}
dataset = fp.clients_from_table(table, **columns)
train, _, test = fp.split_clients(dataset.num_clients, seed=0)

model = fp.PartitionedModel(build_model, local_layers=["own"])
sgd, execution = tff.learning.optimizers.build_sgdm, fp.Execution.for_cohorts(20, batch_size=5)
rates = {"client_optimizer": sgd(0.2), "reconstruction_optimizer": sgd(0.2)}
recon = fp.fed_recon(**rates, reconstruction_epochs=5)
process = fp.build_process(model, recon, execution=execution, server_optimizer=sgd(1.0))


def held_out_loss(weights) -> float:
    """Builds the test clients' own layers from half of their batches and predicts the others."""
    halves = fp.split_support_query(dataset.subset(test), batch_size=5)
    results = fp.evaluate_clients(model, recon.personalization, weights, *halves, batch_size=5)
    return results.overall()["loss"]


state = process.initialize()
print(f"held-out loss before training: {held_out_loss(state.global_model_weights.trainable):.4f}")
for _ in range(50):
    cohort = fp.make_cohort(model, dataset, random.permutation(train)[:20], execution=execution)
    state = process.next(state, cohort.examples).state
print(f"held-out loss after training: {held_out_loss(state.global_model_weights.trainable):.4f}")
