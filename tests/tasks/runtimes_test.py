"""A round in this process and one in TFF's worker lead to the same, for every task and method."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import tensorflow_federated as tff

from fedpersonal.local_state.rounds import Rounds
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.runtime import worker as tff_worker
from fedpersonal.runtime.local import LocalContext
from fedpersonal.tasks.task import all_tasks

TASKS = all_tasks()


def _cases():
    """Pairs each method with the task, of those that offer it, that has fewest so far."""
    pairs = {name: [] for name in TASKS}
    offered = sorted(
        {(len(_offering(method)), method) for t in TASKS.values() for method in t.methods}
    )
    for _, method in offered:
        pairs[min(_offering(method), key=lambda name: len(pairs[name]))].append(method)
    return [(task, method) for task, methods in pairs.items() for method in methods]


def _offering(method):
    return [name for name, task in TASKS.items() if method in task.methods]


@pytest.fixture(name="worker", scope="module")
def _worker():
    # One of this file's own, which ends with it: after so many computations it is large.
    with mock.patch.object(tff_worker, "_workers", {}):
        yield tff_worker.worker_context()
        tff_worker._workers[False].end()


def _round(context, trainer, folder, cohort=None):
    """Returns all that a round leads to; what clients keep is ordered by client."""
    store = None
    if trainer.algorithm.keeps:
        store = LocalStateStore.open(folder / "store.sqlite", trainer.model.local_variables)
    rounds = Rounds(trainer.process, store)
    with tff.framework.get_context_stack().install(context):
        state, metrics = rounds.next(rounds.initialize(), cohort or trainer.cohort(0))
    kept = {}
    if store is not None:
        kept = {k: np.frombuffer(row, np.uint8) for k, row in sorted(state.changes.items())}
        store.close()
    return dict(state.global_model_weights.trainable), dict(metrics), kept


@pytest.mark.parametrize(("task", "method"), _cases())
def test_a_round_leads_to_the_same(tiny, worker, tmp_path, task, method):
    experiment = tiny.build(TASKS[task], algorithm=method)  # Nobody shares it: not kept.
    if not experiment.method.trains:
        pytest.skip("it runs no round")
    results = []
    for name, context in (
        ("local", LocalContext(pytest.fail, compile="never")),
        ("worker", worker),
    ):
        folder = tmp_path / name
        folder.mkdir()
        results.append(_round(context, experiment.trainer, folder))
    (weights, metrics, kept), (their_weights, their_metrics, their_kept) = results
    # The worker's tanh, exp and the like are compiled for other processors.
    exactly = task == "movielens"
    for found, expected in ((weights, their_weights), (metrics, their_metrics)):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if key.endswith("key/bias"):
                continue  # A softmax is blind to it: its gradient is noise, which Adam scales up.
            # Adam scales up what is hardly a gradient: that of factors which start at zero.
            share = 1e-3 if "lora_b" in key else 1e-4
            near = share * float(np.abs(value).max(initial=1e-3))
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=near, err_msg=key)
            assert not exactly or np.array_equal(found[key], value), key
    assert kept.keys() == their_kept.keys()
    if exactly:
        for key, row in their_kept.items():
            np.testing.assert_array_equal(kept[key], row)


def test_every_method_has_its_case():
    assert {method for _, method in _cases()} == {m for t in TASKS.values() for m in t.methods}
    assert {task for task, _ in _cases()} == set(TASKS)


def test_lost_clients_keep_the_same(tiny, worker, tmp_path):
    """A round runs twice then: for those who report, and for those who do not."""
    experiment = tiny.built(
        TASKS["movielens"], algorithm="furl", lost_clients_keep=True, lost_update_rate=0.4
    )
    cohort = next(c for c in map(experiment.trainer.cohort, range(9)) if c.lost)
    results = []
    for name, context in (
        ("local", LocalContext(pytest.fail, compile="never")),
        ("worker", worker),
    ):
        (tmp_path / name).mkdir()
        results.append(_round(context, experiment.trainer, tmp_path / name, cohort))
    (weights, _, kept), (their_weights, _, their_kept) = results
    assert {*cohort.client_ids, *cohort.lost.client_ids} == set(kept)
    for found, expected in ((weights, their_weights), (kept, their_kept)):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], value) for key, value in expected.items())


def test_an_audit_holds_in_the_worker(tiny, worker):
    trainer = tiny.built(TASKS["movielens"], algorithm="furl").trainer
    with tff.framework.get_context_stack().install(worker):
        audit = trainer.audit(rounds=1)
    assert audit.holds and len(audit.verdicts) == 5
