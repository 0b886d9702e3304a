"""What is told of the clients of a run, beside its results."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np

from fedpersonal.data.clients import ClientDataset
from fedpersonal.evaluation.results import ClientResults
from fedpersonal.model.metrics import Metric
from fedpersonal.suite.tasks.checks import attendance_summary, check_clients, count_outliers
from fedpersonal.suite.tasks.figures import before_and_after
from fedpersonal.suite.tasks.task import Data, EvaluationSet
from fedpersonal.training.tested import test_summary as summarize_test


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


def test_a_model_that_nothing_has_personalised_is_told_once():
    test = {"accuracy": 0.0093, "before": {"accuracy": 0.0093}}
    assert before_and_after(test, "accuracy", is_personalised=False) == "0.0093"
    told = before_and_after(test, "accuracy", is_personalised=True)
    assert told == "0.0093 before and 0.0093 after personalisation"


def test_those_never_drawn_are_apart():
    results = _results([1.0, 2.0, 8.0, 0.0], [2, 3, 1, 0])
    columns, told = attendance_summary(results, {"a": [1, 3, 6], "x": [7]}, 8)
    assert columns["rounds"].tolist() == [3, 0, 0, 0]
    np.testing.assert_array_equal(columns["rounds_since"], [2, np.nan, np.nan, np.nan])
    # Of the other three, the last has nothing to predict.
    assert told["never_drawn"]["num_clients"] == 2
    np.testing.assert_allclose(told["never_drawn"]["loss"], (2.0 * 3 + 8.0) / 4)
    assert set(told["rounds_since"].values()) == {2.0}


def test_a_summary_says_how_many_count_and_leaves_out_what_nobody_counts_in():
    """NaN would be no JSON."""
    results = _results([1.0, 2.0, 8.0, 0.0], [2, 3, 1, 0])
    known, weights = np.zeros((4, 2)), np.array([4.0, 0.0, 4.0, 0.0])
    after = {**results.after, "known": known, "some": np.stack([weights / 2, weights], 1)}
    metrics = tuple(Metric(name, None) for name in ("known", "some"))
    results = dataclasses.replace(results, before=after, after=after, metrics=metrics)
    hits = np.array([np.nan, 1.0, np.nan, 0.0])
    found = summarize_test(results, {**results.overall(), "hr@10": 0.5}, {"hr@10": hits})
    assert (found["num_clients"], found["num_clients_without_query"]) == (3, 1)
    assert found["num_clients_of"] == {"known": 0, "some": 2, "hr@10": 2}
    assert found.keys() & {"known", "some", "loss", "hr@10"} == {"some", "loss", "hr@10"}
    assert found["before"].keys() == found["percentiles"].keys() == {"some", "loss"}
    never = attendance_summary(results, {"c": [1]}, 1)[1]["never_drawn"]
    assert never.keys() == {"num_clients", "some", "loss"}
    never = attendance_summary(results, {"a": [1], "c": [1]}, 1)[1]["never_drawn"]
    assert never.keys() == {"num_clients", "loss"}


def test_there_may_be_none():
    attended = dict(zip("abcd", ([1], [2], [3], [1, 3])))
    columns, told = attendance_summary(_results([1.0] * 4, [1] * 4), attended, 3)
    assert columns["rounds_since"].tolist() == [2, 1, 0, 0]
    assert told["never_drawn"] is None and told["rounds_since"]["p50"] == 0.5


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


def test_outliers_are_counted_where_the_first_clients_have_kept_nothing(capsys):
    clients = SimpleNamespace(client_ids=np.arange(150).astype(str))

    def kept_by(names):
        numbers = np.array(names, int)
        sizes = np.select([numbers < 100, numbers < 149], [0.0, 1.0], 1000.0)
        return numbers >= 100, {"user": np.outer(sizes, [3, 4]).astype(np.float32)}

    told = count_outliers(SimpleNamespace(kept_by=kept_by), clients)
    assert told == {"num_outliers": 1}
    assert "1 of 50 clients keep local variables over 100 times" in capsys.readouterr().err
