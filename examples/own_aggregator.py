"""A custom aggregator: clients' updates are clipped, and the server adds noise to their mean.

python examples/own_aggregator.py

It can be any factory of `tff.aggregators`. Local layers are not sent to it. With
`privacy=fp.DifferentialPrivacy(...)` in its place, epsilon is computed, too.
"""

import numpy as np

import fedpersonal as fp

# isort: split
import tensorflow as tf
import tensorflow_federated as tff

random = np.random.default_rng(0)
x = random.normal(size=(1000, 2)).astype(np.float32)
levels = np.repeat(random.normal(size=50), 20)
y = (x @ [1.0, -2.0] + levels).astype(np.float32)
names = [f"client{i}" for i in range(50)]
data = fp.ClientDataset(names, np.arange(51) * 20, {"x": x}, y)


def build_model() -> tf.keras.Model:
    """Returns the model of one client: shared slopes, and a local level."""
    inputs = tf.keras.Input([2], name="x")
    return tf.keras.Model({"x": inputs}, tf.keras.layers.Dense(1, name="line")(inputs))


model = fp.PartitionedModel(build_model, local_layers=["line/bias"])
sgd = tf.keras.optimizers.SGD(0.1)
trainer = fp.Trainer(
    model,
    fp.fed_recon(client_optimizer=sgd, reconstruction_optimizer=sgd, weighting="uniform"),
    data,
    aggregator=tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        noise_multiplier=0.1, clients_per_round=20, clip=1.0
    ),
    clients_per_round=20,
    batch_size=5,
)
print("sent by a client:", [c.name for c in trainer.crossings if c.direction == "aggregate"])
trained = trainer.fit(rounds=25, progress=False)
print(f"loss before training: {trainer.untrained().overall(data)['loss']:.4f}")
print(f"loss after training: {trained.overall(data)['loss']:.4f}")
print("slopes", trained.weights["line/kernel"][:, 0].round(1))
