"""Verdicts agree with NumPy, and say so where they say nothing."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from fedpersonal.files import write_json
from fedpersonal.report.clients import percentile_rows
from fedpersonal.report.run_data import read_run
from fedpersonal.report.verdict import judge, share_hurt
from fedpersonal.simulation.run_record import RunRecord


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
    path = make_run(tmp_path, clients=6)
    before = np.array([1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    guess = {"rmse_before": before, "rmse_guess": before + 1}
    same = change(path, **guess, rmse_after=before + [0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    assert "within noise" in same.text
    worse = change(path, **guess, rmse_after=before + [0.1, 0.2, 0.1, 0.3, 0.1, 0.1])
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


def test_clients_whose_personalisation_has_no_number_are_hurt(tmp_path, make_run):
    path = make_run(tmp_path, clients=20)
    after = np.where(np.arange(20) % 2, 0.5, [np.nan, np.inf] * 10)
    verdict = change(path, rmse_before=np.ones(20), rmse_after=after)
    assert verdict.interval.difference == pytest.approx(-0.5)
    assert verdict.share_hurt == 0.5
    assert verdict.text.startswith("Personalisation leaves 10 of 20 test clients without a finite")
    assert verdict.text.endswith("; 50 % of them are hurt.")
    rows = percentile_rows(read_run(path))
    assert [row["hurt"] for row in rows if row["stage"] == "change"][0] == "50 %"
    # Who has nothing to predict has no number before either, and does not count.
    nobody = np.where(np.arange(20) < 4, np.nan, 1.0)
    verdict = change(path, rmse_before=nobody, rmse_after=0.5 * nobody)
    assert "16 test clients" in verdict.text and "none of them are hurt" in verdict.text
    nothing = change(path, rmse_after=[np.nan] * 20)
    assert nothing.text == "No client has a finite RMSE."


def test_fewer_than_six_clients_are_no_ground_for_a_claim(tmp_path, make_run):
    path = make_run(tmp_path, clients=5)
    values = {"rmse_guess": np.full(5, 9.0), "rmse_before": np.arange(1, 6)}
    verdict = change(path, **values, rmse_after=np.arange(5))
    assert verdict.interval is None and verdict.share_hurt == 0
    assert verdict.text.startswith("5 test clients, too few to judge by: RMSE from 3.00 to 2.00")
    alone = judge(read_run(make_run(tmp_path / "alone", clients=5, with_before=False)))
    assert alone.interval is None and "too few clients for an interval" in alone.text


@pytest.mark.parametrize(
    ("guess", "starts", "hurt"),
    [
        # Nothing was before.
        (0.985, "The model does not beat the guess: the mean client's accuracy is 0.910, ag", 1.0),
        (0.985, "Personalisation does not beat the guess: the mean client's accuracy is ", 1.0),
        (0.5, "Personalisation helps: the mean client's accuracy is 0.910 (0.0300 before), a", 0.0),
        (0.01, "Personalisation helps: it takes", 0.0),
        (None, "The mean client's accuracy is 0.910 (95 % interval", 0.0),
    ],
)
def test_the_verdict_is_about_the_stronger_of_before_and_the_guess(
    tmp_path, make_run, guess, starts, hurt
):
    """Local variables that nobody has trained are .03, and the model .91."""
    path = make_run(tmp_path, clients=12)
    near = np.linspace(-0.01, 0.01, 12)
    columns = {"accuracy_before": 0.03 + near, "accuracy_after": 0.91 + near}
    if "model" in starts:
        del columns["accuracy_before"]
    if guess is not None:
        columns["accuracy_guess"] = guess + near / 2
    table = pd.read_csv(path / "per_client.csv")[["client", "num_examples"]].assign(**columns)
    table.to_csv(path / "per_client.csv", index=False)
    guesses = {} if guess is None else {"a habit": {"accuracy": guess}}
    summary = {**RunRecord(path).summary, "test": {"guesses": guesses}}
    write_json(path / "summary.json", summary, checked=True)
    run = read_run(path)
    verdict = judge(run)
    assert run.starts_untrained and verdict.text.startswith(starts)
    assert ("a habit" in verdict.text) == (guess is not None)
    assert verdict.share_hurt == hurt
    rows = percentile_rows(run)
    assert ("guess" in [row["stage"] for row in rows]) == (guess is not None)
    unnamed = judge(dataclasses.replace(run, summary={}))
    assert ("the guess" in unnamed.text) or "a habit" not in verdict.text
    if guess is None:
        assert "nothing to compare with" in verdict.text and "helps" not in verdict.text


def test_a_personal_copy_of_a_trained_variable_is_a_start(tmp_path, make_run):
    run = read_run(make_run(tmp_path))
    copies = [{"name": "personal_copy/head/kernel"}, {"name": "personal_mixing"}]
    assert run.starts_untrained and not dataclasses.replace(run, local=copies).starts_untrained


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
