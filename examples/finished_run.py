"""A run that stops early; its best model is loaded from its folder to predict.

python examples/finished_run.py [folder]

Folders of the commands' runs can be loaded, too: `fp.load_run("results/movielens").trained`.
"""

import sys
import tempfile

import numpy as np

import fedpersonal as fp

# isort: split
import tensorflow as tf

folder = sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()
random = np.random.default_rng(0)
x = random.normal(size=(600, 2)).astype(np.float32)
y = x @ [1.0, -2.0] + np.repeat(random.normal(size=30), 20) + random.normal(0, 0.3, 600)
names = [f"client{i}" for i in range(30)]
data = fp.ClientDataset(names, np.arange(31) * 20, {"x": x}, y.astype(np.float32))
train, validation, test = fp.split_examples(data, seed=0, ordered=False)

layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1, name="line")]
model = fp.PartitionedModel(tf.keras.Sequential(layers), local_layers=["line/bias"])
algorithm = fp.furl(client_optimizer=tf.keras.optimizers.SGD(0.1))
fp.Trainer(model, algorithm, train, clients_per_round=5, batch_size=4).fit(
    rounds=200,
    folder=folder,
    validate=lambda trained: trained.overall(validation),
    rounds_per_eval=5,
    callbacks=[fp.EarlyStopping("eval/loss", patience=3)],
    best="eval/loss",
    progress=False,
).close()

run = fp.load_run(folder, model=model, algorithm=algorithm)
with run.trained as trained:
    print(f"{len(run.metrics)} rounds, the best one is {trained.round_number}")
    print(f"loss on test examples: {trained.overall(test)['loss']:.4f}")
    print(
        "predicted", trained.predict({"x": x[:3]}, client="client0").round(2), "of", y[:3].round(2)
    )
