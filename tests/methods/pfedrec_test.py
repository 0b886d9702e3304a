"""PFedRec against NumPy: a loop over clients and batches, and what a client then predicts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.optimizer import plain_sgd_rate
from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import build_process
from fedpersonal.methods.method import Layers, methods
from fedpersonal.methods.pfedrec import pfedrec
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization
from fedpersonal.runs.kept import Rounds, read_kept
from fedpersonal.runs.store import LocalStateStore

BATCH_SIZE, SCORE_EPOCHS, ITEM_EPOCHS, NUM_ITEMS, DIM = 3, 2, 1, 8, 2
COUNTS, COHORTS = (7, 4, 9), ([0, 1, 2], [1, 2], [0, 2])
RATE, OWN_RATE = 0.7, 0.4
ITEMS, ITEM_BIAS = "item_embedding/embeddings", "item_bias/embeddings"
VECTOR, BIAS = "user_embedding/vector", "user_bias/vector"
EXECUTIONS = {
    "alone": Execution(batch_size=BATCH_SIZE),
    "packed": Execution(batch_size=BATCH_SIZE, clients_per_shard=2),
}


pytestmark = pytest.mark.usefixtures("not_compiled")


def clients():
    random = np.random.default_rng(5)
    for count in COUNTS:
        items = random.integers(0, NUM_ITEMS - 1, count).astype(np.int32)
        yield items, random.integers(0, 2, count).astype(np.float32)


CLIENTS = list(clients())


def new_items():
    random = np.random.default_rng(1)
    return random.normal(size=(NUM_ITEMS, DIM)), np.zeros((NUM_ITEMS, 1))


def step(own, table, batch, *, moves_own):
    """Takes a step on the mean logistic loss, of the score function or of the items."""
    (vector, bias), (rows, biases), (items, labels) = own, table, batch
    scores = rows[items] @ vector + biases[items][:, 0] + bias
    errors = (1 / (1 + np.exp(-scores)) - labels)[:, np.newaxis] / len(items)
    if moves_own:
        change = (errors * rows[items]).sum(0)
        return (vector - OWN_RATE * change, bias - OWN_RATE * errors.sum()), table
    rows, biases = rows.copy(), biases.copy()
    np.add.at(rows, items, -RATE * errors * vector)
    np.add.at(biases, items, -RATE * errors)
    return own, (rows, biases)


def client_round(own, table, client, score_epochs=SCORE_EPOCHS):
    items, labels = CLIENTS[client]
    starts = range(0, len(items), BATCH_SIZE)
    batches = [(items[s : s + BATCH_SIZE], labels[s : s + BATCH_SIZE]) for s in starts]
    for batch in batches * score_epochs:
        own, table = step(own, table, batch, moves_own=True)
    for batch in batches * ITEM_EPOCHS:
        own, table = step(own, table, batch, moves_own=False)
    return own, table


def in_numpy(fresh):
    """Returns the tables after each round, and each client's score function at the end."""
    table, kept, tables = new_items(), {}, []
    for cohort in COHORTS:
        total, change = 0, [0.0, 0.0]
        for client in cohort:
            kept[client], own_table = client_round(kept.get(client, fresh), table, client)
            count = len(CLIENTS[client][0])
            change = [c + count * (new - old) for c, new, old in zip(change, own_table, table)]
            total += count
        table = tuple(old + c / total for old, c in zip(table, change))
        tables.append(table)
    return tables, kept


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_rounds_and_predictions_are_those_of_numpy(execution, make_dataset, tmp_path):
    dataset = make_dataset([({"item": items}, labels) for items, labels in CLIENTS])
    constant = tf.keras.initializers.Constant
    model = PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS,
            embedding_dim=DIM,
            use_biases=True,
            embedding_initializer=constant(new_items()[0]),
            user_initializer=constant([0.3, -0.2]),
        ),
        local_layers=["user_embedding", "user_bias"],
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        lookups={"item_embedding": "item", "item_bias": "item"},
    )
    sgd = tff.learning.optimizers.build_sgdm
    algorithm = pfedrec(
        client_optimizer=sgd(RATE),
        local_optimizer=sgd(OWN_RATE),
        local_only_epochs=SCORE_EPOCHS,
        local_epochs=ITEM_EPOCHS,
    )
    execution = EXECUTIONS[execution]
    process = build_process(model, algorithm, execution=execution, server_optimizer=sgd(1.0))
    store = LocalStateStore.open(tmp_path / "store", model.local_variables)
    rounds = Rounds(process, store)
    state = rounds.initialize()
    tables, kept = in_numpy(fresh=(np.array([0.3, -0.2]), 0.0))
    for indices, expected in zip(COHORTS, tables):
        cohort = make_cohort(
            model, dataset, indices, execution=execution, touched_data=algorithm.touched_data
        )
        state = rounds.next(state, cohort).state
        weights = state.global_model_weights.trainable
        assert sorted(weights) == [ITEM_BIAS, ITEMS]  # The score function is never sent.
        for name, value in zip((ITEMS, ITEM_BIAS), expected):
            np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    known, values = read_kept(store, state, dataset.client_ids.tolist())
    store.close()
    assert known.all()
    for client, (vector, bias) in kept.items():
        np.testing.assert_allclose(values[VECTOR][client], vector, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(values[BIAS][client], [bias], rtol=1e-5, atol=1e-5)
    everything = np.arange(NUM_ITEMS, dtype=np.int32)
    query = make_dataset([({"item": everything}, np.zeros(NUM_ITEMS))] * len(CLIENTS))
    evaluate = build_evaluation(
        model, algorithm.phases[1:], dataset, query, batch_size=BATCH_SIZE, with_kept=True
    )
    found = evaluate(weights, (known, values)).predictions
    for client, own in kept.items():
        _, (rows, biases) = client_round(own, tables[-1], client, score_epochs=0)
        expected = rows @ own[0] + biases[:, 0] + own[1]
        np.testing.assert_allclose(found[client], expected, rtol=1e-5, atol=1e-5)
        assert np.abs(rows - tables[-1][0]).max() > 1e-2


def test_what_a_client_makes_its_own_before_it_predicts_is_the_step_of_a_round():
    method = methods()["pfedrec"]
    options = method.options(client_learning_rate=0.7, local_epochs=3)
    (phase,) = method.finetuning(options, Layers(head=("user_embedding",)))
    assert (phase.variables, phase.epochs) == ("global", 3)
    assert plain_sgd_rate(phase.optimizer) == 0.7
