"""A server that sends each client a different model: FedAMP, with custom rounds.

python examples/own_server.py

Before a round each client receives a weighted mean of the models of all clients in the round, with
higher weights for models near its model (Huang et al., "Personalized Cross-Silo Federated Learning
on Non-IID Data", AAAI 2021, here without the proximal term). The server of FedAMP sees all clients'
models: in this program values that clients keep reach the server, which neither `boundary.json` nor
an audit reports.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile

import numpy as np

import fedpersonal as fp

# isort: split
import tensorflow as tf


class Amp(fp.Method, name="amp", local_variables="kept", copies=fp.PersonalCopies()):
    """Trains a client's personal copy of the model, and no shared variables."""

    def phases(self):
        """Returns the phase."""
        return (self.phase("personal"),)


amp = fp.constructor(Amp)


class AmpRounds(fp.Rounds):
    """Rounds that begin with a mean of clients' models for each client.

    Attributes:
        store: The store of values that clients keep.
        step: FedAMP's alpha.
        width: FedAMP's sigma, the scale of squared distances of models.
    """

    def __init__(self, process, store, *, step, width):
        """Takes the arguments of `fp.Rounds`, alpha and sigma."""
        super().__init__(process, store)
        self.store, self.step, self.width = store, step, width

    def next(self, state, cohort):
        """Runs a round."""
        has_kept, kept = fp.read_kept(self.store, state, cohort.client_ids)
        if not has_kept.any():
            return super().next(state, cohort)
        kept = {name: values[has_kept] for name, values in kept.items()}
        flat = np.concatenate([v.reshape(len(v), -1) for v in kept.values()], axis=1)
        distances = np.square(flat[:, np.newaxis] - flat).sum(-1)
        weights = self.step / self.width * np.exp(-distances / self.width)
        np.fill_diagonal(weights, 0.0)
        np.fill_diagonal(weights, 1.0 - weights.sum(1))
        means = {name: np.tensordot(weights, v, 1) for name, v in kept.items()}
        rows = dict(zip(np.array(cohort.client_ids)[has_kept].tolist(), self.store.pack(means)))
        # Changes would be ignored in a state with the number of the last commit.
        changes = {**state.uncommitted(self.store), **rows}
        mixed = dataclasses.replace(state, round_number=-1, changes=changes)
        output = super().next(mixed, cohort)
        after = dataclasses.replace(output.state, round_number=state.round_number + 1)
        return output._replace(state=after)


def train(trainer: fp.Trainer, folder: str, *, rounds: int, step: float, width: float):
    """Runs the rounds that are missing in a folder, and returns the trained model."""
    trained = trainer.untrained()
    run_folder = fp.RunFolder.open(folder, {"method": "amp", "step": step, "width": width})
    store = fp.LocalStateStore.open(f"{folder}/local_state.sqlite", trainer.model.local_variables)
    loop = fp.run_rounds(
        process=AmpRounds(trainer.process, store, step=step, width=width),
        cohort_fn=trainer.cohort,
        run_folder=run_folder,
        total_rounds=rounds,
        saved_in=fp.StoreCheckpoints(store),
        progress=False,
    )
    kept_by = functools.partial(fp.read_kept, store, loop.state)
    return dataclasses.replace(trained, kept_by=kept_by, round_number=rounds)


if __name__ == "__main__":
    random = np.random.default_rng(0)
    x, tastes = random.normal(size=(30, 12, 4)).astype(np.float32), random.normal(size=(3, 4))
    y = np.einsum("cnd,cd->cn", x, tastes[np.arange(30) % 3]).reshape(-1).astype(np.float32)
    y += random.normal(size=y.shape).astype(np.float32)
    names = [f"client{i}" for i in range(30)]
    data = fp.ClientDataset(names, np.arange(31) * 12, {"x": x.reshape(-1, 4)}, y)
    training, _, test = fp.split_examples(data, seed=0, ordered=False)
    layers = [tf.keras.Input([4], name="x"), tf.keras.layers.Dense(1, name="line")]
    model = fp.PartitionedModel(tf.keras.Sequential(layers))
    algorithm = amp(client_optimizer=tf.keras.optimizers.SGD(0.05), local_epochs=2)
    amp_trainer = fp.Trainer(model, algorithm, training, clients_per_round=30, batch_size=4)
    for amp_step in (0.0, 0.02):
        with tempfile.TemporaryDirectory() as place:
            fitted = train(amp_trainer, place, rounds=20, step=amp_step, width=1.0)
            print(f"loss {fitted.evaluate(test)['loss_after'].mean():.4f} with alpha {amp_step}")
