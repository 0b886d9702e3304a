"""A binary's run of each task, opened again from its folder alone."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import fedpersonal as fp
from fedpersonal.tasks.task import all_tasks

TASKS = all_tasks()


@pytest.mark.parametrize("task", TASKS)
def test_a_run_opens_with_its_model(tiny, task, tmp_path):
    finished = tiny.run(TASKS[task], algorithm=tiny.main[task])
    experiment, options = finished.experiment, finished.experiment.options
    # A binary would have written its options.
    path = shutil.copytree(finished.path, tmp_path / "run", ignore=shutil.ignore_patterns(".lock"))
    (path / "config.json").unlink()
    (path / "metrics.csv").rename(tmp_path / "metrics.csv")
    fp.RunFolder.open(path, {"task": type(TASKS[task]).__module__, **options.values()})
    (tmp_path / "metrics.csv").rename(path / "metrics.csv")

    run = fp.load_run(path)
    assert run.summary == finished.summary and len(run.metrics) == 2
    with run.trained as trained:
        for name, value in finished.trained.weights.items():
            np.testing.assert_array_equal(trained.weights[name], value, err_msg=name)
        support, query = experiment.task.for_evaluation(trained.model, finished.data.validation)
        results = trained.results(query, support=support)
        expected = experiment.evaluation(finished.data.validation)(trained)
        assert list(results.client_ids) == list(expected.client_ids)
        # Between rounds, seen clients that have kept nothing predict with initial values.
        same = np.ones(len(results.client_ids), bool)
        if experiment.has_kept(finished.data.validation):
            same, _ = trained.kept_by(query.client_ids)
        assert same.any()
        found, wanted = results.after["loss"], expected.after["loss"]
        np.testing.assert_allclose(found[same], wanted[same], rtol=1e-3, atol=1e-4)
        client = int(np.flatnonzero(same & (query.counts > 0))[0])
        features, labels = query.client(client)
        predictions = trained.predict(features, client=query.client_ids[client], support=support)
        assert len(predictions) == len(labels) and np.isfinite(predictions).all()
    with pytest.raises(fp.UserError, match="knows its model .*: give load_run the folder alone"):
        _ = fp.load_run(path, algorithm=experiment.algorithm).trained
