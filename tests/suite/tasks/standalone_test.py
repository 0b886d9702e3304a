"""How many passes clients make that train alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fedpersonal as fp
from fedpersonal.suite.tasks import standalone
from fedpersonal.suite.tasks.digits.task import TASK
from fedpersonal.suite.tasks.running import open_experiment, run_experiment


@pytest.fixture(name="curve")
def _curve(monkeypatch):
    """Has digits validate with given accuracies; returns those passes that were tried."""

    def use(values):
        tried = []

        def validate(task, experiment):
            tried.append(experiment.evaluator.finetuning[0].epochs)
            value = values[tried[-1]]
            return lambda trained: type("Results", (), {"overall": lambda: {"accuracy": value}})

        monkeypatch.setattr(type(TASK), "validate", validate)
        return tried

    return use


@pytest.mark.exhaustive(but=("values0-256-256", "values3-4-64"))
@pytest.mark.parametrize(
    ("values", "best", "last"),
    [
        ({1: 0.5, 4: 0.6, 16: 0.7, 64: 0.8, 256: 0.9}, 256, 256),
        ({1: 0.5, 4: 0.4, 16: 0.7, 64: 0.6, 256: 0.6}, 16, 256),
        ({1: 0.5, 4: 0.4, 16: 0.3}, 1, 16),
        ({1: np.nan, 4: 0.4, 16: 0.3, 64: np.nan}, 4, 64),
        ({1: np.nan, 4: np.nan, 16: np.nan}, 1, 16),
    ],
)
def test_the_number_that_validates_best_is_chosen(tiny, curve, values, best, last):
    tried = curve(values)
    experiment = tiny.build(TASK, method="local_only")
    assert experiment.options.standalone_epochs == best
    assert experiment.evaluator.finetuning[0].epochs == best
    found = experiment.client_facts["standalone"]
    assert (found["epochs"], found["metric"]) == (best, "accuracy")
    assert tried == [int(n) for n in found["validation"]] and max(tried) == last


def test_a_number_that_is_given_is_kept(tiny, curve):
    tried = curve({})
    given = tiny.build(TASK, method="local_only", standalone_epochs=3)
    other = tiny.build(TASK, method="fed_avg_finetuning")
    assert not tried and given.evaluator.finetuning[0].epochs == 3
    assert other.evaluator.finetuning[0].epochs == other.options.finetuning_epochs
    assert "standalone" not in {**given.client_facts, **other.client_facts}


def test_without_validation_clients_a_usual_number_is_taken(tiny, curve):
    tried, given = curve({}), tiny.build(TASK, method="local_only", standalone_epochs=1)
    validation = given.data.validation
    empty = dataclasses.replace(validation, query=validation.query.head(0))
    left_open = dataclasses.replace(
        given,
        options=given.options.replace(standalone_epochs=0),
        data=dataclasses.replace(given.data, validation=empty),
    )
    assert standalone.choose_epochs(left_open).evaluator.finetuning[0].epochs == 5
    assert not tried


def test_a_run_says_its_passes_and_opens_with_them(tiny, curve, tmp_path):
    curve({1: 0.5, 4: 0.6, 16: 0.5, 64: 0.5})
    options = tiny.options(TASK, method="local_only")
    source = tiny.source(TASK, options)
    config = {"task": TASK.module, **options.values()}
    experiment, folder = open_experiment(
        TASK, source, options, tmp_path / "run", config=config, may_differ=(), data={}
    )
    summary = run_experiment(experiment, folder, progress=False)
    assert summary["standalone"]["epochs"] == 4
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert "trains alone, in 4 passes: validation accuracy is 0.5000 with 1, 0.6000 with 4," in page
    with fp.load_run(folder.path).trained as trained:
        assert trained.finetuning[0].epochs == 4
