"""What pages draw, against pandas and the folders' own files."""

import shlex
import types

import numpy as np
import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.files import pack_arrays
from fedpersonal.report.boundary_picture import boundary_picture
from fedpersonal.report.clients import MOST_DOTS, dots, percentile_rows, rank_order
from fedpersonal.report.curves import curve_panels, thin
from fedpersonal.report.embedding_map import embedding_map
from fedpersonal.report.numbers import percent, plain, size
from fedpersonal.report.options_told import command, options_told
from fedpersonal.report.run_data import read_run
from fedpersonal.report.verdict import judge
from fedpersonal.report.write import key_figures, report_page
from fedpersonal.tasks.documents.task import TASK as DOCUMENTS


def test_curves_go_over_rounds_seconds_and_bytes(tmp_path, make_run):
    path = make_run(tmp_path, clients_per_round=7)
    panels = curve_panels(read_run(path))["panels"]
    assert [panel["label"] for panel in panels] == ["RMSE", "loss"]
    assert panels[0]["lower"] is True
    series = {one["name"].split(",")[0]: one for one in panels[0]["series"]}
    table = pd.read_csv(path / "metrics.csv").dropna(subset="eval/rmse")
    validation = series["validation"]
    assert validation["round"] == [5, 10, 15, 20]
    assert validation["seconds"] == [2.5, 5, 7.5, 10]
    assert validation["bytes"] == [800 * 7 * number for number in (5, 10, 15, 20)]
    np.testing.assert_allclose(validation["y"], table["eval/rmse"], rtol=1e-4)


def test_figures_say_which_mean_they_are(write_run):
    hits, words = np.arange(30) % 3 / 2, np.linspace(0.2, 0.9, 30)
    columns = {"hr@10": hits, "words_after": words, "num_words": np.arange(1, 31)}
    test = {
        "hr@10": hits.mean(),
        "words": np.average(words, weights=columns["num_words"]),
        "x": 3.0,
    }
    run = read_run(write_run("a", columns=columns, test={**test, "words_after": words.mean()}))
    names = [name for name, _ in key_figures(run)]
    assert {"RMSE, all together", "HR@10, mean client", "words, all together"} <= {*names}
    assert {"words after, mean client", "x", "rounds"} <= {*names}


def test_seen_clients_never_drawn_stand_apart(write_run):
    never = {"num_clients": 10, "loss": 2.5, "rmse": 1.25}
    since = {"p5": 0.0, "p25": 2.0, "p50": 6.0, "p75": 11.0, "p95": 31.5}
    told = {"never_drawn": never, "rounds_since": since}
    figures = dict(key_figures(read_run(write_run("a", test=told))))
    assert figures["clients never drawn"] == "10, with RMSE 1.250"
    assert figures["rounds since a client took part"] == "median 6.00, 95th percentile 31.5"
    figures = dict(key_figures(read_run(write_run("b", test={"never_drawn": None}))))
    assert not any("drawn" in name or "since" in name for name in figures)


def test_figures_say_how_many_clients_count_and_what_chance_is(write_run):
    hits = np.where(np.arange(30) < 25, np.arange(30) % 3 / 2, np.nan)
    test = {
        "hr@10": np.nanmean(hits),
        "num_clients_of": {"hr@10": 25},
        "guesses": {"chance": {"hr@10": 0.25}},
        "num_clients_without_query": 4,
    }
    figures = dict(key_figures(read_run(write_run("a", columns={"hr@10": hits}, test=test))))
    assert figures["HR@10, mean client"].endswith("(chance: 0.2500; 25 clients)")
    assert figures["clients without a query set"] == "4"


def test_thin_curves_keep_what_stands_out():
    y = np.zeros(100_000)
    y[[77, 50_123]] = 5, -3
    y[10:20] = np.nan
    chosen = thin(y, 300)
    assert len(chosen) <= 301
    assert {77, 50_123, 0, 99_999} <= set(chosen)
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(thin([1, np.inf, 2]), [0, 2])


def test_dots_are_ranked_and_have_no_names(tmp_path, make_run):
    path = make_run(tmp_path)
    run, table = read_run(path), pd.read_csv(path / "per_client.csv")
    shared, named = (dots(run, show_clients=show) for show in (False, True))
    gains = table.rmse_after - table.rmse_before
    order = gains.argsort(kind="stable")
    assert shared["names"][:2] == ["client 1", "client 2"]
    assert named["names"] == table.client[order].tolist()
    assert "user" not in str(shared)
    first = shared["choices"][0]
    np.testing.assert_allclose(first["x"]["values"], table.rmse_before[order], rtol=1e-3)
    np.testing.assert_allclose(first["y"]["values"], table.rmse_after[order], rtol=1e-3)
    assert shared["size"]["values"] == table.num_examples[order].tolist()


def test_of_very_many_clients_some_are_drawn(tmp_path, make_run):
    run = read_run(make_run(tmp_path, clients=MOST_DOTS + 500))
    drawn, order = dots(run, show_clients=False), rank_order(run)
    ranks = np.array([int(name.split()[1]) for name in drawn["names"]])
    assert len(ranks) == len(set(ranks)) == MOST_DOTS
    assert ranks.max() > MOST_DOTS
    np.testing.assert_array_equal(drawn["size"]["values"], run.num_examples[order[ranks - 1]])
    assert "Of 6,500 clients, 6,000 are drawn" in report_page(run)
    assert "6,500 test clients" in judge(run).text


def test_percentiles_are_those_of_numpy(tmp_path, make_run):
    path = make_run(tmp_path, clients=50)
    table = pd.read_csv(path / "per_client.csv")
    before, guess, after, change = percentile_rows(read_run(path))[:4]
    stages = [row["stage"] for row in (before, guess, after, change)]
    assert stages == ["before", "guess", "after", "change"]
    assert float(guess["mean"]) == pytest.approx(1.1 * table.rmse_before.mean(), abs=6e-3)
    wanted = np.percentile(table.rmse_after, [5, 25, 50, 75, 95])
    np.testing.assert_allclose([float(v) for v in after["values"]], wanted, atol=6e-3)
    hurt = (table.rmse_after > table.rmse_before).mean()
    assert change["hurt"] == f"{100 * hurt:.0f} %"


def test_boxes_are_as_high_as_their_bytes(tmp_path, make_run):
    run = read_run(make_run(tmp_path))
    sent = [("large", 300_000), ("small", 100_000), *((f"scalar {i}", 4) for i in range(20))]
    crossings = [
        {"direction": d, "name": name, "num_bytes": n, "dtype": "float32"}
        for d in ("broadcast", "aggregate")
        for name, n in sent
    ]
    object.__setattr__(run, "boundary", crossings)
    picture = boundary_picture(run)
    boxes = {box.title: box for box in picture.boxes if box.kind == "wire"}
    large, small = boxes["large: 300 kB"], boxes["small: 100 kB"]
    assert large.height == pytest.approx(3 * small.height, abs=0.2)
    assert "17 others: 68 bytes" in boxes
    for kind in ("device", "wire", "server", "examples"):
        places = sorted((b.y, b.y + b.height) for b in picture.boxes if b.kind == kind)
        assert all(end <= start for (_, end), (start, _) in zip(places, places[1:]))
        assert all(end <= picture.height for _, end in places)
    local = [box for box in picture.boxes if box.kind == "device"]
    assert [box.title for box in local] == ["user/vector: 400 bytes"]
    assert local[0].x + local[0].width < large.x
    object.__setattr__(run, "boundary", [])
    assert boundary_picture(run) is None


def test_options_that_differ_and_the_command(tmp_path, make_run):
    path = make_run(
        tmp_path,
        rounds=7,
        use_biases=True,
        l2=0.5,
        data_dir="/home/somebody/films",
        runtime="ray",
        ray_address="10.0.0.7:1",
    )
    run = read_run(path)
    told = {name: (value, default) for name, value, default in options_told(run)}
    assert told["total_rounds"] == ("7", "500")
    assert told["use_biases"] == ("True", "False")
    assert told["data_dir"] == ("path/to/films", "None")
    assert told["ray_address"][0] == "host:port"
    assert "shards" not in told
    assert set(command(run).split()) - {"\\"} == {
        *("fedpersonal", "movielens", "--total_rounds=7"),
        *("--data_dir=path/to/films", "--use_biases", "--l2=0.5"),
        *("--runtime=ray", "--ray_address=host:port"),
    }


def test_an_option_of_several_numbers_is_a_flag_for_each():
    options = {"task": type(DOCUMENTS).__module__, "hidden_units": [64, 32], "text_file": "a b"}
    found = command(types.SimpleNamespace(task=DOCUMENTS, options=options))
    flags = ["--hidden_units=64", "--hidden_units=32", "--text_file=path/to/a b"]
    found = shlex.split(found.replace("\\\n", " "))
    assert sorted(found) == sorted(["fedpersonal", "reddit", *flags])


def test_a_map_has_the_axes_of_most_variance(tmp_path, make_run):
    path, random = make_run(tmp_path), np.random.default_rng(0)
    table = (
        random.normal(size=(40, 6))
        * [5, 1, 1, 1, 1, 3]
        @ np.linalg.qr(random.normal(size=(6, 6)))[0]
    )
    arrays = {"global item/embeddings": table.astype(np.float32), "global b/kernel": np.ones(3)}
    (path / "model.npz").write_bytes(pack_arrays(arrays))
    found = embedding_map(read_run(path))
    variances = np.linalg.svd(table - table.mean(0))[1] ** 2
    assert found["share"] == pytest.approx(variances[:2].sum() / variances.sum(), rel=1e-5)
    assert np.var(found["x"]) * 40 == pytest.approx(variances[0], rel=0.01)
    assert np.var(found["y"]) * 40 == pytest.approx(variances[1], rel=0.01)
    (path / "model.npz").unlink()
    assert embedding_map(read_run(path)) is None


def test_a_map_has_room_for_a_table_of_few_long_rows(tmp_path, make_run):
    # As of a server that has each user's part of a language model: 19 rows of 147,456 numbers.
    path, random = make_run(tmp_path), np.random.default_rng(0)
    table = random.normal(size=(19, 147_456)).astype(np.float32)
    (path / "model.npz").write_bytes(pack_arrays({"global users/embeddings": table}))
    found = embedding_map(read_run(path))
    table -= table.mean(0)
    variances = np.linalg.eigvalsh(table @ table.T)
    assert found["share"] == pytest.approx(variances[-2:].sum() / variances.sum(), rel=1e-4)
    assert np.square(found["x"]).sum() == pytest.approx(variances[-1], rel=0.01)


def test_what_is_no_finished_run_is_refused(tmp_path, make_run):
    with pytest.raises(UserError, match="not the folder of a run"):
        read_run(tmp_path)
    path = make_run(tmp_path / "run")
    (path / "summary.json").unlink()
    read_run(path)  # Of a program of one's own.
    (path / "model.json").unlink()
    with pytest.raises(UserError, match="has not ended"):
        read_run(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.91478, "0.915"), (1234.5, "1,234"), (-0.0012345, "−0.00123"), (0, "0.00")),
        *((1e-7, "1.00e−07"), (None, "none"), (float("nan"), "none"), (float("inf"), "inf")),
    ],
)
def test_plain_numbers(value, text):
    assert plain(value) == text


def test_shares_and_sizes():
    assert [percent(v) for v in (0, 1, 0.137, 0.004)] == ["0 %", "100 %", "14 %", "0.4 %"]
    assert [size(v) for v in (None, 4, 107648, 2e9)] == [
        *("unknown size", "4 bytes", "108 kB", "2.00 GB"),
    ]
