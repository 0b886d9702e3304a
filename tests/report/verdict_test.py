"""Verdicts agree with NumPy, and say so where they say nothing."""

import numpy as np
import pandas as pd
import pytest

from fedpersonal.report.run_data import read_run
from fedpersonal.report.verdict import judge, share_hurt


def change(path, **columns):
    table = pd.read_csv(path / "per_client.csv", dtype={"client": str})
    table.assign(**columns).to_csv(path / "per_client.csv", index=False, lineterminator="\n")
    return judge(read_run(path))


def test_the_interval_is_that_of_a_bootstrap_over_clients(tmp_path, make_run):
    path = make_run(tmp_path, clients=40)
    table, verdict = pd.read_csv(path / "per_client.csv"), judge(read_run(path))
    gains = (table.rmse_after - table.rmse_before).to_numpy()
    random = np.random.default_rng(7)
    means = random.choice(gains, (4000, len(gains))).mean(1)
    assert verdict.metric == "rmse"
    assert verdict.interval.difference == pytest.approx(gains.mean())
    assert verdict.interval.low == pytest.approx(np.percentile(means, 2.5), abs=0.004)
    assert verdict.interval.high == pytest.approx(np.percentile(means, 97.5), abs=0.004)
    assert verdict.share_hurt == (gains > 0).mean()
    assert verdict.text.startswith("Personalisation helps")
    assert f"{100 * (gains > 0).mean():.0f} % of them are hurt" in verdict.text


def test_a_difference_within_noise_is_called_so(tmp_path, make_run):
    path = make_run(tmp_path, clients=4)
    before = np.array([1.0, 1.1, 1.2, 1.3])
    same = change(path, rmse_before=before, rmse_after=before + [0.1, -0.1, 0.1, -0.1])
    assert "within noise" in same.text
    worse = change(path, rmse_before=before, rmse_after=before + [0.1, 0.2, 0.1, 0.3])
    assert worse.text.startswith("Personalisation hurts")
    assert "100 % of them are hurt" in worse.text


def test_more_accuracy_is_better(tmp_path, make_run):
    path = make_run(tmp_path, clients=3)
    accuracy = np.array([0.1, 0.2, 0.3])
    columns = {"accuracy_before": accuracy, "accuracy_after": accuracy + [0.2, 0.3, -0.01]}
    table = pd.read_csv(path / "per_client.csv")[["client", "num_examples"]].assign(**columns)
    table.to_csv(path / "per_client.csv", index=False)
    verdict = judge(read_run(path))
    assert verdict.metric == "accuracy"
    assert verdict.share_hurt == pytest.approx(1 / 3)


def test_clients_without_a_value_do_not_count(tmp_path, make_run):
    path = make_run(tmp_path, clients=4)
    values = {"rmse_before": [1, 1, 1, 1], "rmse_after": [0.5, 0.6, np.nan, np.inf]}
    verdict = change(path, **values)
    assert verdict.interval.difference == pytest.approx(-0.45)
    assert "2 test clients" in verdict.text
    nothing = change(path, rmse_after=[np.nan] * 4)
    assert nothing.text == "No client has a finite RMSE."


def test_one_client_tells_nothing_of_others(tmp_path, make_run):
    verdict = judge(read_run(make_run(tmp_path, clients=1)))
    assert verdict.interval is None
    assert verdict.text.startswith("One test client")


def test_without_before_the_metric_itself_is_told(tmp_path, make_run):
    path = make_run(tmp_path, clients=30, with_before=False)
    verdict = judge(read_run(path))
    mean = pd.read_csv(path / "per_client.csv").rmse_after.mean()
    assert verdict.interval.difference == pytest.approx(mean)
    assert verdict.interval.low < mean < verdict.interval.high
    assert verdict.share_hurt is None


def test_without_clients_the_rounds_are_told(tmp_path, make_run):
    path = make_run(tmp_path)
    (path / "per_client.csv").unlink()
    rounds = read_run(path).rounds.set_index("round")["eval/rmse"].dropna()
    text = judge(read_run(path)).text
    assert text.startswith("The validation RMSE goes from")
    assert f"{rounds.iloc[-1]:.3f} in round 20" in text
    table = pd.read_csv(path / "metrics.csv")[["round", "seconds"]]
    table.to_csv(path / "metrics.csv", index=False)
    assert "no client was evaluated" in judge(read_run(path)).text


def test_a_failure_comes_first(tmp_path, make_run):
    run = read_run(make_run(tmp_path), failure="Nothing was learned.")
    assert judge(run).text == "The run failed. Nothing was learned."


def test_share_hurt_of_a_metric_that_nobody_knows():
    assert share_hurt("wobble", np.zeros(2), np.ones(2)) is None
