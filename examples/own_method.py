"""A custom method: a list of phases that `Trainer` trains, and that every task has by its name.

python examples/own_method.py

A client keeps its head. In a round it trains the head alone, and then all layers; those below the
head have a separate, slow optimizer. `own_binary.py` has the method as `--method=slow_body`.
"""

import numpy as np

import fedpersonal as fp

# isort: split
import tensorflow as tf


@fp.register
class SlowBody(
    fp.Method,
    name="slow_body",
    title="Slow body",
    extra_options=fp.KeepingOptions,
    local_variables="kept",
    local_part="embedding",
):
    """Trains the head alone, then the head fast and the body slowly."""

    def phases(self):
        """Returns the two phases."""
        head = self.optimizer("local")
        alone = self.phase("local", optimizer=head)
        return alone, self.phase("all", optimizers={"local": head})


slow_body = fp.constructor(SlowBody)

if __name__ == "__main__":
    random = np.random.default_rng(0)
    x, tastes = random.normal(size=(30, 20, 2)).astype(np.float32), random.normal(size=(30, 2))
    y = np.einsum("cnd,cd->cn", x, tastes).reshape(-1).astype(np.float32)
    names = [f"client{i}" for i in range(30)]
    data = fp.ClientDataset(names, np.arange(31) * 20, {"x": x.reshape(-1, 2)}, y)
    train, _, test = fp.split_examples(data, seed=0, ordered=False)

    layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(4, name="body")]
    keras_model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1, name="head")])
    model = fp.PartitionedModel(keras_model, local_layers=["head"])
    sgd, slow = tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.SGD(0.01)
    algorithm = slow_body(client_optimizer=slow, local_optimizer=sgd)
    trainer = fp.Trainer(model, algorithm, train, batch_size=4)
    with trainer.fit(rounds=30, progress=False) as trained:
        table = trained.evaluate(test)
    print(f"loss {table['loss_before'].mean():.4f} with initial heads")
    print(f"loss {table['loss_after'].mean():.4f} with those that clients have kept")
