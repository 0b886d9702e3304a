"""Experiments on digits: what the model has, and what a run says of clients seen and unseen."""

from __future__ import annotations

import pytest

from fedpersonal.suite.tasks.digits.task import TASK


@pytest.mark.exhaustive(but=("fed_avg-0",))
@pytest.mark.parametrize(
    ("method", "rows"), [("fed_avg", 0), ("fed_recon", 1), ("centralized_personalized", 16)]
)
def test_only_methods_that_want_one_have_an_embedding_of_the_client(tiny, method, rows):
    """A server's table has a row for each client, and none for those whom it has never seen."""
    finished = tiny.run(TASK, method=method)
    shapes = {v.name: v.shape for v in finished.experiment.model.variables}
    assert shapes.pop("style/embeddings", (0,))[0] == rows and len(shapes) == 4
    lines = TASK.report(finished.summary)
    unseen = finished.summary["unseen"]
    assert len(lines) == 2 - (rows == 16) and bool(unseen) == (rows != 16)
    if unseen:
        assert unseen["num_examples"] == finished.data.unseen.query.num_examples
        assert f"{unseen['accuracy']:.4f}" in lines[1] and "nearest image" in lines[1]
