"""A sweep of a few small runs, killed half way; its choice, by recomputation; its mistakes."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.files import read_json, write_json
from fedpersonal.options import Options, option
from fedpersonal.runs import record as run_config
from fedpersonal.suite.commands import option_flags
from fedpersonal.suite.sweeps import page
from fedpersonal.suite.sweeps.sweep import Sweep
from fedpersonal.suite.sweeps.trials import Validation, write_validation
from fedpersonal.suite.tasks.find import all_tasks
from tests.suite.commands.killing import kill_when

RATES = (0.001, 9.5, 0.1)
ASKED = [
    *("-m", "experiments.sweep", "movielens", "--ratings_file=ratings.csv", "--user_column=who"),
    *("--embedding_dim=3", "--total_rounds=300", "--clients_per_round=4", "--rounds_per_eval=100"),
    *("--rating_offset=0", "--rounds_per_checkpoint=20", "--seeds=2", "--jobs=2", "--runners_up=0"),
    *(f"--grid=client_learning_rate={','.join(map(str, RATES))}", "--output_dir=out"),
]


def is_half_way(out):
    """Tells whether some runs have been validated, and another one is going on."""
    validated = {path.parent for path in out.rglob("validation.json")}
    begun = {p.parent for p in out.rglob("metrics.csv") if p.read_text().count("\n") > 30}
    return len(validated) >= 2 and begun - validated


@pytest.fixture(name="killed", scope="module")
def _killed(tmp_path_factory):
    """The folder of a sweep that was killed half way, and when its files were written."""
    folder = tmp_path_factory.mktemp("sweep")
    # One of the rates is too high for these.
    rows = [f"u{u},i{(u + 2 * i) % 15},{1 + (u * i) % 5}" for u in range(20) for i in range(12)]
    (folder / "ratings.csv").write_text("\n".join(["who,item,rating", *rows]) + "\n")
    kill_when(lambda: is_half_way(folder / "out"), ASKED, folder, folder / "killed.log")
    written = {p: p.stat().st_mtime_ns for p in folder.rglob("validation.json")}
    assert 2 <= len(written) < 6
    return folder, written


@pytest.fixture(name="done", scope="module")
def _done(killed, run_program):
    """Its folder after the same command again, and what that printed."""
    output, errors, status = run_program(*ASKED, cwd=killed[0])
    assert (errors, status) == ("", 0)
    return killed[0], output


def curve(folder, rate, seed):
    path = folder / "out" / f"client_learning_rate={rate}" / f"seed_{seed}" / "metrics.csv"
    return pd.read_csv(path, float_precision="round_trip")


@pytest.mark.exhaustive
def test_the_same_command_goes_on_and_does_nothing_twice(killed, done):
    folder, output = done
    before = killed[1]
    assert f"{6 - len(before)} of 6 runs to train, 2 in parallel" in output
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())
    assert len(list(folder.rglob("validation.json"))) == 6
    for rate in RATES:
        for seed in (0, 1):
            rounds = curve(folder, rate, seed)["round"]
            assert list(rounds) == list(range(1, len(rounds) + 1))
            path = folder / "out" / f"client_learning_rate={rate}" / f"seed_{seed}/validation.json"
            # Divergence ends a run at once.
            assert len(rounds) == 300 or read_json(path, checked=True)["diverged"]


@pytest.mark.exhaustive
def test_the_best_on_validation_clients_is_chosen_and_it_alone_is_tested(done):
    folder, output = done

    def last(rate, seed):
        """The metric after the last round; none of a run that ends before it is validated."""
        return curve(folder, rate, seed).get("eval/rmse", pd.Series([math.nan])).iloc[-1]

    means = {rate: sum(last(rate, seed) for seed in (0, 1)) / 2 for rate in RATES}
    expected = sorted(RATES, key=lambda rate: means[rate] if means[rate] > 0 else math.inf)
    best, second, diverged = expected
    assert means[best] < means[second] and math.isnan(means[diverged])
    page = (folder / "out/sweep.md").read_text()
    assert page.strip() in output
    looked_at = (folder / "out/sweep.html").read_text()
    assert f"Chosen: client_learning_rate={best}." in looked_at and str(folder) not in looked_at
    assert len(re.findall('"name":"client_learning_rate=', looked_at)) == 2 * 4
    assert f"Chosen: **client_learning_rate={best}**" in page
    ranked = re.findall(r"^\| (\d\.[\d.]+) +\| (\S+)( ± [\d.]+)? +\| (\w*)", page, re.MULTILINE)
    assert [float(rate) for rate, _, _, _ in ranked] == expected
    shown = [f"{means[best]:.4f}", f"{means[second]:.4f}", "diverged"]
    assert [mean for _, mean, _, _ in ranked] == shown
    assert [mark for _, _, _, mark in ranked] == ["chosen", "", ""]
    assert f"Diverged, so not chosen: client_learning_rate={diverged} (seed " in page
    for name in ("summary.json", "per_client.csv"):
        tested = {path.parent.parent.name for path in (folder / "out").rglob(name)}
        assert tested == {f"client_learning_rate={best}"}
    assert str(folder / "out/compare.html") in output.splitlines()[-1]
    assert "fed_recon on ratings, 2 seeds" in (folder / "out/compare.html").read_text()
    table = pd.read_csv(folder / "out/sweep.csv", float_precision="round_trip")
    assert list(table["place"].fillna(0)) == [1, 1, 2, 2, 0, 0]
    assert list(table["seed"]) == [0, 1] * 3
    for row in table.itertuples():
        found = last(row.client_learning_rate, row.seed)
        assert row.validation_rmse == found or (pd.isna(found) and "has diverged" in row.diverged)
        is_tested = row.place == 1
        assert pd.notna(row.test_rmse) == is_tested
        if is_tested:
            summary = read_json(folder / "out" / row.run / "summary.json", checked=True)
            assert row.test_rmse == summary["test"]["rmse"]


@pytest.mark.exhaustive
def test_a_finished_sweep_is_only_read_and_its_chosen_command_repeats_a_run(done, run_commands):
    folder, _ = done
    page = (folder / "out/sweep.md").read_text()
    (line,) = re.findall("^    fedpersonal (.*)$", page, re.MULTILINE)
    commands = [["sweep", *ASKED[2:]], [*shlex.split(line), "--seed=1", "--output_dir=again"]]
    modules = ["fedpersonal.suite.tasks.experiment"]
    finished, repeated = run_commands(commands, modules=modules, cwd=folder)
    assert finished[1:] == ["", 0] and "runs to" not in finished[0]
    assert (folder / "out/sweep.md").read_text() == page
    assert repeated[2] == 0, repeated[1]
    rate = re.search("client_learning_rate=([0-9.]+)", line).group(1)
    again = pd.read_csv(folder / "again/metrics.csv", float_precision="round_trip")
    pd.testing.assert_frame_equal(
        again.drop(columns="seconds"),
        curve(folder, rate, 1).drop(columns="seconds"),
        check_exact=True,
    )
    theirs = folder / "out" / f"client_learning_rate={rate}" / "seed_1" / "per_client.csv"
    assert (folder / "again/per_client.csv").read_text() == theirs.read_text()


def make(tmp_path, scores, **changes):
    """Returns a sweep whose runs were validated to these scores, by rate and seed."""
    settings = [{"client_learning_rate": rate} for rate in scores]
    seeds = range(len(next(iter(scores.values()))))
    asked = {"metric": "rmse", "jobs": 1, **changes}
    sweep = Sweep(all_tasks()["movielens"], {"l2": 0.5}, settings, seeds, tmp_path, **asked)
    for trial in sweep.trials:
        score = scores[trial.setting["client_learning_rate"]][trial.seed]
        name = f"seed {trial.seed}"
        metrics = {} if score is None else {sweep.chosen_by: score}
        told = Validation(
            metrics, "" if score is None else name, "the loss is nan" if score is None else ""
        )
        write_validation(trial.run, told)
    return sweep


def order(sweep):
    return [one.setting["client_learning_rate"] for one in sweep.ranked()]


def test_less_or_more_is_better_by_the_metric_and_diverged_settings_come_last(tmp_path):
    scores = {0.1: (3.0, 1.0), 0.2: (1.5, 1.5), 0.3: (0.1, None), 0.4: (9.0, 9.0), 0.5: (2.0, 2.0)}
    # Of equal ones the first.
    sweep = make(tmp_path / "less", scores)
    assert order(sweep) == [0.2, 0.1, 0.5, 0.4, 0.3]
    assert sweep.ranked()[-1].diverged == "seed 1: the loss is nan"
    assert [one.setting["client_learning_rate"] for one in sweep.tested(sweep.ranked())] == [
        0.2,
        0.1,
    ]
    more = make(tmp_path / "more", scores, metric="accuracy", runners_up=9)
    assert order(more) == [0.4, 0.1, 0.5, 0.2, 0.3]
    assert len(more.tested(more.ranked())) == 4


@pytest.mark.parametrize(
    ("scores", "metric", "expected"),
    [
        (
            {0.1: (3.0, 1.0), 0.2: (1.5, 1.5)},
            "rmse",
            "client_learning_rate=0.1, by 0.5000 ± 1.4142, but with only 1 of 2 seeds; the choice "
            "may differ with others.",
        ),
        (
            {0.1: (0.5, 0.25), 0.2: (0.75, 0.5), 0.3: (0.1, None)},
            "accuracy",
            "client_learning_rate=0.1, by 0.2500 ± 0.0000, with each of the 2 seeds.",
        ),
        (
            {0.1: (1.0,), 0.2: (1.5,)},
            "rmse",
            "client_learning_rate=0.2, by 0.5000 with a single seed; the choice may differ with "
            "another seed.",
        ),
    ],
)
def test_the_lead_of_the_chosen_setting_is_told(tmp_path, scores, metric, expected):
    sweep = make(tmp_path, scores, metric=metric)
    told = page._next_best(sweep, sweep.ranked())
    assert told == f"It leads the next best, {expected}"


def test_labels_of_0_and_1_are_chosen_by_their_headline(tmp_path):
    """Four of five labels are 0, and each model says no: accuracy cannot tell them apart."""
    settings = [{"client_learning_rate": rate} for rate in (0.1, 0.2, 0.3)]
    sweep = Sweep(all_tasks()["reddit"], {}, settings, [0], tmp_path)
    sweep.check()
    guesses = {"each user's own rate": {"auc": 0.7}, "no": {"accuracy": 0.8}}
    for trial, area in zip(sweep.trials, (0.55, 0.65, 0.6)):
        metrics = {"loss": 1.0, "accuracy": 0.8, "auc": area}
        write_validation(trial.run, Validation(metrics, "x", guesses=guesses))
    assert sweep.chosen_by == "auc" and order(sweep) == [0.2, 0.3, 0.1]
    best = sweep.ranked()[0]
    assert page._compare_with_baseline(sweep, best) == [
        "The strongest baseline, each user's own rate, reaches auc 0.7000 on the same "
        "validation clients: no setting beats it."
    ]
    better = dataclasses.replace(best, scores=(0.75,))
    assert "the chosen setting beats it" in page._compare_with_baseline(sweep, better)[0]
    # Texts of many labels have no area.
    for trial in sweep.trials:
        write_validation(trial.run, Validation({"accuracy": 0.8}, "x"))
    assert sweep.chosen_by == "accuracy" and page._compare_with_baseline(sweep, best) == []


def test_no_lead_is_told_where_all_others_diverge(tmp_path):
    sweep = make(tmp_path, {0.1: (1.0,), 0.2: (None,)})
    assert page._next_best(sweep, sweep.ranked()) == ""


def test_nothing_is_chosen_where_all_diverge(tmp_path):
    with pytest.raises(UserError, match="every setting diverges; client_learning_rate=0.1: seed 0"):
        make(tmp_path, {0.1: (None,), 0.2: (None,)}).ranked()


def test_settings_of_other_validation_clients_are_refused(tmp_path):
    sweep = make(tmp_path, {0.1: (1.0, 2.0), 0.2: (1.0, 2.0)})
    for trial in sweep.trials:
        assert "validation rmse" in sweep._outcome(trial, "train")
    write_validation(sweep.trials[-1].run, Validation({"rmse": 1.0}, "others"))
    with pytest.raises(
        UserError, match="client_learning_rate=0.1 and client_learning_rate=0.2 are"
    ):
        sweep._outcome(sweep.trials[-1], "train")
    # When all has been validated before, too.
    with pytest.raises(UserError, match="are validated on other clients or examples"):
        sweep.ranked()


def test_a_metric_that_validation_does_not_tell_is_a_mistake(tmp_path):
    sweep = make(tmp_path, {0.1: (1.0,)})
    write_validation(sweep.trials[0].run, Validation({"loss": 1.0, "mae": 2.0}, "seed 0"))
    with pytest.raises(UserError, match="--metric=rmse is no metric of .*; these are: loss, mae."):
        sweep._outcome(sweep.trials[0], "train")


def test_a_folder_with_other_runs_is_refused(tmp_path):
    sweep = make(tmp_path, {0.1: (1.0,)})
    run = sweep.trials[0].run
    config = run_config.merge_config(run.path / "config.json", {**run.config(), "l2": 0.25})
    write_json(run.path / "config.json", config, checked=True)
    with pytest.raises(
        UserError, match="holds a run with other options: l2 was 0.25 and is now 0.5"
    ):
        sweep.check()


class OfEveryType(Options):
    """Options of each type, alone and in lists."""

    switch: bool = option(False, "A switch.")
    count: int = option(0, "A number.")
    rate: float = option(0.0, "A rate.")
    name: str | None = option(None, "A name.")
    switches: tuple[bool, ...] = option((), "Switches.")
    counts: tuple[int, ...] = option((), "Numbers.")
    rates: tuple[float, ...] = option((), "Rates.")
    names: tuple[str, ...] = option((), "Names.")


@pytest.mark.parametrize("seed", range(20))
def test_any_values_come_back_from_their_flags(seed, tmp_path):
    random = np.random.default_rng(seed)
    one = {
        bool: lambda: bool(random.integers(2)),
        int: lambda: int(random.integers(-(10**9), 10**9)),
        float: lambda: float(random.normal() * 10.0 ** random.integers(-30, 8)),
        str: lambda: "".join(random.choice([*"ab,\"'=-#\\é"], random.integers(4))),
    }
    declared = OfEveryType.declarations()
    values = OfEveryType(
        **{
            name: tuple(one[d.kind]() for _ in range(random.integers(4)))
            if d.is_list
            else one[d.kind]()
            for name, d in declared.items()
        }
    ).values()
    flags = [flag for name, value in values.items() for flag in declared[name].flags(value)]
    (tmp_path / "all.flags").write_text("\n".join(flags))
    found = option_flags.read_flagfile(tmp_path / "all.flags", OfEveryType)
    assert OfEveryType(**found).values() == values


def test_names_of_folders_tell_settings_apart(tmp_path):
    values = ["a/b", "a_b", "a b", "x" * 300, "x" * 301, "../up"]
    settings = [{"ratings_file": value} for value in values]
    sweep = Sweep(all_tasks()["movielens"], {}, settings, [0], tmp_path)
    folders = [trial.run.path.parent for trial in sweep.trials]
    assert len(set(folders)) == len(values)
    assert {folder.parent for folder in folders} == {tmp_path}
    assert max(len(folder.name) for folder in folders) < 120
