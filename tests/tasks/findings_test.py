"""What is told of the clients of a run, beside its results."""

from __future__ import annotations

import numpy as np

from fedpersonal.evaluation.evaluate import ClientResults
from fedpersonal.tasks.findings import tell_never_drawn


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
