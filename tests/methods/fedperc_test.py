"""Rounds of FedPerC: all executions agree, and only what clients have moves (section 3)."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow_federated as tff

from fedpersonal.client import pooled_batches
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fedperc import fedperc
from fedpersonal.models.language import PERSONAL as PERSONAL_LAYER
from fedpersonal.runs.kept import Rounds, read_kept
from fedpersonal.runs.store import LocalStateStore
from fedpersonal.tasks.utterances.models import build_language_model, freeze

BATCH_SIZE, TIME, NUM_CONTEXTS = 3, 7, 5
COUNTS = (7, 3, 1, 8)
# The contexts of each client; context 4 is nobody's.
OF_CLIENT = ((0,), (1, 2), (0,), (0, 3))
IDS = [f"client{i}" for i in range(len(COUNTS))]
# Partial participation; context 3 is without a client before the last round.
COHORTS = ([0, 1], [2, 1], [3, 0, 2])
PERSONAL = "language_model/personal_embedding/embeddings"
CONTEXT = "language_model/context_embedding/embeddings"
EXECUTIONS = {
    "alone": Execution(batch_size=BATCH_SIZE),
    **{
        packing: Execution(batch_size=BATCH_SIZE, clients_per_shard=2, packing=packing)
        for packing in ("stacked", "pooled")
    },
}


@pytest.fixture(name="model", scope="module")
def _model(tiny_base, tmp_path_factory):
    frozen = freeze(tiny_base, tmp_path_factory.mktemp("frozen"))
    return build_language_model(
        "prefix",
        tiny_base,
        frozen,
        local_layers=[PERSONAL_LAYER],
        num_contexts=NUM_CONTEXTS,
        history_length=1,
    )


@pytest.fixture(name="dataset", scope="module")
def _dataset(tiny_base, make_dataset):
    random = np.random.default_rng(8)

    def client(count, contexts):
        labels = random.integers(0, tiny_base.config.vocab_size, [count, TIME])
        lengths = random.integers(1, TIME + 1, [count, 1])
        labels = np.where(np.arange(TIME) < lengths, labels, -1).astype(np.int32)
        features = {
            "text": np.maximum(labels, 0),
            "user": np.zeros(count, np.int32),
            "context": np.resize(np.array(contexts, np.int32), count),
        }
        return features, labels

    return make_dataset([client(*own) for own in zip(COUNTS, OF_CLIENT)])


class Run:
    """A few rounds, and all that has become of them."""

    def __init__(self, folder, model, dataset, execution):
        algorithm = fedperc(
            client_optimizer=tff.learning.optimizers.build_adam(0.05),
            max_local_steps=4,
            proximal=0.5,
        )
        process = build_process(
            model,
            algorithm,
            execution=execution,
            server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
            seed=3,
        )
        store = LocalStateStore.open(folder / "store", model.local_variables)
        rounds = Rounds(process, store)
        state = rounds.initialize()
        self.contexts = [state.global_model_weights.trainable[CONTEXT]]
        self.personal, self.metrics = [], []
        for indices in COHORTS:
            cohort = make_cohort(model, dataset, indices, execution=execution)
            output = rounds.next(state, cohort)
            state = output.state
            self.contexts.append(state.global_model_weights.trainable[CONTEXT])
            self.metrics.append(output.metrics)
            known, values = read_kept(store, state, IDS)
            self.personal.append(np.where(known[:, None], values[PERSONAL][:, 0], np.nan))
        store.close()


@pytest.fixture(name="runs", scope="module")
def _runs(model, dataset, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # One long utterance a chunk, or two shorter ones.
        patch.setattr(pooled_batches, "CHUNK", 2)
        patch.setattr(model, "chunk_places", 2 * TIME - 2)
        return {
            name: Run(tmp_path_factory.mktemp(name), model, dataset, execution)
            for name, execution in EXECUTIONS.items()
        }


def test_executions_are_equal(runs):
    expected = runs["alone"]
    for name in ("stacked", "pooled"):
        run = runs[name]
        np.testing.assert_allclose(run.contexts, expected.contexts, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(run.personal, expected.personal, rtol=1e-4, atol=1e-4)
        for metrics, others in zip(run.metrics, expected.metrics):
            assert metrics["num_examples"] == others["num_examples"]
            for metric in ("loss", "perplexity"):
                np.testing.assert_allclose(metrics[metric], others[metric], rtol=1e-3)


@pytest.mark.parametrize("name", EXECUTIONS)
def test_only_contexts_and_clients_that_take_part_move(runs, name):
    contexts, personal = runs[name].contexts, [np.full([4, 8], np.nan), *runs[name].personal]
    for cohort, before, after in zip(COHORTS, contexts, contexts[1:]):
        moved = np.abs(after - before).max(axis=1)
        present = sorted({context for client in cohort for context in OF_CLIENT[client]})
        assert np.flatnonzero(moved).tolist() == present and moved[present].min() > 1e-3
    for cohort, before, after in zip(COHORTS, personal, personal[1:]):
        for client in range(4):
            assert np.array_equal(before[client], after[client], equal_nan=True) == (
                client not in cohort
            )
    assert np.isfinite(personal[-1]).all() and len(np.unique(personal[-1], axis=0)) == 4
