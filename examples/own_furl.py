"""A custom model in which each client keeps an embedding (FURL): train, evaluate, predict, export.

python examples/own_furl.py [folder]

Started again with the same folder, it resumes where it stopped.
"""

import sys
import tempfile

import numpy as np

import fedpersonal as fp

# isort: split
import tensorflow as tf

random = np.random.default_rng(0)
tastes = random.normal(size=(40, 2))
x = random.normal(size=(40, 30, 2)).astype(np.float32)
data = fp.ClientDataset(
    client_ids=[f"client{i}" for i in range(40)],
    offsets=np.arange(41) * 30,
    features={"x": x.reshape(-1, 2)},
    labels=np.einsum("cnd,cd->cn", x, tastes).reshape(-1).astype(np.float32),
)
train, _, test = fp.split_examples(data, seed=0, ordered=False)


class Taste(tf.keras.layers.Layer):
    """A client's vector, which weights the inputs."""

    def build(self, shape):
        """Creates the vector."""
        self.vector = self.add_weight("vector", [shape[-1]])

    def call(self, inputs):
        """Returns the weighted sum of the inputs."""
        return tf.reduce_sum(inputs * self.vector, -1, keepdims=True)


def build_model() -> tf.keras.Model:
    """Returns the model of one client."""
    inputs = tf.keras.Input([2], name="x")
    mixed = tf.keras.layers.Dense(2, name="shared", kernel_initializer="identity")(inputs)
    return tf.keras.Model({"x": inputs}, Taste(name="taste")(mixed))


model = fp.PartitionedModel(build_model, local_layers=["taste"], metrics=["mae"])
algorithm = fp.furl(client_optimizer=tf.keras.optimizers.SGD(0.1))
trainer = fp.Trainer(model, algorithm, train, clients_per_round=10, batch_size=8)
folder = sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()
with trainer.fit(rounds=80, folder=folder, progress=False) as trained:
    table = trained.evaluate(test)
    print(f"loss before {table['loss_before'].mean():.4f}")
    print(f"loss with their taste {table['loss_after'].mean():.4f}")
    print("predicted", trained.predict({"x": x[0, :3]}, client="client0").round(2))
    trained.export(folder + "/saved_model", "client0")
