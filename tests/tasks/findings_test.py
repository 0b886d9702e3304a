"""What is told of the clients of a run, beside its results."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.evaluation.client_results import ClientResults
from fedpersonal.tasks.findings import check_clients, tell_never_drawn
from fedpersonal.tasks.task import Data, EvaluationSet


def _results(losses, num_examples):
    sums = {"loss": np.stack([np.multiply(losses, num_examples), num_examples], 1)}
    return ClientResults(
        client_ids=np.array(list("abcd"), object),
        num_examples=np.array(num_examples),
        before=sums,
        after=sums,
        predictions=None,
        metrics=(),
    )


def test_those_never_drawn_are_apart():
    results = _results([1.0, 2.0, 8.0, 0.0], [2, 3, 1, 0])
    rounds, never = tell_never_drawn(results, {"a": 3, "x": 7})
    assert rounds.tolist() == [3, 0, 0, 0]
    # Of the other three, the last has nothing to predict.
    assert never["num_clients"] == 2
    np.testing.assert_allclose(never["loss"], (2.0 * 3 + 8.0) / 4)


def test_there_may_be_none():
    rounds, never = tell_never_drawn(_results([1.0] * 4, [1] * 4), dict.fromkeys("abcd", 1))
    assert (rounds.tolist(), never) == ([1, 1, 1, 1], None)


def test_runs_say_what_they_are_tested_on():
    """Other inputs, as another model wants them, are the same test; other labels are not."""

    def hash_of(**changes):
        query = ClientDataset(list("ab"), [0, 2, 3], {"item": [1, 2, 3]}, [4.0, 5.0, 3.0])
        part = EvaluationSet(query, dataclasses.replace(query, **changes))
        algorithm = SimpleNamespace(phases=[SimpleNamespace(data="all")])
        return check_clients(Data("toys", query, part, part), algorithm, None)["test_labels"]

    assert hash_of() == hash_of(features={"user": [0, 0, 1]})
    changes = [{"labels": [4.0, 5.0, 2.0]}, {"offsets": [0, 1, 3]}, {"client_ids": list("ac")}]
    assert len({hash_of(), *(hash_of(**change) for change in changes)}) == 4
