"""A custom Keras model and a custom table, trained with Federated Reconstruction.

python examples/own_model.py [table.csv]

The table has the columns client, x1, x2 and y; without one, a small one is generated. All clients
share a hidden layer. The output layer is local: it never leaves its client, which rebuilds it from
its examples in every round.
"""

import sys
import tempfile

import numpy as np
import pandas as pd

import fedpersonal as fp

# isort: split
import tensorflow as tf

random = np.random.default_rng(0)


def make_up_table() -> str:
    """Writes examples of 100 clients: y is a common function of x times a client's factor."""
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
dataset = fp.clients_from_table(
    table, client_column="client", features={"x": ["x1", "x2"]}, label_column="y"
)
seen, _, unseen = (
    dataset.subset(clients) for clients in fp.split_clients(dataset.num_clients, seed=0)
)

model = fp.PartitionedModel(build_model, local_layers=["own"])
sgd = tf.keras.optimizers.SGD(0.2)
algorithm = fp.fed_recon(
    client_optimizer=sgd, reconstruction_optimizer=sgd, reconstruction_epochs=5
)
trainer = fp.Trainer(model, algorithm, seen, clients_per_round=20, batch_size=5)
print(f"held-out loss before training: {trainer.untrained().overall(unseen)['loss']:.4f}")
trained = trainer.fit(rounds=50, progress=False)
print(f"held-out loss after training: {trained.overall(unseen)['loss']:.4f}")
