"""What tests share; TensorFlow is not imported here, so that tests without it stay quick."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from fedpersonal import runtime

runtime.start()

# A background job is started with Ctrl-C ignored, and so would be the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def make_dataset():
    """Makes a `ClientDataset` of a list with, for each client, (features, labels)."""
    from fedpersonal.datasets.client_dataset import ClientDataset

    def make(clients):
        features, labels = zip(*clients)
        return ClientDataset(
            client_ids=np.array([f"client{i}" for i in range(len(clients))], object),
            offsets=np.cumsum([0] + [len(column) for column in labels]),
            features={
                name: np.concatenate([np.asarray(own[name]) for own in features])
                for name in features[0]
            },
            labels=np.concatenate([np.asarray(column) for column in labels]),
        )

    return make


@pytest.fixture(scope="session")
def draw_ratings(make_dataset):
    """Draws clients with so many ratings each; items repeat within a client's ratings."""

    def draw(counts, *, num_items, seed=0):
        random = np.random.default_rng(seed)
        return make_dataset(
            [
                (
                    {
                        "user": np.full(count, user, np.int32),
                        "item": random.integers(0, num_items, count).astype(np.int32),
                    },
                    random.integers(1, 6, count).astype(np.float32),
                )
                for user, count in enumerate(counts)
            ]
        )

    return draw
