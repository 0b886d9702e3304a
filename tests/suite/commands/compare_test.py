"""The command that compares runs: its files, and users' mistakes in one line each."""

from __future__ import annotations

import csv
import html

import numpy as np
import pandas as pd
import pytest

import fedpersonal as fp
from tests.drawn_run import rewrite

SEEDS = (0, 1, 2)


def test_a_page_and_its_rows_are_written_and_mistakes_are_one_line(
    tmp_path, make_run, run_commands
):
    runs = []
    for method, factor in (("fed_avg", 1.0), ("fed_recon", 0.9)):
        for seed in (1, 2):
            name = f"{method}_{seed}"
            folder = make_run(tmp_path / name, seed=seed, method=method)
            clients = pd.read_csv(folder / "per_client.csv")
            clients["rmse_after"] *= factor
            rewrite(folder, per_client=clients)
            runs.append(name)
    mistakes = {
        "error: a comparison needs at least 2 run folders, not 0.": [],
        "the methods have no seed in common": ["fed_avg_1", "fed_recon_2"],
        "has no metric 'auc'; it has rmse.": [*runs, "--metric=auc"],
        "name a file that ends in .html.": [*runs, "--output=x.pdf"],
    }
    commands = [["compare", *arguments] for arguments in mistakes.values()]
    files = sorted(tmp_path.iterdir())
    for (output, errors, status), why in zip(
        run_commands(commands, modules=[], cwd=tmp_path), mistakes
    ):
        assert (status, output) == (2, "") and errors.startswith("error: ") and why in errors
        assert errors.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == files
    command = ["compare", *runs, "--output=out/seeds.html"]
    ((output, errors, status),) = run_commands([command], modules=[], cwd=tmp_path)
    assert (status, errors) == (0, "")
    paths = [tmp_path / "out" / f"seeds.{kind}" for kind in ("html", "csv")]
    *verdict, page, rows = output.splitlines()
    assert [page, rows] == [str(path) for path in paths]
    assert "lower than that of fed_avg" in verdict[0]
    assert verdict[0] in html.unescape(paths[0].read_text("utf-8"))
    found = list(csv.DictReader(paths[1].read_text("utf-8").splitlines()))
    table = fp.compare([tmp_path / name for name in runs])
    assert len(found) == len(table) == 2
    assert table["difference"][1] < 0
    assert float(found[1]["difference"]) == pytest.approx(table["difference"][1])


@pytest.fixture(name="tested", scope="module")
def _tested(tmp_path_factory, dense_model, not_compiled):
    """The folder of two programs' runs of three seeds each, tested on clients who took no part."""
    import tensorflow as tf

    folder, random = tmp_path_factory.mktemp("programs"), np.random.default_rng(0)
    offsets = np.append(0, np.cumsum(np.arange(6, 18)))
    x = random.normal(size=(offsets[-1], 2))
    dataset = fp.ClientDataset([f"c{i}" for i in range(12)], offsets, {"x": x}, x.sum(1))
    support, _, query = fp.split_examples(dataset, seed=0, ordered=False)
    seen, unseen = np.arange(5), np.arange(5, 12)
    for name, rate in (("slow", 0.01), ("fast", 0.1)):
        sgd = tf.keras.optimizers.SGD(rate)
        algorithm = fp.fed_recon(client_optimizer=sgd, reconstruction_optimizer=sgd)
        for seed in SEEDS:
            path = folder / f"{name}_{seed}"
            data = dataset.subset(seen)
            trainer = fp.Trainer(dense_model(), algorithm, data, batch_size=2, seed=seed)
            with trainer.fit(rounds=2, folder=path, progress=False) as trained:
                results = trained.test(
                    query.subset(unseen),
                    support=support.subset(unseen),
                    baseline={"loss": np.full(len(unseen), 0.5)},
                )
            assert fp.load_run(path).summary["test"]["loss"] == results.overall()["loss"]
    return folder


@pytest.mark.exhaustive
def test_runs_of_programs_are_grouped_by_seed_and_named(tested, run_commands):
    """The difference is that of clients' values, by NumPy."""
    commands = [
        ["compare", *(f"{name}={name}_{seed}" for name in ("slow", "fast") for seed in SEEDS)],
        ["compare", *(f"{name}_{seed}" for name in ("slow", "fast") for seed in SEEDS)],
        ["report", "fast_0"],
        ["compare", "same=slow_0", "same=fast_1"],
    ]
    named, unnamed, reported, mixed = run_commands(commands, modules=[], cwd=tested)
    assert (named[2], reported[2], mixed[2]) == (0, 0, 2), named[1] + reported[1]
    assert "learning_rate is 0.01 and 0.1" in mixed[1]
    assert "loss of fast, over all clients' examples together, is" in named[0]
    assert "learning_rate=0.1" in unnamed[0]
    assert "test" in fp.RunFolder.read(tested / "fast_0").summary
    table = pd.read_csv(tested / "compare.csv").set_index(["metric"]).loc["loss"]
    folders = {n: [tested / f"{n}_{seed}" for seed in SEEDS] for n in ("slow", "fast")}
    rows = fp.compare(folders).set_index("method")
    values = {}
    for name, paths in folders.items():
        clients = [pd.read_csv(path / "per_client.csv") for path in paths]
        values[name] = [np.average(c["loss_after"], weights=c["num_examples"]) for c in clients]
        assert rows.loc[name, "value"] == pytest.approx(np.mean(values[name]))
        assert rows.loc[name, "value_sd"] == pytest.approx(np.std(values[name], ddof=1))
    differences = np.subtract(values["fast"], values["slow"])
    assert rows.loc["fast", "num_seeds"] == rows.loc["fast", "paired_seeds"] == len(SEEDS)
    assert rows.loc["fast", "difference"] == pytest.approx(differences.mean())
    assert rows.loc["fast", "difference_sd"] == pytest.approx(differences.std(ddof=1))
    assert rows.loc["fast", "low"] < differences.mean() < rows.loc["fast", "high"]
    assert [*table["difference"]][1] == pytest.approx(differences.mean())
    assert (rows["guess"] == "the guess").all() and (rows["guess_value"] == 0.5).all()
