"""A program that trains in this process starts no other and opens no port."""

from __future__ import annotations

import json

_TRAIN = """
import json
import numpy as np
import psutil
import tensorflow as tf
import fedpersonal as fp

def build():
    x = tf.keras.Input([2], name="x")
    return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(x))

data = fp.ClientDataset(
    client_ids=[f"c{i}" for i in range(6)],
    offsets=np.arange(7) * 4,
    features={"x": np.ones((24, 2), np.float32)},
    labels=np.ones(24, np.float32),
)
model = fp.PartitionedModel(build, local_layers=["own"])
algorithm = fp.furl(client_optimizer=tf.keras.optimizers.SGD(0.1))
trainer = fp.Trainer(model, algorithm, data, clients_per_round=3, batch_size=2)
with trainer.fit(rounds=3, progress=False) as trained:
    trained.evaluate(data)
    me = psutil.Process()
    own = [c.laddr for c in me.net_connections() if c.status == psutil.CONN_LISTEN]
    children = [child.name() for child in me.children(recursive=True)]
print(json.dumps([children, own]))
"""


def test_training_starts_no_process_and_opens_no_port(run_program, tmp_path):
    output, errors, status = run_program("-c", _TRAIN, cwd=tmp_path)
    assert status == 0, errors
    assert json.loads(output.splitlines()[-1]) == [[], []]
    assert not errors, errors
