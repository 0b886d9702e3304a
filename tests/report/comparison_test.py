"""Runs side by side: by NumPy and pandas what a comparison says, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.statistics import client_sums, paired_bootstrap
from fedpersonal.files import write_json
from fedpersonal.report.comparison import compare, compare_runs
from fedpersonal.report.comparison_page import comparison_page, verdicts, write_page
from fedpersonal.report.run import read_run
from fedpersonal.runs.record import RunRecord
from tests.drawn_run import rewrite


def overall(clients):
    return np.sqrt(np.average(clients["rmse_after"] ** 2, weights=clients["num_examples"]))


def test_differences_are_those_of_pandas(write_run):
    ours = [write_run("fed_recon", seed=s, better_by=0.1) for s in (1, 2, 3)]
    others = [write_run("fed_avg", seed=s) for s in (1, 2, 3)]
    table = compare([*others, *ours]).set_index(["method", "metric"])
    assert list(table.loc["fed_avg"].index) == ["rmse", "accuracy", "loss"]
    row = table.loc[("fed_recon", "rmse")]
    frames = [[pd.read_csv(f / "per_client.csv") for f in folders] for folders in (ours, others)]
    values = [np.array([overall(frame) for frame in of]) for of in frames]
    assert row["value"] == pytest.approx(values[0].mean())
    assert row["value_sd"] == pytest.approx(values[0].std(ddof=1))
    assert row["difference"] == pytest.approx((values[0] - values[1]).mean())
    assert row["difference_sd"] == pytest.approx((values[0] - values[1]).std(ddof=1))
    joined = [
        pd.concat(of).groupby("client")["rmse_after"].mean().rename(name)
        for name, of in zip(("ours", "others"), frames)
    ]
    people = pd.concat(joined, axis=1)
    change = people["ours"] - people["others"]
    assert (row["gained"], row["lost"], row["same"]) == tuple(
        int(chosen.sum()) for chosen in (change < 0, change > 0, change == 0)
    )
    assert row["num_clients"] == len(people) and row["lost"] > 0
    assert row["client_p25"] == pytest.approx(np.percentile(change, 25))
    sums = np.zeros((2, 3, len(people), 2))
    for place, of in enumerate(frames):
        for seed, frame in enumerate(of):
            rows = people.index.get_indexer(frame["client"])
            sums[place, seed, rows] = client_sums(frame["rmse_after"] ** 2, frame["num_examples"])
    found = paired_bootstrap(*sums, finalize=np.sqrt)
    assert (row["low"], row["high"]) == pytest.approx((found.low, found.high))
    assert np.isnan(table.loc[("fed_avg", "rmse"), "difference"])


def test_a_metric_adds_up_as_in_the_summary(write_run):
    """By examples, by other counts, over clients; and as a plain mean where nothing fits."""
    tokens = np.arange(1, 31)
    extra = {"num_tokens": tokens, "word_after": tokens / 50, "hr@10": tokens % 2}
    test = {
        "word": float(np.average(tokens / 50, weights=tokens)),
        "hr@10": float(np.mean(tokens % 2)),
    }
    folders = [write_run(name, columns=extra, test=test) for name in ("a", "b")]
    found = compare(folders).set_index(["method", "metric"])["weighting"]["a"]
    assert found["rmse"] == "examples" and found["word"] == "tokens"
    assert found["hr@10"] == "equal"
    folders = [write_run(n, columns=extra, test={**test, "word": 0.7}) for n in ("c", "d")]
    table = compare(folders).set_index(["method", "metric"])
    assert table.loc[("c", "word"), "weighting"] == "equal"
    assert table.loc[("c", "word"), "value"] == 0.7


def test_clients_who_do_not_count_in_a_metric_are_left_out_of_it_alone(write_run):
    """Of 30 clients, 24 are ranked, of whom 9 have no query set."""
    counts = np.append(np.zeros(9, int), np.arange(1, 22))
    loss = {f"loss_{stage}": np.where(counts, 1.0, np.nan) for stage in ("before", "after")}
    folders = []
    for name, gain in (("a", 0.0), ("b", 0.25)):
        hits = np.where(np.arange(30) < 24, np.arange(30) % 2 / 2 + gain, np.nan)
        columns = {"num_examples": counts, "hr@10_of_50": hits, **loss}
        test = {"hr@10_of_50": float(np.nanmean(hits)), "num_clients": 21, "loss": 1.0}
        folders.append(write_run(name, columns=columns, test=test))
    found = compare(folders, metric="hr@10_of_50").set_index(["method", "metric"])
    row = found.loc[("b", "hr@10_of_50")]
    assert (row["weighting"], row["value"]) == ("equal", pytest.approx(0.5))
    assert (row["num_clients"], row["left_out"], row["gained"]) == (24, 6, 24)
    assert row["difference"] == pytest.approx(0.25)


def test_runs_of_one_method_are_seeds(write_run):
    folders = [write_run("fed_avg", seed=s, options={"data_dir": f"/d{s}"}) for s in (2, 10, 1)]
    folders += [write_run("fed_avg", seed=1, options={"rate": 0.3})]
    first, second = compare_runs(folders).methods
    assert list(first.runs) == [1, 2, 10] and list(second.runs) == [1]
    assert (first.name, second.name) == ("fed_avg (rate=0.1)", "fed_avg (rate=0.3)")
    alone = compare_runs(folders[:3])
    assert verdicts(alone) == ["The runs have no RMSE of a baseline."]
    assert "<h1>fed_avg on toys, 3 seeds" in comparison_page(alone)


def test_seeds_that_only_one_has_are_not_paired(write_run):
    folders = [write_run("a", seed=s) for s in (1, 2)] + [write_run("b", seed=2, better_by=0.2)]
    row = compare(folders).set_index(["method", "metric"]).loc[("b", "rmse")]
    assert (row["paired_seeds"], row["num_seeds"]) == (1, 1)
    pair = [overall(pd.read_csv(f / "per_client.csv")) for f in folders[1:]]
    assert row["difference"] == pytest.approx(pair[1] - pair[0])


NO_MATCH = [
    ("num_users': 30.*num_users': 9", {"about": {"data": {"num_users": 9, "values": "77"}}}),
    ("the methods have no seed in common, seeds 1 of .*run_0; 2 of .*run_1: runs", {"seed": 2}),
    (
        "30 and 30 clients, 0 of them in both .*; evaluate_on is unseen and seen",
        {"options": {"evaluate_on": "seen"}, "names": "z{}"},
    ),
    ("30 and 29 clients, 29 of them in both", {"num_clients": 29}),
    ("their clients' numbers of test examples differ", {"more_examples": 1}),
    ("their test examples differ .test_labels.", {"test_labels": "77"}),
    ("their test examples differ .test_labels.", {"test_labels": None}),
    ("their tasks differ .task is ratings and words", {"options": {"task": "words"}}),
    ("run_1 has no metric of .*run_0; it has hits, loss", {"metrics": ("hits",)}),
    ("are the same run: no option differs, and the seed of both is 1", {"method": "fed_avg"}),
    ("its run has not ended", {"lacks": "summary.json"}),
    ("has no evaluated clients", {"lacks": "per_client.csv"}),
    ("is not the folder of a run", {"lacks": "config.json"}),
    *(
        (
            "is damaged|has no metric 'rmse'|numbers of test examples differ",
            {"columns": {name: values}},
        )
        for name, values in [
            ("num_examples", ["x"] * 30),
            ("num_examples", [-1] * 30),
            ("num_examples", [*range(29), "x"]),
            ("rmse_after", ["x"] * 30),
            ("client", ["u1"] * 30),
            ("num_examples", [np.nan] * 30),
            ("num_examples", [np.inf] * 30),
        ]
    ),
]


@pytest.mark.parametrize(("why", "changes"), NO_MATCH)
def test_what_cannot_be_compared_is_refused_in_one_line(write_run, why, changes):
    changes = {"method": "fed_recon", **changes}
    lacks = changes.pop("lacks", None)
    folders = [write_run("fed_avg"), write_run(**changes)]
    if lacks:
        (folders[1] / lacks).unlink()
    metric = "rmse" if "rmse" in why and "columns" in changes else None
    with pytest.raises(UserError, match=why) as refusal:
        compare(folders, metric=metric)
    assert "\n" not in str(refusal.value) and str(folders[1]) in str(refusal.value)


def scale_a_client(folder):
    table = pd.read_csv(folder / "per_client.csv")
    table.loc[3, "rmse_after"] *= 0.5
    table.to_csv(folder / "per_client.csv", index=False, lineterminator="\n")


def swap_rounds(folder):
    columns, first, second, *others = (folder / "metrics.csv").read_text().splitlines()
    rows = [first.replace("1,", "2,", 1), second.replace("2,", "1,", 1)][::-1]
    (folder / "metrics.csv").write_text("\n".join([columns, *rows, *others]) + "\n")


CHANGED = {"a client's figure": scale_a_client, "the order of rounds": swap_rounds}


@pytest.mark.parametrize("what", CHANGED)
def test_a_table_that_is_not_its_summary_s_is_refused(write_run, what):
    folders = [write_run("fed_avg"), write_run("fed_recon")]
    compare(folders)
    CHANGED[what](folders[1])
    for read in (lambda: compare(folders), lambda: read_run(folders[1])):
        with pytest.raises(UserError, match="is damaged or was changed") as refusal:
            read()
        assert "\n" not in str(refusal.value) and str(folders[1]) in str(refusal.value)


def without_digests(folder):
    """Makes a run's summary one of an earlier version."""
    summary = {k: v for k, v in RunRecord(folder).summary.items() if k != "digests"}
    write_json(folder / "summary.json", summary, checked=True)


WRONG = [
    ("per_client", "rmse_after", np.inf, "no finite number"),
    ("per_client", "rmse_after", "0.3 stars", "no finite number"),
    ("per_client", "rmse_after", np.nan, "29 clients have a number .*summary.json counts 30"),
    ("per_client", "num_examples", np.inf, "no finite number"),
    ("metrics", "train/loss", np.inf, "no finite number"),
    ("metrics", "eval/rmse", "low", "no number"),
]


@pytest.mark.parametrize(("file", "column", "value", "why"), WRONG)
def test_what_is_no_number_is_refused_without_a_digest_too(
    write_run, caplog, file, column, value, why
):
    folders = [write_run("fed_avg"), write_run("fed_recon")]
    without_digests(folders[1])
    compare(folders)
    warnings = [line for line in caplog.messages if "cannot be checked" in line]
    assert len(warnings) == 1 and str(folders[1]) in warnings[0]
    path = folders[1] / f"{file}.csv"
    table = pd.read_csv(path)
    table[column] = table[column].astype(object)
    table.loc[3, column] = value
    table.to_csv(path, index=False)
    with pytest.raises(UserError, match=f"{file}.csv is damaged or was changed.*{why}"):
        compare(folders)


def test_runs_without_a_metric_of_each_client_are_refused_in_one_line(write_run):
    """Those of all clients at once, such as an AUC, tell no differences."""
    folders = [write_run(name, test={"auc": 0.7}) for name in "ab"]
    for folder in folders:
        clients = pd.read_csv(folder / "per_client.csv")[["client", "num_examples"]]
        rewrite(folder, per_client=clients)
    with pytest.raises(UserError, match="run_0 has no per-client metric to compare"):
        compare(folders)


def test_a_comparison_is_of_some_runs_and_by_a_metric_that_they_have(write_run):
    folders = [write_run("a"), write_run("b")]
    many = [write_run(f"m{n}") for n in range(11)]
    for some, why in [
        (folders[:1], "needs at least 2 run folders, not 1"),
        (many, "has at most 10 methods, not 11"),
        ({"x": folders}, "are both named 'x', but differ by more than the seed: method is a and b"),
    ]:
        with pytest.raises(UserError, match=why):
            compare(some)
    # As many seeds as there are.
    many = [write_run(name, seed=seed) for name in "ab" for seed in range(1, 7)]
    named = compare({"first": many[0], None: many[6:], "second": many[:2]}, metric="rmse")
    assert [*named["method"][::3]] == ["first", "b", "second"]
    assert [*named["num_seeds"][::3]] == [1, 6, 2]
    with pytest.raises(UserError, match="has no metric 'auc'; it has rmse, accuracy, loss"):
        compare(folders, metric="auc")
    assert compare(folders, metric="accuracy")["metric"][0] == "accuracy"


def test_clients_without_a_number_are_left_out(write_run):
    values = np.linspace(0.5, 1, 30)
    values[[3, 4]] = np.nan
    folders = [write_run("a"), write_run("b", columns={"rmse_after": values})]
    row = compare(folders).set_index(["method", "metric"]).loc[("b", "rmse")]
    assert (row["num_clients"], row["left_out"]) == (28, 2)
    assert np.isfinite(row["difference"])
    # They lose, and whoever calls the rest better says so.
    assert row["gained"] + row["lost"] + row["same"] == 30
    assert row["lost"] == 2 + (values > pd.read_csv(folders[0] / "per_client.csv").rmse_after).sum()
    back = compare(folders[::-1]).set_index(["method", "metric"]).loc[("a", "rmse")]
    assert (back["gained"], back["lost"]) == (row["lost"], row["gained"])
    told, _ = verdicts(compare_runs(folders))
    assert "which is better for clients with a finite metric by both" in told
    assert told.endswith(f"{row['lost']:.0f} lose.")


def test_a_client_whom_several_seeds_leave_without_a_number_loses_once(write_run):
    folders = [write_run("a", seed=s) for s in (1, 2)]
    frames = [pd.read_csv(folder / "per_client.csv") for folder in folders]
    shared = sorted({*frames[0]["client"]} & {*frames[1]["client"]})[0]
    for seed, frame in zip((1, 2), frames):
        values = frame["rmse_after"].where(frame["client"] != shared) - 0.1
        folders.append(write_run("b", seed=seed, columns={"rmse_after": values}))
    row = compare(folders).set_index(["method", "metric"]).loc[("b", "rmse")]
    people = {*frames[0]["client"], *frames[1]["client"]}
    assert (row["gained"], row["lost"], row["left_out"]) == (len(people) - 1, 1, 1)


def test_few_clients_are_no_ground_for_a_verdict(write_run):
    folders = [write_run(n, num_clients=5, better_by=b) for n, b in (("a", 0), ("b", 0.5))]
    comparison = compare_runs(folders)
    assert "for 5 clients, too few to judge by" in verdicts(comparison)[0]
    assert ", too few clients<" in comparison_page(comparison)
    row = comparison.table().set_index(["method", "metric"]).loc[("b", "rmse")]
    assert np.isnan(row["low"]) and np.isnan(row["high"]) and row["within_noise"]


def test_the_guess_and_metrics_of_all_clients_at_once_stand_beside(write_run):
    guesses = {"a habit": {"accuracy": 9.0, "auc": 0.7}, "nothing": {"accuracy": 0.1, "rmse": 9.0}}
    folders = [
        write_run(name, better_by=area / 10, test={"auc": area, "guesses": guesses})
        for name, area in (("a", 0.6), ("b", 0.8))
    ]
    comparison = compare_runs(folders, metric="accuracy")
    said = "The strongest baseline, a habit, reaches accuracy 9.0000: no method beats it."
    assert verdicts(comparison)[-1] == said
    said = "The strongest baseline, nothing, reaches RMSE 9.0000."
    assert verdicts(compare_runs(folders))[-1] == said
    page = comparison_page(comparison)
    assert ">AUC</th>" in page and "0.8000" in page and "0.7000, a habit" in page
    table = compare(folders).set_index(["method", "metric"])
    row = table.loc[("b", "auc")]
    assert (row["value"], row["guess"], row["guess_value"]) == (0.8, "a habit", 0.7)
    assert np.isnan(row["difference"]) and row["weighting"] == ""


def test_where_better_is_not_known_nobody_gains(write_run):
    folders = [write_run(n, better_by=b, metrics=("hits",)) for n, b in (("a", 0), ("b", 0.1))]
    comparison = compare_runs(folders, metric="hits")
    assert comparison.rows["b", "hits"]["gained"] is None
    assert "gain" not in verdicts(comparison)[0]


def test_the_verdict_tells_noise_from_a_difference(write_run):
    base, better = write_run("a"), write_run("b", better_by=0.1)
    noisy = write_run("c", better_by=0.0)
    told = verdicts(compare_runs([base, better, noisy]))
    assert "RMSE (pooled over examples) of b is 0." in told[0]
    assert "lower than that of a, which is better" in told[0]
    assert "RMSE (pooled over examples) of c" in told[1]
    assert "than that of a, which is within noise" in told[1]
    alone = [write_run(name, num_clients=1) for name in ("d", "e")]
    assert "for a single client, too few to judge by" in verdicts(compare_runs(alone))[0]
    assert "higher than that of b, which is worse" in verdicts(compare_runs([better, base]))[0]


def test_the_verdict_says_which_mean_it_is_of(write_run):
    hits = np.arange(30) % 2
    folders = [
        write_run(n, columns={"hr@10": hits * sign}, test={"hr@10": float(hits.mean()) * sign})
        for n, sign in (("a", 1.0), ("b", 0.5))
    ]
    told = {m: verdicts(compare_runs(folders, metric=m))[0] for m in ("rmse", "hr@10")}
    assert told["rmse"].startswith("RMSE (pooled over examples) of b is")
    assert told["hr@10"].startswith("HR@10 (mean over clients) of b is 0.2500 lower")


def read_data(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page)[1])


def test_bands_are_means_and_deviations_and_dots_are_clients_of_both(write_run):
    folders = [write_run("a", seed=s) for s in (1, 2, 3)] + [write_run("b", seed=1, better_by=0.1)]
    data = read_data(comparison_page(compare_runs(folders), show_clients=True))
    panels = data["curves"]["panels"]
    assert [p["label"] for p in panels][:2] == ["RMSE, validation", "accuracy, validation"]
    band, single = next(p for p in panels if p["label"] == "loss, training")["series"]
    y = np.stack([pd.read_csv(folder / "metrics.csv")["train/loss"] for folder in folders[:3]])
    assert band["round"] == list(range(1, 21)) and band["seconds"][-1] == 10.0
    assert band["bytes"][-1] == 20 * 1500 * 10
    for name, sign in (("low", -1), ("y", 0), ("high", 1)):
        np.testing.assert_allclose(band[name], y.mean(0) + sign * y.std(0, ddof=1), rtol=1e-4)
    assert "low" not in single and single["color"] != band["color"]
    dots = data["dots"]
    choice = dots["choices"][0]
    assert choice["label"] == "RMSE: b against a" and choice["lower"]
    frames = [pd.read_csv(folders[i] / "per_client.csv").set_index("client") for i in (0, 3)]
    for frame, axis in zip(frames, ("x", "y")):
        expected = frame["rmse_after"].loc[dots["names"]]
        np.testing.assert_allclose(choice[axis]["values"], expected, rtol=1e-3)
    assert dots["size"]["values"] == frames[0]["num_examples"].loc[dots["names"]].tolist()
    gains = np.subtract(choice["x"]["values"], choice["y"]["values"])
    assert gains[0] == pytest.approx(gains.max())


def test_what_others_named_is_text_and_clients_are_named_on_demand(write_run, tmp_path):
    hostile = '"</script><script>alert(1)</script>|\n\u202e\x1b[31m'
    columns = {"client": [hostile, "z" * 10**6, *(f"secret{n}" for n in range(28))]}
    options = {"note": hostile, "big": "y" * 10**6, "ratings_file": "/home/someone/r.csv"}
    folders = [
        write_run("a", columns=columns),
        write_run(hostile, columns=columns, options=options),
    ]
    comparison = compare_runs(folders)
    paths = write_page(comparison, tmp_path / "out" / "c.html")
    assert [path.name for path in paths] == ["c.html", "c.csv"]
    page, rows = (path.read_text(encoding="utf-8") for path in paths)
    assert not [t for t in ("secret", "someone", str(tmp_path)) if t in page or t in rows]
    assert len(list(csv.DictReader(io.StringIO(rows)))) == 6
    named = comparison_page(comparison, show_clients=True)
    assert "secret7" in named
    for written in (page, named):
        assert written.count("<script") == 2 and len(written) < 100_000
        assert "\u202e" not in written and "\x1b" not in written
    names = read_data(page)["dots"]["names"]
    assert names == [f"client {rank}" for rank in range(1, 31)]


def test_what_sends_nothing_has_no_bytes(write_run):
    page = comparison_page(compare_runs([write_run("fed_avg"), write_run("centralized")]))
    federated, central = read_data(page)["curves"]["panels"][0]["series"]
    assert "bytes" in federated and "bytes" not in central
