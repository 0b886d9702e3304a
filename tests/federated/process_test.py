"""The process as TFF and its users see it."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.furl import furl
from fedpersonal.runs.kept import Rounds
from fedpersonal.runs.store import LocalStateStore
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.2)
EXECUTION = Execution(batch_size=2, clients_per_shard=2)


@pytest.fixture(name="model", scope="module")
def _model(dense_model):
    return dense_model()


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    random = np.random.default_rng(1)
    return make_dataset(
        [({"x": random.normal(size=(n, 2))}, random.normal(size=n)) for n in (5, 4, 7)]
    )


def test_a_process_is_used_as_tffs_learning_processes_are(model, dataset):
    tffs = pytest.importorskip("tensorflow_federated")
    algorithm = fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD)
    process = build_process(model, algorithm, execution=EXECUTION, server_optimizer=SGD)
    cohort = make_cohort(model, dataset, [0, 1, 2], execution=EXECUTION)
    output = process.next(process.initialize(), cohort.examples)
    assert sorted(output.metrics) == [
        "loss",
        "num_dropped_updates",
        "num_examples",
    ]
    assert output.state.client_work == 1
    weights = process.get_model_weights(output.state)
    moved = collections.OrderedDict((k, v + 1) for k, v in weights.trainable.items())
    state = process.set_model_weights(
        output.state, tffs.learning.models.ModelWeights(moved, weights.non_trainable)
    )
    assert state.client_work == 1
    for name, value in process.get_model_weights(state).trainable.items():
        np.testing.assert_array_equal(value, weights.trainable[name] + 1)


def test_kept_variables_need_a_store_and_others_have_none(tmp_path, model):
    keeping, forgetting = (
        build_process(model, algorithm, execution=EXECUTION, server_optimizer=SGD)
        for algorithm in (furl(client_optimizer=SGD), furl(client_optimizer=SGD).stateless_twin())
    )
    assert keeping.keeps and not forgetting.keeps
    store = LocalStateStore.open(tmp_path / "store", model.local_variables)
    with pytest.raises(UserError, match="keep local variables and need a LocalStateStore"):
        Rounds(keeping)
    with pytest.raises(UserError, match="keep no local variables; give no LocalStateStore"):
        Rounds(forgetting, store)
    store.close()
