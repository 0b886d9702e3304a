"""An own method: a list of phases, trained by `Trainer`, and known to every task by its name.

python examples/own_method.py

A client keeps its head. In a round it trains the head alone, and then all layers, those below the
head at a tenth of the rate. `own_binary.py` offers the method as `--algorithm=slow_body`.
"""

import numpy as np

import fedpersonal as fp

# isort: split
import tensorflow as tf


def slow_body(*, head, body, rate) -> fp.Algorithm:
    """Returns the two phases, for the names of the layers."""
    sgd, slow = tf.keras.optimizers.SGD(rate), tf.keras.optimizers.SGD(rate / 10)
    alone = fp.GradientPhase(head, "all", sgd)
    together = fp.GradientPhase("all", "all", sgd, optimizers={name: slow for name in body})
    return fp.Algorithm("slow_body", (alone, together), local_variables="kept")


def build(options: fp.KeepingOptions, layers: fp.Layers) -> fp.Algorithm:
    """Returns the method as a task's options describe it."""
    body = layers.without("embedding")
    return slow_body(head=layers.embedding, body=body, rate=options.local_learning_rate)


fp.register(fp.Method("slow_body", "Slow body", build, fp.KeepingOptions, local_part="embedding"))

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
    algorithm = slow_body(head=("head",), body=("body",), rate=0.1)
    trainer = fp.Trainer(model, algorithm, train, batch_size=4)
    with trainer.fit(rounds=30, progress=False) as trained:
        table = trained.evaluate(test)
    print(f"loss {table['loss_before'].mean():.4f} with initial heads")
    print(f"loss {table['loss_after'].mean():.4f} with those that clients have kept")
