"""The page of a run: as it was looked at once, and by NumPy and pandas what it says."""

from __future__ import annotations

import dataclasses
import html
import html.parser
import json
import os
import pathlib
import re
import shlex
import types

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.files import pack_arrays, write_json
from fedpersonal.report.charts import boundary_groups, curve_panels, embedding_map, thin
from fedpersonal.report.clients import MOST_DOTS, dots, judge, percentile_rows, share_worse
from fedpersonal.report.comparison import compare_runs
from fedpersonal.report.comparison_page import comparison_page
from fedpersonal.report.page import (
    changed_options,
    command,
    key_figures,
    report_page,
    write_report,
)
from fedpersonal.report.run import format_number, format_percent, format_size, read_run
from fedpersonal.report.samples import (
    ClientItems,
    Item,
    Recommendations,
    add_texts,
    write_recommendations,
)
from fedpersonal.runs.record import RunRecord, read_about
from fedpersonal.suite.tasks.labels.task import TASK as DOCUMENTS
from tests.drawn_run import rewrite

GOLDEN = pathlib.Path(__file__).parent / "golden"
HOSTILE = [
    *("<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>"),
    *("\"'`&amp;{{ 7 * 7 }}", "x" * 1_000_000, "\u202egnp.exe\u2066", "שלום עולם"),
    *("\u2028\x00\ud7ff", "=1+1"),
]


class Parsed(html.parser.HTMLParser):
    """A page.

    Attributes:
        elements: Each element's name and attributes.
        sections: The texts of each section by its id; those of the first lines are `header`.
        data: The data that scripts draw.
    """

    def __init__(self, page):
        super().__init__()
        self.elements, self.sections, self.data = [], {}, None
        self._section, self._inside = "header", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        if tag in ("script", "style"):
            self._inside.append(attrs.get("id"))
        if tag in ("section", "footer"):
            self._section = attrs.get("id", tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, text):
        if self._inside == ["data"]:
            self.data = json.loads(text)
        elif not self._inside and text.strip():
            self.sections.setdefault(self._section, []).append(" ".join(text.split()))


def shared_page(folder, make_run):
    return report_page(read_run(make_run(folder, seed=1)))


def named_page(folder, make_run):
    path = make_run(folder, seed=2, method="fed_avg", clients_per_round=7, data_dir="/home/x/y")
    add_texts(path, "Ann", "harbour", "We", ["We go"], rounds=20)
    add_texts(path, "Bob", "harbour", "We", ["We stay", "<b>"], rounds=20)
    top = [Item("<i>film</i>", 3.25, True, 5.0), Item("x" * 100, 2.0)]
    items = ClientItems("Ann", "most helped", 1.5, 0.5, [Item("Sea", rating=4.5)], top)
    write_recommendations(path, Recommendations("rmse", [items]), rounds=20)
    table = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    (path / "model.npz").write_bytes(pack_arrays({"global item/embeddings": table}))
    test = {
        **{"rmse": 0.9, "hr@10": 0.5, "num_clients": 12, "num_clients_of": {"hr@10": 10}},
        **{"before": {"rmse": 1.2}, "guesses": {"chance": {"hr@10": 0.25}, "mean": {"rmse": 1.5}}},
        **{"never_drawn": {"num_clients": 10, "rmse": 1.25}, "num_clients_without_query": 4},
        "rounds_since": {"p50": 6.0, "p95": 31.5},
    }
    privacy = {"draw": "public", "epsilon_public_draw": 9.5, "epsilon_secret_draw": 2.25}
    change_summary(path, test=test, privacy=privacy)
    return report_page(read_run(path), show_clients=True)


def failed_page(folder, make_run):
    path = make_run(folder, seed=3)
    for name in ("summary.json", "per_client.csv", "boundary.json", "model.json"):
        (path / name).unlink()
    return report_page(read_run(path, failure="The test loss is not finite."))


def compared_page(write_run):
    folders = [write_run("fed_avg", seed=s) for s in (1, 2)]
    folders += [write_run("fed_recon", seed=s, better_by=0.1) for s in (1, 2)]
    return comparison_page(compare_runs(folders))


def without_numbers(data):
    """Returns what scripts draw with lists of numbers as their lengths; others compare these."""
    if isinstance(data, dict):
        return {name: without_numbers(value) for name, value in data.items()}
    if not isinstance(data, list):
        return data
    is_column = data and all(value is None or isinstance(value, float) for value in data)
    return f"{len(data)} numbers" if is_column else [without_numbers(value) for value in data]


def change_summary(path, **entries):
    write_json(path / "summary.json", {**RunRecord(path).summary, **entries}, checked=True)


def change(path, **columns):
    """Returns the verdict with other values of clients; None takes a column away."""
    table = pd.read_csv(path / "per_client.csv", dtype={"client": str})
    table = table.assign(**{name: v for name, v in columns.items() if v is not None})
    table = table.drop(columns=[name for name, v in columns.items() if v is None])
    rewrite(path, per_client=table)
    return judge(read_run(path))


@pytest.mark.parametrize("name", ["shared", "named", "failed", "compared"])
def test_pages_are_as_they_were(tmp_path, make_run, write_run, name):
    """Where a change is meant, WRITE_GOLDEN=1 writes the new page; look at what differs."""
    pages = {"shared": shared_page, "named": named_page, "failed": failed_page}
    made = pages[name](tmp_path / "run", make_run) if name in pages else compared_page(write_run)
    parsed = Parsed(made)
    found = {**parsed.sections, "data": without_numbers(parsed.data)}
    lines = [f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in found.items()]
    text = re.sub(r"fedpersonal [\d.]+|python \d[^\"]*", "VERSIONS", ",\n".join(lines))
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    found = json.loads(f"{{{text}}}")
    assert found == json.loads(golden.read_text(encoding="utf-8"))
    assert len(made) < 100_000


NEAR = np.linspace(-0.01, 0.01, 12)
BEFORE = np.linspace(1, 1.5, 12)
SOME = np.where(np.arange(12) % 2, 0.5, np.nan)
VERDICTS = {
    "improves": (
        {"rmse_after": BEFORE - 0.2 + NEAR},
        r"Personalisation improves RMSE \(mean over clients\) from",
    ),
    "worsens": (
        {"rmse_after": BEFORE + 0.2 + NEAR},
        "Personalisation worsens .* 100 % of them are worse",
    ),
    "noise": (
        {"rmse_after": BEFORE + np.tile([0.1, -0.1], 6)},
        ".*which is within noise .* 50 %",
    ),
    "broken": (
        {"rmse_before": np.ones(12), "rmse_after": SOME},
        "Personalisation leaves 6 of 12 test clients without a finite RMSE; .* 50 % of them are w",
    ),
    "improves, without those who have no number before": (
        {"rmse_before": np.append([np.nan] * 4, BEFORE[4:]), "rmse_after": BEFORE - 0.2},
        ".*8 test clients.*none of them are worse",
    ),
    "improves, of those who predict something": (
        {"num_examples": [0, 0, *[5] * 10], "rmse_after": BEFORE - 0.2 + NEAR},
        ".*10 test clients",
    ),
    "no number": ({"rmse_after": [np.nan] * 12}, "No client has a finite RMSE.$"),
    "strong baseline": (
        {"rmse_guess": np.full(12, 0.5), "rmse_after": BEFORE - 0.2 + NEAR},
        "Personalisation does not beat the baseline: .* before.*; the baseline is better for 100 %",
    ),
    "weaker baseline": (
        {"rmse_guess": BEFORE - 0.1, "rmse_after": BEFORE - 0.2 + NEAR},
        r"Personalisation beats the baseline: RMSE .* is 1.05 \(1.25 before\), against 1.15 for",
    ),
    "baseline alone": (
        {"rmse_before": None, "rmse_after": BEFORE - 0.2, "rmse_guess": BEFORE},
        r"The model beats the baseline: RMSE \(mean over clients\) is 1.05, against 1.25 for m",
    ),
    "untrained start": (
        {"rmse_guess": None, "rmse_after": BEFORE},
        r"RMSE \(mean over clients\) is 1.25 .95 % interval.*with untrained local variables",
    ),
    "nothing before": (
        {"rmse_before": None, "loss_before": None, "rmse_guess": None, "rmse_after": BEFORE},
        r"RMSE \(mean over clients\) is 1.25 \(95 % interval .*clients were not evaluated before",
    ),
    "more is better": (
        {
            **{f"rmse_{stage}": None for stage in ("before", "after", "guess")},
            **{"auc_before": BEFORE, "auc_after": BEFORE - 0.2 + NEAR, "auc_guess": NEAR},
        },
        r"Personalisation worsens AUC \(mean over clients\) from 1.25 to 1.05",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict(tmp_path, make_run, name):
    columns, said = VERDICTS[name]
    guess = np.full(12, 0.0 if name.startswith("more") else 9.0)
    columns = {"rmse_before": BEFORE, "rmse_guess": guess, **columns}
    told = change(make_run(tmp_path), **columns)
    assert re.match(said, told), told
    assert "improves" in name or "baseline" in name or "improves" not in told


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        (1, "A single test client, too few to judge by: RMSE from"),
        (5, "5 test clients, too f"),
    ],
)
def test_few_clients_are_no_ground_for_a_claim(tmp_path, make_run, clients, said):
    assert judge(read_run(make_run(tmp_path, clients=clients))).startswith(said)


def test_without_clients_the_rounds_are_told(tmp_path, make_run):
    path = make_run(tmp_path)
    (path / "per_client.csv").unlink()
    rounds = read_run(path).rounds.set_index("round")["eval/rmse"].dropna()
    told = judge(read_run(path))
    assert told.startswith("The validation RMSE goes from")
    assert f"{rounds.iloc[-1]:.3f} in round 20" in told
    rewrite(path, metrics=pd.read_csv(path / "metrics.csv")[["round", "seconds"]])
    assert "no client was evaluated" in judge(read_run(path))
    copies = [{"name": "personal_copy/head/kernel"}, {"name": "personal_mixing"}]
    run = read_run(path)
    assert run.starts_untrained and not dataclasses.replace(run, local=copies).starts_untrained
    assert share_worse("wobble", np.zeros(2), np.ones(2)) is None


def test_the_numbers_are_those_of_numpy(tmp_path, make_run):
    path = make_run(tmp_path, clients=40, clients_per_round=7, names=[f"u{i}" for i in range(40)])
    run, table = read_run(path), pd.read_csv(path / "per_client.csv")
    gains = (table.rmse_after - table.rmse_before).to_numpy()
    means = np.random.default_rng(7).choice(gains, (4000, 40)).mean(1)
    told = judge(run).replace("−", "-")
    mean, low, high = re.search(r"\((\S+), 95 % interval (\S+) to (\S+),", told).groups()
    assert [float(low), float(high)] == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.004)
    assert float(mean) == pytest.approx(gains.mean(), rel=0.01)
    assert f"{100 * (gains > 0).mean():.0f} % of them are worse" in told
    before, guess, after, changed = percentile_rows(run)[:4]
    assert [r["stage"] for r in (before, guess, after, changed)] == [
        *("before", "baseline", "after", "change")
    ]
    wanted = [*np.percentile(table.rmse_after, [5, 25, 50, 75, 95]), table.rmse_after.mean()]
    np.testing.assert_allclose([float(v) for v in after["values"]], wanted, atol=6e-3)
    assert changed["worse"] == f"{100 * (gains > 0).mean():.0f} %"
    order = gains.argsort(kind="stable")
    drawn = dots(run, show_clients=True)
    assert drawn["names"] == table.client[order].tolist()
    assert drawn["size"]["values"] == table.num_examples[order].tolist()
    x, y = (drawn["choices"][0][axis]["values"] for axis in "xy")
    np.testing.assert_allclose(x, table.rmse_before[order], rtol=1e-3)
    np.testing.assert_allclose(y, table.rmse_after[order], rtol=1e-3)
    validation = curve_panels(run)[0]["series"][1]
    assert validation["name"] == "validation" and validation["seconds"] == [2.5, 5, 7.5, 10]
    assert validation["bytes"] == [800 * 7 * number for number in (5, 10, 15, 20)]
    few = dataclasses.replace(run, config={**run.config, "training_data": {"clients": 3}})
    assert few.bytes_per_round == 800 * 3
    np.testing.assert_allclose(validation["y"], run.rounds["eval/rmse"].dropna(), rtol=1e-4)


def test_figures_say_which_mean_they_are(write_run):
    hits, words = np.arange(30) % 3 / 2, np.linspace(0.2, 0.9, 30)
    columns = {"hr@10": hits, "words_after": words, "num_words": np.arange(1, 31)}
    mean = np.average(words, weights=columns["num_words"])
    test = {"hr@10": hits.mean(), "words": mean, "words_after": words.mean(), "x": 3.0}
    names = {
        figure.name for figure in key_figures(read_run(write_run("a", columns=columns, test=test)))
    }
    assert {"RMSE, pooled over examples", "HR@10, mean over clients"} <= names
    assert {"words, pooled over examples", "words after, mean over clients", "x", "rounds"} <= names


def test_of_very_many_some_are_drawn(tmp_path, make_run):
    run = read_run(make_run(tmp_path, clients=MOST_DOTS + 500))
    drawn = dots(run, show_clients=False)
    ranks = np.array([int(name.split()[1]) for name in drawn["names"]])
    assert len(set(ranks)) == MOST_DOTS < ranks.max()
    order = np.argsort(run.after("rmse") - run.before("rmse"), kind="stable")
    np.testing.assert_array_equal(drawn["size"]["values"], run.num_examples[order[ranks - 1]])
    assert "The chart shows 6,000 of 6,500 clients" in report_page(run)
    y = np.zeros(100_000)
    y[[77, 50_123]] = 5, -3
    y[10:20] = np.nan
    chosen = thin(y, 300)
    assert len(chosen) <= 301 and {77, 50_123, 0, 99_999} <= set(chosen)
    assert (np.diff(chosen) > 0).all() and list(thin([1, np.inf, 2])) == [0, 2]


def test_boxes_are_as_high_as_their_bytes(tmp_path, make_run):
    sent = [("large", 300_000), ("small", 100_000), *((f"scalar {i}", 4) for i in range(20))]
    crossings = [
        {"direction": "broadcast", "name": f"trainable.{n}", "num_bytes": b} for n, b in sent
    ]
    run = dataclasses.replace(read_run(make_run(tmp_path)), boundary=crossings)
    device, wire, nothing, server = boundary_groups(run)
    assert [box.height for box in wire.boxes] == [135, 45, 24, 24, 24, 24]
    assert wire.boxes == server.boxes and nothing.boxes == []
    assert (wire.boxes[-1].name, wire.boxes[-1].size) == ("17 others", "68 bytes")
    assert [(box.name, box.size) for box in device.boxes] == [("user/vector", "400 bytes")]
    assert device.heading == "Local variables, rebuilt, 400 bytes"


def test_options_that_differ_and_the_command(tmp_path, make_run):
    addresses = {"runtime": "ray", "ray_address": "10.0.0.7:1", "data_dir": "/home/somebody/films"}
    run = read_run(make_run(tmp_path, rounds=7, use_biases=True, l2=0.5, **addresses))
    told = {name: (value, default) for name, value, default in changed_options(run)}
    assert told["total_rounds"] == ("7", "500") and told["use_biases"] == ("True", "False")
    assert told["data_dir"] == ("path/to/films", "None") and told["ray_address"][0] == "host:port"
    assert "shards" not in told
    assert set(command(run).split()) - {"\\"} == {
        *("fedpersonal", "movielens", "--total_rounds=7", "--data_dir=path/to/films", "--l2=0.5"),
        *("--use_biases", "--runtime=ray", "--ray_address=host:port"),
    }
    options = {"task": type(DOCUMENTS).__module__, "hidden_units": [64, 32], "text_file": "a b"}
    found = command(types.SimpleNamespace(task=DOCUMENTS, options=options))
    flags = ["--hidden_units=64", "--hidden_units=32", "--text_file=path/to/a b"]
    assert sorted(shlex.split(found.replace("\\\n", " "))) == sorted(
        ["fedpersonal", "reddit", *flags]
    )


@pytest.mark.parametrize("shape", [(40, 6), (19, 147_456)])
def test_a_map_has_the_axes_of_most_variance(tmp_path, make_run, shape):
    """The second table is as of a server that has each user's part of a language model."""
    path = make_run(tmp_path)
    table = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    table[:, 0] *= 5
    arrays = {"global item/embeddings": table, "global b/kernel": np.ones(3)}
    (path / "model.npz").write_bytes(pack_arrays(arrays))
    found = embedding_map(read_run(path))
    variances = np.linalg.svd(table - table.mean(0), compute_uv=False) ** 2
    assert found["share"] == pytest.approx(variances[:2].sum() / variances.sum(), rel=1e-4)
    for axis, variance in zip("xy", variances):
        assert np.square(found[axis]).sum() == pytest.approx(variance, rel=0.01)


@pytest.mark.parametrize("kind", ["private", "public", "named"])
def test_hostile_texts_are_texts(tmp_path, make_run, kind):
    show_clients, folder = kind == "named", None if kind == "public" else "films"
    path = make_run(tmp_path, clients=len(HOSTILE), names=HOSTILE, data_dir=folder)
    evil = {"<b onclick=alert(1)>_after": 1.0, "note": "secret"}
    table = pd.read_csv(path / "per_client.csv", dtype={"client": str}).assign(**evil)
    rewrite(path, per_client=table)
    add_texts(path, HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE, rounds=20)
    items = ClientItems(HOSTILE[0], HOSTILE[1], 1.5, 0.5, [], [Item(n, 1.0) for n in HOSTILE])
    write_recommendations(path, Recommendations("rmse", [items]), rounds=20)
    table = np.random.default_rng(0).normal(size=(len(HOSTILE), 4)).astype(np.float32)
    (path / "model.npz").write_bytes(pack_arrays({"global item_embedding/embeddings": table}))
    about = {**read_about(path), "names": {"item": HOSTILE, "user": ["a person"] * 8}}
    write_json(path / "model.json", about, checked=True)
    crossing = {"direction": HOSTILE[1], "name": HOSTILE[0], "dtype": HOSTILE[0]}
    (path / "boundary.json").write_text(json.dumps([crossing, {**crossing, "name": ""}]))
    change_summary(
        path, dataset=HOSTILE[0], test={"guesses": {HOSTILE[1]: {"rmse": 0.1}}, "x": 1.0}
    )
    run = read_run(path)
    run.config["versions"]["<i>"] = "</script>"
    run.config["options"]["method"] = HOSTILE[1]
    page = report_page(run, show_clients=show_clients)
    parsed = Parsed(page)
    assert len(page) < 100_000 and "secret" not in page
    assert not [tag for tag, _ in parsed.elements if tag in ("i", "img")]
    assert len([tag for tag, _ in parsed.elements if tag == "script"]) == 2
    assert not [a for _, a in parsed.elements for name in a if name.startswith("on")]
    names = parsed.data["dots"]["names"]
    if show_clients:
        assert {*HOSTILE[:2], HOSTILE[5], "x" * 60 + "…", "\\u202egnp.exe\\u2066"} <= set(names)
    else:
        assert names == [f"client {i}" for i in range(1, len(HOSTILE) + 1)]
        assert ("gnp" in page) == (HOSTILE[5] in page) == (kind == "public")
    assert bool(parsed.data["map"]["names"]) == (kind != "private") and "a person" not in page
    assert ("details" in dict(parsed.elements)) == (kind == "private")


def test_the_page_is_one_small_file_that_refers_to_nothing_outside(tmp_path, make_run):
    path = write_report(make_run(tmp_path / "run", rounds=1_000, clients=600))
    page = path.read_text(encoding="utf-8")
    shown = path._repr_html_()
    assert judge(read_run(path.parent)) in html.unescape(shown) and "run/report.html" in shown
    assert all(figure.text in shown for figure in key_figures(read_run(path.parent)))
    assert len(shown) < 2_000 and path.parent._repr_html_() is None
    assert len(page) < 200_000
    assert not re.findall(r"(?:src|href)=(?!\"data:)", page)
    assert not set(re.findall(r"https?://[^\"' ]+", page)) - {"http://www.w3.org/2000/svg"}
    policy = next(a["content"] for t, a in Parsed(page).elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_what_is_missing_is_said_and_no_finished_run_is_refused(tmp_path, make_run):
    path = make_run(tmp_path / "run")
    before = write_report(path).read_bytes()
    summary = (path / "summary.json").read_bytes()
    (path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="was changed"):
        write_report(path)
    assert (path / "report.html").read_bytes() == before
    (path / "summary.json").write_bytes(summary)
    told = {
        "metrics.csv": "there are no curves",
        "per_client.csv": "there is no chart of clients",
        "boundary.json": "no record of what crossed",
        "summary.json": "",
    }
    for name, text in told.items():
        assert not text or text not in report_page(read_run(path))
        (path / name).unlink()
        assert text in report_page(read_run(path))
    (path / "model.json").unlink()
    with pytest.raises(UserError, match="has not ended"):
        read_run(path)
    with pytest.raises(UserError, match="not the folder of a run"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.91478, "0.915"), (1234.5, "1,234"), (-0.0012345, "−0.00123"), (0, "0.00")),
        *(
            (0.0999999, "0.100"),
            (1e-7, "1.00e−07"),
            (None, "none"),
            (float("nan"), "none"),
            (float("inf"), "inf"),
        ),
    ],
)
def test_numbers_as_people_read_them(value, text):
    assert format_number(value) == text
    assert [format_percent(v) for v in (0, 1, 0.137, 0.004)] == ["0 %", "100 %", "14 %", "0.4 %"]
    sizes = ["unknown size", "4 bytes", "108 kB", "2.00 GB"]
    assert [format_size(v) for v in (None, 4, 107648, 2e9)] == sizes
