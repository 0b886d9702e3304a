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
from tensorflow_federated import learning

from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.datasets.client_dataset import ClientDataset
from fedpersonal.datasets.splits import split_clients
from fedpersonal.evaluation import evaluate_clients, split_support_query
from fedpersonal.execution import pack_cohort
from fedpersonal.partition import PartitionedModel
from fedpersonal.training import build_packed_process

random = np.random.default_rng(0)


def make_up_table() -> str:
    """Writes the examples of 100 clients: each has a scale of its own, and x matters alike."""
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


table = pd.read_csv(sys.argv[1] if sys.argv[1:] else make_up_table()).sort_values("client")
names, counts = np.unique(table["client"], return_counts=True)
features = {"x": table[["x1", "x2"]].to_numpy()}
dataset = ClientDataset(names, np.append(0, np.cumsum(counts)), features, table["y"].to_numpy())
train, _, test = split_clients(len(names), seed=0)
support, query = split_support_query(dataset.subset(test), batch_size=5)

model = PartitionedModel(build_model, local_layers=["own"])
sgd, size = learning.optimizers.build_sgdm(0.2), {"clients": 10, "batch_size": 5}
algorithm = fed_recon(client_optimizer=sgd, reconstruction_optimizer=sgd, reconstruction_epochs=5)
process = build_packed_process(
    model, algorithm, server_optimizer=learning.optimizers.build_sgdm(1.0), **size
)
state = first_state = process.initialize()
for _ in range(50):
    cohort = random.choice(train, min(20, len(train)), replace=False)
    state = process.next(state, pack_cohort(model, dataset, cohort, **size)).state

# Each test client's own layer is built from half of its batches, and predicts the others.
for when, weights in (("before", first_state), ("after", state)):
    shared = weights.global_model_weights.trainable
    results = evaluate_clients(model, algorithm.personalization, shared, support, query, **size)
    print(f"held-out loss {when} training: {results.overall()['loss']:.4f}")
